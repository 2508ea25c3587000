// The panels that show the player, the measurements and the file.

import { element } from "./element.mjs";

const at = (id) => document.getElementById(id);

const NOTES = {
  none: "A waveform has no audio to play.",
  MISS: "Not rendered yet. It plays while it is rendered.",
  HIT: "Stored: it starts at once and supports seeking.",
  streams: "Plays while it is rendered. Seeking works once it is stored.",
  stored: "Now stored: seeking works.",
  unstored: "Rendered, but not stored: it plays from its start alone.",
};

// Format a time as minutes, seconds and tenths.
export function clock(seconds) {
  const tenths = Math.floor((seconds ?? 0) * 10 + 1e-6);
  const minutes = Math.floor(tenths / 600);
  const rest = String(Math.floor((tenths % 600) / 10)).padStart(2, "0");
  return `${minutes}:${rest}.${tenths % 10}`;
}

function bytes(count) {
  const [unit, size] = count < 1e6 ? ["kB", 1e3] : ["MB", 1e6];
  return `${(count / size).toLocaleString("en", { maximumFractionDigits: 1 })} ${unit}`;
}

function duration(milliseconds) {
  const digits = milliseconds < 10 ? 1 : 0;
  return milliseconds < 1000 ? `${milliseconds.toFixed(digits)} ms` : `${(milliseconds / 1000).toFixed(2)} s`;
}

export function showPlayer(playback, { token, content_type }, refusal) {
  const { loaded, state, stored, streams, unstored } = playback.known;
  const silent = content_type === null;
  const length = playback.duration;
  const seek = at("seek");
  Object.assign(seek, { max: length, value: playback.time, disabled: !stored });
  seek.style.setProperty("--share", length ? playback.time / length : 0);
  seek.setAttribute("aria-valuetext", `${clock(playback.time)} of ${clock(length)}`);
  at("time").textContent = clock(playback.time);
  at("duration").textContent = clock(length);
  const play = at("play");
  play.disabled = silent || !state || Boolean(refusal);
  play.classList.toggle("playing", playback.playing);
  play.setAttribute("aria-label", playback.playing ? "Pause" : "Play");
  play.title = refusal?.message ?? "Play or pause (Space)";
  at("state").textContent = state ?? "";
  at("state").dataset.state = state ?? "";
  const stream = stored ? "stored" : unstored ? "unstored" : "streams";
  const note = loaded && streams ? stream : stored ? "HIT" : state;
  at("note").textContent = refusal ? "" : (NOTES[silent ? "none" : note] ?? "");
  at("waveform").classList.toggle("seekable", Boolean(stored));
  document.title = `${playback.playing ? "▶ " : ""}${token} · audioproxy player`;
}

function table(id, rows) {
  const shown = rows.filter(([, value]) => value !== undefined && value !== null);
  at(id).replaceChildren(
    ...shown.map(([name, value]) => {
      return element("div", {}, [element("dt", {}, [name]), element("dd", {}, [String(value)])]);
    }),
  );
}

export function showMeasurements({ state, status, sound, first, whole, server, rendered, size }) {
  const show = (value, format) => value && format(value);
  table("measurements", [
    ["X-Audio-Proxy", state],
    ["Status", status || null],
    ["First sound", show(sound, duration)],
    ["First byte", show(first, duration)],
    ["First byte, in the service", show(server, duration)],
    ["Last byte", show(whole, duration)],
    ["Rendered and stored", show(rendered, duration)],
    ["Size", show(size, bytes)],
  ]);
}

// Show the name of a source until its info document is loaded.
export function showName(source) {
  const [address] = /^https:/i.test(source) ? source.split(/[?#]/) : [source];
  // A listed file is shown with its folders, except that of the dropped files.
  const path = source.replace(/^dropped-\w{8}\//, "");
  at("title").textContent = /:\/\//.test(source) ? address.replace(/\/+$/, "").split("/").pop() : path;
  at("facts").textContent = "";
  table("info", [["Source", source]]);
}

export function showInfo(info, source) {
  const name = at("title").textContent;
  const { tags = {} } = info;
  const channels = { 1: "mono", 2: "stereo" }[info.channels] ?? `${info.channels} channels`;
  const rate = info.sample_rate && `${info.sample_rate / 1000} kHz`;
  at("title").textContent = tags.title ?? name;
  at("facts").textContent = [
    tags.artist,
    info.format.toUpperCase(),
    rate,
    info.bit_depth && `${info.bit_depth} bit`,
    channels,
    bytes(info.size),
  ]
    .filter(Boolean)
    .join("  ·  ");
  table("info", [
    ["Source", source],
    ["Duration", info.duration && clock(info.duration)],
    ["Bit rate", info.bitrate && `${Math.round(info.bitrate / 1000)} kbps`],
    ...Object.entries(tags),
  ]);
}

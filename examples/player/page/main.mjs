// Connects the parts of the page: signs the options of the controls, and plays and shows the variant.

import { Controls } from "./controls.mjs";
import { Playback, UNREACHABLE } from "./playback.mjs";
import { showAddress, showInfo, showMeasurements, showName, showPlayer } from "./panels.mjs";
import { readWaveform, span, Stage, Trimmer } from "./waves.mjs";

// Milliseconds without a change before a request is sent, so that a moving slider sends only one.
const PATIENCE = 180;

// Seconds by which a key moves the position. The slider's own steps are small, for pointers.
const STEPS = { ArrowLeft: -5, ArrowDown: -5, ArrowRight: 5, ArrowUp: 5 };

const at = (id) => document.getElementById(id);

async function ask(path, parameters = {}, signal = undefined) {
  const response = await fetch(`${path}?${new URLSearchParams(parameters)}`, { signal });
  return { ok: response.ok, document: await response.json() };
}

const picker = at("source");
const { document: listing } = await ask("sources");
const { document: table } = await ask("formats");

// Duration of the source in seconds; 0 until it is known.
let whole = 0;
// The source whose URL and waveform are shown.
let shown = null;
let work = new AbortController();
let timer = 0;

const controls = new Controls(at("controls"), table.formats, changed);
const playback = new Playback(at("audio"), show);
const stage = new Stage(at("waveform"), (time) => playback.seek(time));
const trimmer = new Trimmer(at("overview"), (start, duration) => {
  controls.fill("t", ...[start, duration].map((seconds) => String(Number(seconds.toFixed(2)))));
});

function changed() {
  clearTimeout(timer);
  timer = setTimeout(() => run(whole ? update : choose), PATIENCE);
}

// Run a task and cancel the one before.
async function run(what) {
  work.abort();
  work = new AbortController();
  const { signal } = work;
  try {
    await what(signal);
  } catch (error) {
    if (!signal.aborted) {
      console.error(error);
      stop(UNREACHABLE);
    }
  }
}

// Stop playback and show a refusal. Remove the URL and waveform if they belong to another source.
function stop(refusal) {
  playback.close();
  whole || trimmer.clear();
  if (shown !== picker.value) {
    showAddress(null);
    stage.clear();
  }
  refuse(refusal);
}

// Return the expected duration of the variant.
function expected({ t }) {
  const [start, duration = Infinity] = (t ?? "0").split(":").map(Number);
  return Math.max(0, Math.min(duration, whole - start));
}

async function update(signal) {
  const { options } = controls;
  const source = picker.value;
  const { ok, document: signed } = await ask("sign", { source, ...options }, signal);
  if (!ok) {
    stop(signed);
    return;
  }
  refuse(null);
  showAddress(signed);
  const [start, duration] = (options.t ?? "0").split(":").map(Number);
  trimmer.show(start, duration ?? null);
  if (options.f === "peaks") {
    playback.close();
    showMeasurements(await draw(signed.url, expected(options), signal));
  } else {
    await Promise.all([
      playback.open(signed.url, expected(options)),
      draw(signed.waveform, expected(options), signal),
    ]);
  }
  shown = source;
}

// Fetch and draw a waveform, and return the measurements of the response.
async function draw(url, duration, signal) {
  const container = at("waveform");
  container.classList.add("stale");
  const began = performance.now();
  const response = await fetch(url, { signal });
  if (!response.ok) {
    stage.clear();
    refuse(await response.json());
    return {};
  }
  const waveform = await readWaveform(response);
  const took = performance.now() - began;
  await stage.draw(waveform, duration);
  container.classList.remove("stale");
  return { state: response.headers.get("x-audio-proxy"), status: response.status, whole: took };
}

// Show a refusal beside the control that it names, else below the URL.
function refuse(refusal) {
  const [, named] = /^"([a-z_]+)/.exec(refusal?.message ?? "") ?? [];
  const option = refusal?.error === "expired" ? "exp" : named;
  const placed = controls.refuse(option, refusal?.message);
  at("refusal").textContent = refusal && !placed ? refusal.message : "";
  document.body.classList.toggle("refusing", Boolean(refusal));
}

// Load another source: show its info document and its waveform, and then the variant.
async function choose(signal) {
  playback.close();
  whole = 0;
  for (const id of ["overview", "waveform"]) {
    at(id).classList.add("stale");
  }
  showName(picker.selectedOptions[0].textContent);
  const { ok, document: signed } = await ask("sign", { source: picker.value, f: "peaks", pk_bits: 8 }, signal);
  if (!ok) {
    stop(signed);
    return;
  }
  const [info, waveform] = await Promise.all([fetch(signed.info, { signal }), fetch(signed.url, { signal })]);
  if (!info.ok || !waveform.ok) {
    stop(await (info.ok ? waveform : info).json());
    return;
  }
  const description = await info.json();
  const drawn = await readWaveform(waveform);
  whole = description.duration ?? span(drawn);
  showInfo(description);
  controls.stretch(whole);
  await trimmer.draw(drawn, whole);
  at("overview").classList.remove("stale");
  await update(signal);
}

function show() {
  if (playback.known.refusal) {
    refuse(playback.known.refusal);
  }
  stage.move(Math.min(playback.time, playback.duration));
  showPlayer(playback, controls.format);
  showMeasurements(playback.known);
}

// While audio plays, color the played part of the waveform in each animation frame.
function follow() {
  if (playback.playing) {
    stage.move(playback.time);
    requestAnimationFrame(follow);
  }
}

at("audio").addEventListener("play", () => requestAnimationFrame(follow));

at("play").addEventListener("click", () => playback.toggle());
at("seek").addEventListener("input", ({ target }) => playback.seek(Number(target.value)));
at("seek").addEventListener("keydown", (event) => {
  const step = STEPS[event.key];
  if (step && !event.altKey && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    playback.seek(Math.max(0, Math.min(playback.time + step, playback.duration)));
  }
});
at("copy").addEventListener("click", async ({ target }) => {
  await navigator.clipboard.writeText(at("open").href);
  target.textContent = "Copied";
  setTimeout(() => (target.textContent = "Copy"), 1500);
});
picker.addEventListener("change", () => run(choose));
for (const { source, name } of listing.sources) {
  picker.add(new Option(name, source));
}
if (!listing.complete) {
  picker.add(Object.assign(new Option("The folder has more files than this list"), { disabled: true }));
}
if (listing.sources.length) {
  // The nocturne has a more interesting waveform than the drone.
  picker.value = listing.sources.some(({ source }) => source === "nocturne.flac") ? "nocturne.flac" : picker.value;
  await run(choose);
} else {
  at("refusal").textContent = "The folder of this player has no audio files.";
}

// Connects the parts of the page: signs the options of the controls, and plays and shows the variant.

import { Address, query, readAddress } from "./address.mjs";
import { Comparison } from "./comparison.mjs";
import { Controls } from "./controls.mjs";
import { acceptFiles } from "./drop.mjs";
import { showFailure } from "./failures.mjs";
import { LoudnessTable } from "./loudness.mjs";
import { Playback, UNREACHABLE } from "./playback.mjs";
import { showInfo, showMeasurements, showName, showPlayer } from "./panels.mjs";
import { SignedPanel } from "./signed.mjs";
import { SourcePicker } from "./sources.mjs";
import { TrimHandles } from "./trim.mjs";
import { Overview, readWaveform, span, Stage } from "./waves.mjs";

// Milliseconds without a change before a request is sent, so that a moving slider sends only one.
const PATIENCE = 180;

// Seconds by which a key moves the position. The slider's own steps are small, for pointers.
const STEPS = { ArrowLeft: -5, ArrowDown: -5, ArrowRight: 5, ArrowUp: 5 };

// Elements that handle the space bar themselves. A slider and a checked format do not.
const TYPING = "button, select, summary, input:not([type=range], [type=radio]:checked)";

const at = (id) => document.getElementById(id);

async function ask(path, parameters = {}, signal = undefined) {
  const response = await fetch(`${path}?${query(parameters)}`, { signal });
  return { ok: response.ok, document: await response.json() };
}

const { document: listing } = await ask("sources");
const { document: table } = await ask("formats");

// Duration of the source in seconds; 0 until it is known.
let whole = 0;
// The source whose URL and waveform are shown.
let shown = null;
// Why nothing can be played, or null.
let refused = null;
let work = new AbortController();
let timer = 0;

const address = new Address();
const picker = new SourcePicker(listing, () => follow(choose));
const controls = new Controls(at("controls"), table.formats, changed);
const loudness = new LoudnessTable(table.shaping);
const playback = new Playback(at("audio"), show);
const stage = new Stage(at("waveform"), (time) => playback.seek(time));
const overview = new Overview(at("overview"));
const trim = new TrimHandles(at("trim"), (...times) => {
  controls.fill("t", ...times.map((seconds) => (seconds === null ? "" : String(Number(seconds.toFixed(2))))));
});
const comparison = new Comparison();
const signedPanel = new SignedPanel();

acceptFiles(
  at("file"),
  listing.limit,
  (text) => (at("notice").textContent = text),
  (rows) => {
    rows.forEach((row) => picker.add(row));
    picker.value = rows[0].source;
    follow(choose);
  },
);

function changed() {
  clearTimeout(timer);
  timer = setTimeout(() => follow(whole ? update : choose), PATIENCE);
}

function state() {
  return { source: picker.value, ...controls.options };
}

// Show what the user has changed.
function follow(what) {
  address.write(state());
  at("notice").textContent = "";
  return run(what);
}

// Show the state of the address. Leave out what cannot be used.
function restore() {
  const { source, options, repeated } = readAddress();
  const before = picker.value;
  picker.value = source || picker.fallback;
  const unused = [...new Set([...repeated, ...controls.restore(options)])];
  at("notice").textContent = unused.length
    ? `The address of this page has options that cannot be used, so they are left out: ${unused.join(", ")}.`
    : "";
  address.correct(state());
  return run(whole && before === picker.value ? update : choose);
}

// Run a task and cancel the one before.
async function run(what) {
  clearTimeout(timer);
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
  loudness.clear();
  comparison.offer(null);
  whole || overview.clear();
  if (shown !== picker.value) {
    signedPanel.show(null);
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
  const { ok, document: signed } = await ask("sign", state(), signal);
  if (!ok) {
    stop(signed);
    return;
  }
  playback.known.refusal && playback.close();
  refuse(null);
  signedPanel.show(signed);
  shown = picker.value;
  showTrim();
  offerComparison(signed, options);
  if (expected(options) === 0) {
    // Nothing plays before the service has found audio after the end that the source's header states.
    playback.close();
    await draw(signed.waveform, 0, signal);
    if (refused) {
      return;
    }
  }
  if (options.f === "peaks") {
    playback.close();
    showMeasurements(await draw(signed.url, expected(options), signal));
  } else {
    await Promise.all([
      playback.open(signed.url, expected(options)),
      draw(signed.waveform, expected(options), signal),
    ]);
  }
  if (!refused) {
    await loudness.show(picker.value, options, signal);
  }
}

// Show the trim of the controls, which a handle may have changed meanwhile.
function showTrim() {
  const [start, duration = null] = (controls.options.t ?? "0").split(":").map(Number);
  trim.show(start, duration, whole);
}

function offerComparison({ original, canonical }, options) {
  const source = picker.value;
  const measure = (signal) => loudness.compare(source, options, signal);
  comparison.offer(options.f === "peaks" ? null : { url: original, result: canonical, measure });
}

// Fetch and draw a waveform, and return the measurements of the response.
async function draw(url, duration, signal) {
  const container = at("waveform");
  container.classList.add("stale");
  const began = performance.now();
  const response = await fetch(url, { signal });
  if (!response.ok) {
    stage.clear();
    stop(await response.json());
    return {};
  }
  const waveform = await readWaveform(response);
  const took = performance.now() - began;
  await stage.draw(waveform, duration);
  container.classList.remove("stale");
  return { state: response.headers.get("x-audio-proxy"), status: response.status, whole: took };
}

// Show a refusal in the stage, and beside the control that it names.
function refuse(refusal) {
  refused = refusal;
  const [, named] = /^"([a-z_]+)/.exec(refusal?.message ?? "") ?? [];
  controls.refuse(refusal?.error === "expired" ? "exp" : named, refusal?.message);
  showFailure(refusal, picker.name, listing.folder);
  showPlayer(playback, controls.format, refused);
}

// Load another source: show its info document and its waveform, and then the variant.
async function choose(signal) {
  playback.close();
  loudness.clear();
  comparison.offer(null);
  whole = 0;
  refuse(null);
  if (!picker.value) {
    stop({ error: "no_sources", message: `The folder of this player is ${listing.folder}.` });
    return;
  }
  for (const id of ["overview", "waveform"]) {
    at(id).classList.add("stale");
  }
  showName(picker.name);
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
  showInfo(description, picker.name);
  controls.stretch(whole);
  await overview.draw(drawn, whole);
  showTrim();
  at("overview").classList.remove("stale");
  await update(signal);
}

function show() {
  if (playback.known.refusal) {
    refuse(playback.known.refusal);
  }
  stage.move(Math.min(playback.time, playback.duration));
  showPlayer(playback, controls.format, refused);
  showMeasurements(playback.known);
}

// While audio plays, color the played part of the waveform in each animation frame.
function animate() {
  if (playback.playing) {
    stage.move(playback.time);
    requestAnimationFrame(animate);
  }
}

at("audio").addEventListener("play", () => requestAnimationFrame(animate));

at("play").addEventListener("click", () => playback.toggle());
at("seek").addEventListener("input", ({ target }) => playback.seek(Number(target.value)));
at("seek").addEventListener("keydown", (event) => {
  const step = STEPS[event.key];
  if (step && !event.altKey && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    playback.seek(Math.max(0, Math.min(playback.time + step, playback.duration)));
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === " " && !event.altKey && !event.ctrlKey && !event.metaKey && !event.target.closest(TYPING)) {
    event.preventDefault();
    event.repeat || at("play").disabled || playback.toggle();
  }
});
window.addEventListener("hashchange", restore);
// The browser ends the requests of a page that the user leaves. That is not a failure.
window.addEventListener("pagehide", () => work.abort());
await restore();

// Usage: node play.mjs ENGINE URL FILE
//
// Use the player in an engine, on a telephone and on a wide screen, and print what it does as a JSON document. FILE is
// the path of a short audio file. The player has a source of at least six seconds, whose name is falling.wav.

import { readFileSync } from "node:fs";

import { openEngine, openSound } from "./engines.mjs";
import { printReport } from "./parent.mjs";

const [name, url, file] = process.argv.slice(2);

// Functions of the page, for each of its visits.
function prepare() {
  window.at = (id) => document.getElementById(id);
  window.until = async (condition, what) => {
    for (const end = performance.now() + 60_000; !condition(); await new Promise((done) => setTimeout(done, 20))) {
      if (performance.now() > end) {
        const { currentTime, error, paused, readyState } = at("audio");
        const state = JSON.stringify({ currentTime, error: error?.message, paused, readyState });
        throw new Error(`waiting for ${what} in ${state}: ${document.querySelector(".stage").innerText}`);
      }
    }
  };
  window.fits = () => document.documentElement.scrollWidth <= innerWidth;
}

// The steps, in their order, on one visit.
const STEPS = {
  // Play what is rendered meanwhile, and seek once it is stored.
  plays: async () => {
    await until(() => document.querySelector("#waveform[data-drawn]:not(.stale)"), "the waveform");
    const before = at("state").textContent;
    await until(() => !at("play").disabled, "the button");
    at("play").click();
    await until(() => at("audio").currentTime > 0.3, "sound");
    await until(() => at("waveform").classList.contains("seekable"), "the store");
    at("seek").value = 4;
    at("seek").dispatchEvent(new Event("input"));
    await until(() => at("audio").currentTime > 4.3 && at("audio").currentTime < 6, "the position");
    await until(() => at("state").textContent === "HIT", "a hit");
    at("play").click();
    return [before, at("audio").paused, fits()];
  },

  // One of the two is heard, at the same position, whatever is done to keep it there.
  compares: async () => {
    at("compare").click();
    await until(() => !at("comparison").disabled, "the comparison");
    at("audio").loop = true;
    at("play").click();
    const pair = [at("audio"), at("original")];
    const heard = [];
    for (const which of ["result", "source", "result"]) {
      document.querySelector(`#comparison [value=${which}]`).click();
      await until(() => pair.every(({ paused }) => !paused), "both to play");
      // Long enough for several corrections.
      const begin = performance.now();
      const muted = new Set();
      await until(() => {
        muted.add(pair.map((it) => it.muted).join());
        const together = Math.abs(pair[0].currentTime - pair[1].currentTime) < 0.15;
        return performance.now() > begin + 1500 && together;
      }, "both at one position");
      heard.push([...muted].join(" "));
    }
    at("compare").click();
    at("play").click();
    return [heard, fits()];
  },

  // A shorter source than the trim.
  trims: async ({ name, bytes }) => {
    for (const [part, seconds] of [["t-0", "0"], ["t-1", "5"]]) {
      at(part).value = seconds;
      at(part).dispatchEvent(new Event("input", { bubbles: true }));
    }
    await until(() => at("canonical").textContent.includes("t:0:5") && !document.querySelector(".stale"), "the trim");
    const transfer = new DataTransfer();
    transfer.items.add(new File([Uint8Array.from(atob(bytes), (it) => it.charCodeAt(0))], name));
    at("file").files = transfer.files;
    at("file").dispatchEvent(new Event("change"));
    await until(() => at("title").textContent === name && !document.querySelector(".stale"), "the file");
    const box = at("trim").getBoundingClientRect();
    const ends = [...document.querySelectorAll("#trim .handle")].map((it) => {
      const { left, right } = it.getBoundingClientRect();
      return Math.round((100 * ((left + right) / 2 - box.left)) / box.width);
    });
    return [ends, fits()];
  },

  // The waveform has the height of its place.
  turns: async () => {
    await until(() => {
      const { bottom, height } = document.querySelector("#waveform > div").getBoundingClientRect();
      return bottom <= at("play").getBoundingClientRect().top && Math.abs(height - at("waveform").clientHeight) <= 1;
    }, "the waveform to fit");
    return fits();
  },

  // A variant that fails after its first bytes, each time.
  fails: async () => {
    await until(() => !at("play").disabled && at("state").textContent === "MISS", "the button");
    at("play").click();
    await until(() => at("failure").textContent, "the failure");
    const [title] = at("failure").children;
    return [title.textContent, at("note").textContent, at("play").disabled, at("audio").hasAttribute("src"), fits()];
  },
};

// Firefox reports an error where ALSA has plugins, as those of PulseAudio, and there is no sound card.
const sound = name === "firefox" && (await openSound());
const engine = await openEngine(name);
const report = { version: engine.version };
const short = { bytes: readFileSync(file).toString("base64") };
const visit = async (state) => {
  // A fragment alone would not load the page.
  await engine.goto("about:blank");
  await engine.goto(`${url}#${state}`);
  await engine.evaluate(prepare);
};
for (const [width, height] of [
  [390, 844],
  [1280, 800],
]) {
  const seen = (report[width] = {});
  const step = async (it, argument) => {
    seen[it] = await engine.evaluate(STEPS[it], argument).catch((error) => {
      throw new Error(`${name}, ${width} pixels, ${it}: ${error.message}`);
    });
  };
  await engine.resize(width, height);
  await visit(`source=falling.wav&f=mp3&gain=-${width / 1000}`);
  await step("plays");
  await step("compares");
  await step("trims", { ...short, name: `short-${width}.wav` });
  await engine.resize(height, width);
  await step("turns");
  await engine.resize(width, height);
  await step("turns");
}
await engine.resize(390, 844);
await visit("source=falling.wav&f=mp3&br=320");
report.fails = await engine.evaluate(STEPS.fails);
await engine.close();
sound && sound.close();
printReport(report);

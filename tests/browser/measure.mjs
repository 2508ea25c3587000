// Usage: node measure.mjs ENGINE PORT OTHER_PORT VARIANTS
//
// Play variants of a service in an engine, while they are rendered and once they are stored, and print what it does
// as one JSON document. The services listen on these ports of this host; the other one has no store. VARIANTS is a JSON
// array of objects with the name, the path and the size of each variant, which is not stored yet, and the ways to play
// it. The pitch of the source tells the position, as `openSound` has it.

import { once } from "node:events";
import { createServer, request } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";

import { openEngine, openSound } from "./engines.mjs";
import { printReport } from "./parent.mjs";

const [name, storing, rendering, variants] = process.argv.slice(2);

// The first word of a path is what happens to the response: `held` sends half of it until it is released. `torn` breaks
// the first one off after a sixth, `again` each of them, and `failed` responds with a 500 afterwards.
const sizes = new Map(JSON.parse(variants).map(({ path, size }) => [path, size]));
let requests = [];
let release = () => {};

const server = createServer((incoming, outgoing) => {
  const [, way, path] = /^\/(\w*)(\/[^?]*)?/.exec(incoming.url);
  if (!path) {
    outgoing.setHeader("content-type", "text/html").end("<!doctype html><title>page</title>");
    return;
  }
  const { method } = incoming;
  const { range } = incoming.headers;
  requests.push([way, range ?? ""]);
  const first = requests.filter(([it]) => it === way).length === 1;
  if (way === "failed" && !first) {
    outgoing.writeHead(500).end();
    return;
  }
  const tears = way === "again" || (first && ["torn", "failed"].includes(way));
  let left = way === "held" ? sizes.get(path) >> 1 : tears ? Math.floor(sizes.get(path) / 6) : Infinity;
  const headers = range ? { range } : {};
  const port = ["again", "failed"].includes(way) ? rendering : storing;
  const asked = request({ port, path, method, headers, agent: false }, (response) => {
    outgoing.writeHead(response.statusCode, response.headers);
    outgoing.flushHeaders();
    response.on("data", (chunk) => {
      const part = chunk.subarray(0, left);
      left -= part.length;
      outgoing.write(part);
      if (left > 0) {
        return;
      }
      if (tears) {
        // What was written arrives first.
        asked.destroy();
        setTimeout(() => outgoing.destroy(), 300);
        return;
      }
      response.pause();
      release = () => {
        left = Infinity;
        outgoing.write(chunk.subarray(part.length));
        response.resume();
      };
    });
    response.on("end", () => left > 0 && outgoing.end());
  });
  asked.on("error", () => outgoing.destroy()).end();
  outgoing.on("close", () => asked.destroy());
}).listen(0, "127.0.0.1");
await once(server, "listening");

// Functions of the page.
function prepare() {
  window.pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
  window.until = async (condition, milliseconds = 8000) => {
    for (const end = performance.now() + milliseconds; !condition() && performance.now() < end; ) {
      await pause(20);
    }
    return condition();
  };
  window.open = async (url) => {
    window.audio?.pause();
    window.audio?.removeAttribute("src");
    window.audio?.load();
    window.audio = new Audio(url);
    audio.play().catch(() => {});
    return Boolean((await until(() => audio.currentTime > 1 || audio.error)) && !audio.error);
  };
  // Seek, and return whether the audio plays on from there.
  window.seek = async (time) => {
    audio.currentTime = time;
    await until(() => !audio.seeking, 4000);
    audio.paused && audio.play().catch(() => {});
    return Math.abs(audio.currentTime - time) < 0.5 && until(() => audio.currentTime > time + 0.7, 4000);
  };
  window.state = () => {
    const { currentTime, duration, ended, error } = audio;
    const length = duration === Infinity ? "infinite" : duration || null;
    return { time: currentTime, duration: length, ended, error: error && error.code };
  };
}

// Return by how much the sound is ahead of the position that is shown.
async function measureLead() {
  const found = [];
  for (let round = 0; round < 15; round += 1) {
    await sleep(30);
    const before = sound.position();
    const shown = await engine.evaluate(() => audio.currentTime);
    found.push((before + sound.position()) / 2 - shown);
  }
  return found.sort((a, b) => a - b)[7];
}

// Seek to each of these times. Return by how much the sound is ahead of it, or null if it does not play there.
async function measureSeeks(times) {
  const usual = await measureLead();
  const seeks = [];
  for (const time of times) {
    seeks.push((await engine.evaluate((it) => seek(it), time)) ? (await measureLead()) - usual : null);
  }
  return seeks;
}

// Play a variant while half of it has arrived, and seek back.
async function playStream(path) {
  const plays = await engine.evaluate((url) => open(url), `/held${path}`);
  const { duration } = await engine.evaluate(() => state());
  const seeks = await measureSeeks([0.1 * SECONDS]);
  release();
  await stored(path);
  return { plays, duration, seeks };
}

// Play a stored variant, and seek.
async function playStored(url) {
  const plays = await engine.evaluate((it) => open(it), url);
  const { duration } = await engine.evaluate(() => state());
  return { plays, duration, seeks: await measureSeeks([0.8, 0.2, 0.5].map((share) => share * SECONDS)) };
}

// Return the number of samples that the browser decodes, or null.
const decode = async (url) => {
  const bytes = await (await fetch(url)).arrayBuffer();
  const decoded = await new OfflineAudioContext(1, 1, 44100).decodeAudioData(bytes).catch(() => null);
  return decoded && decoded.length;
};

// Play a response that breaks off, and return how that ends, after how many seconds, and the later requests.
async function playTorn(url) {
  requests = [];
  const seen = await engine.evaluate(async (it) => {
    await open(it);
    const start = performance.now();
    await until(() => audio.error || audio.ended, 45_000);
    return { ...state(), seconds: (performance.now() - start) / 1000 + 1 };
  }, url);
  return { ...seen, requests: requests.slice(1).map(([, range]) => range) };
}

async function until(condition, milliseconds) {
  for (const end = Date.now() + milliseconds; Date.now() < end; await sleep(50)) {
    if (await condition()) {
      return;
    }
  }
}

const SECONDS = 30;
const sound = await openSound();
const engine = await openEngine(name);
const report = { version: engine.version, variants: {} };
const stored = (path) =>
  until(async () => {
    const response = await fetch(`http://127.0.0.1:${storing}${path}`, { method: "HEAD" });
    return response.headers.get("x-audio-proxy") === "HIT";
  }, 20_000);
await engine.goto(`http://127.0.0.1:${server.address().port}/`);
await engine.evaluate(prepare);
for (const { name, path, ways } of JSON.parse(variants)) {
  const seen = (report.variants[name] = {});
  for (const way of ways) {
    if (way === "held") {
      seen[way] = await playStream(path);
    } else if (way === "stored") {
      seen[way] = await playStored(`/hit${path}?2`);
      seen.length = await engine.evaluate(decode, `/hit${path}?3`);
    } else {
      seen[way] = await playTorn(`/${way}${path}?5`);
    }
  }
}
await engine.close();
sound.close();
printReport(report);

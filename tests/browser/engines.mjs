// Chromium, Firefox and WebKit with one small interface: each opens a page, runs functions in it, and sets its size.
//
// playwright-core drives Debian's Chromium, and Debian's Firefox by WebDriver BiDi. Its own WebKit is in no registry,
// so Debian's WebKitGTK is driven by WebDriver.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

import { chromium, firefox } from "playwright-core";

// Milliseconds that a script in a page may take.
const PATIENCE = 120_000;

const OPTIONS = {
  chromium: {
    executablePath: "/usr/bin/chromium-headless-shell",
    // No GPU, no click before audio, and no requests to servers other than the page's.
    args: ["--disable-gpu", "--disable-quic", "--disable-sync", "--autoplay-policy=no-user-gesture-required"],
    ignoreDefaultArgs: ["--mute-audio"],
  },
  firefox: {
    executablePath: "/usr/bin/firefox-esr",
    channel: "moz-firefox",
    firefoxUserPrefs: { "media.autoplay.default": 0 },
  },
};

// Without `openSound`, no engine finds or starts a sound card: audio plays by the clock.
process.env.PULSE_SERVER = "unix:/nowhere";

// Start one of the engines. `page.evaluate(function, argument)` returns the value or the value of the promise.
export async function openEngine(name) {
  if (name === "webkit") {
    return openWebKit();
  }
  const browser = await { chromium, firefox }[name].launch(OPTIONS[name]);
  const page = await browser.newPage({ reducedMotion: "reduce" });
  page.setDefaultTimeout(PATIENCE);
  return {
    version: browser.version(),
    goto: (url) => page.goto(url),
    evaluate: (script, argument) => page.evaluate(script, argument),
    resize: (width, height) => page.setViewportSize({ width, height }),
    close: () => browser.close(),
  };
}

// Start a sound card without sound, which the engines started after it use. `position` returns the position of what is
// heard: its pitch is 300 Hz at the start of the source, and 100 Hz more in each second.
export async function openSound() {
  const socket = join(tmpdir(), "pulse");
  const modules = ["module-null-sink rate=44100", `module-native-protocol-unix socket=${socket} auth-anonymous=1`];
  const words = ["-n", "--daemonize=no", "--exit-idle-time=-1", "--use-pid-file=no", "--disable-shm=yes"];
  const card = spawn("pulseaudio", [...words, ...modules.map((it) => `--load=${it}`)], { stdio: "ignore" });
  while (!existsSync(socket)) {
    await sleep(50);
  }
  process.env.PULSE_SERVER = `unix:${socket}`;
  const format = ["--format=float32le", "--rate=44100", "--channels=1", "--latency-msec=10"];
  const recorder = spawn("parec", ["--device=null.monitor", ...format], { stdio: ["ignore", "pipe", "ignore"] });
  let recorded = Buffer.alloc(0);
  recorder.stdout.on("data", (chunk) => (recorded = Buffer.concat([recorded, chunk]).subarray(-4 * 4096)));
  return {
    position() {
      const samples = new Float32Array(Uint8Array.from(recorded.subarray(0, recorded.length & ~3)).buffer);
      const rises = [];
      for (let at = 1; at < samples.length; at += 1) {
        if (samples[at - 1] < 0 && samples[at] >= 0) {
          rises.push(at - samples[at] / (samples[at] - samples[at - 1]));
        }
      }
      const hertz = ((rises.length - 1) * 44100) / (rises.at(-1) - rises[0]);
      return hertz / 100 - 3;
    },
    close() {
      recorder.kill();
      card.kill();
    },
  };
}

// Return a port that is free now.
async function findPort() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  return port;
}

// Start a virtual screen, and return it and its name. The server writes the name to descriptor 3.
async function openScreen() {
  const words = ["-displayfd", "3", "-screen", "0", "1400x1000x24", "-nolisten", "tcp"];
  const screen = spawn("Xvfb", words, { stdio: ["ignore", "ignore", "ignore", "pipe"] });
  const [number] = await once(screen.stdio[3].setEncoding("utf-8"), "data");
  return [screen, `:${number.trim()}`];
}

async function openWebKit() {
  const [screen, display] = await openScreen();
  const port = await findPort();
  const driver = spawn("WebKitWebDriver", [`--port=${port}`], {
    env: { ...process.env, DISPLAY: display, NO_AT_BRIDGE: "1" },
    stdio: ["ignore", "ignore", "ignore"],
  });
  const ask = async (method, path, body) => {
    const url = `http://127.0.0.1:${port}/session${path}`;
    const response = await fetch(url, { method, body: body && JSON.stringify(body) });
    const { value } = await response.json();
    if (!response.ok) {
      throw new Error(`${value.error}: ${value.message}`);
    }
    return value;
  };
  // Without a toolbar, the window can be as narrow as a telephone.
  const options = { args: ["--automation", "--full-screen", "--autoplay-policy=allow"] };
  const alwaysMatch = { timeouts: { script: PATIENCE }, "webkitgtk:browserOptions": options };
  let session;
  for (let round = 0; !session; round += 1) {
    // The driver does not say when it listens.
    session = await ask("POST", "", { capabilities: { alwaysMatch } }).catch(async (error) => {
      if (round > 100 || error.cause?.code !== "ECONNREFUSED") {
        throw error;
      }
      await sleep(50);
    });
  }
  const at = (method, path, body) => ask(method, `/${session.sessionId}${path}`, body);
  return {
    version: session.capabilities.browserVersion,
    goto: (url) => at("POST", "/url", { url }),
    async evaluate(script, argument) {
      const run =
        `const [argument, done] = arguments; Promise.resolve().then(() => (${script})(argument))` +
        ".then((value) => done({ value }), (error) => done({ error: String(error) }));";
      const { value, error } = await at("POST", "/execute/async", { script: run, args: [argument ?? null] });
      if (error) {
        throw new Error(error);
      }
      return value;
    },
    resize: (width, height) => at("POST", "/window/rect", { width, height }),
    async close() {
      await at("DELETE", "");
      driver.kill();
      screen.kill();
    },
  };
}

// Usage: node watch.mjs CHROMIUM URL BANDS SEEK SCREENSHOT
//
// Open a page of page/ and play its audio. During playback, measure the waveform on the page, which
// consists of BANDS bands, one above the other. Then seek to SEEK seconds, play on, and play the end.

import { chromium } from "playwright-core";

import { printReport } from "./parent.mjs";

const [executablePath, url, bands, target, screenshot] = process.argv.slice(2);

// Return the first drawn row, the last drawn row and the number of drawn rows, for each column of each
// band.
function measure(bands) {
  const { waveformCanvas } = window;
  const { width, height } = waveformCanvas;
  const { data } = waveformCanvas.getContext("2d").getImageData(0, 0, width, height);
  const rows = height / bands;
  // A pixel counts as drawn if at least a quarter of it is covered. The line across a silent column
  // covers half a pixel.
  const drawn = (x, y) => data[4 * (y * width + x) + 3] >= 64;
  const column = (top, x) => {
    const found = Array.from({ length: rows }, (_, row) => row).filter((row) => drawn(x, top + row));
    return [found.at(0) ?? null, found.at(-1) ?? null, found.length];
  };
  return Array.from({ length: bands }, (_, band) =>
    Array.from({ length: width }, (_, x) => column(band * rows, x)),
  );
}

const state = () => {
  const { currentTime, duration, ended, error, paused, readyState } = window.audio;
  return { currentTime, duration, ended, error: error && error.message, paused, readyState };
};

const browser = await chromium.launch({
  executablePath,
  args: [
    "--autoplay-policy=no-user-gesture-required",
    // No GPU, and no requests to servers other than the page's.
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
  ],
});

const consoleMessages = [];
const responses = [];

function listen(page) {
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) {
      consoleMessages.push(`${message.text()} ${message.location().url}`);
    }
  });
  page.on("response", (response) => {
    const { pathname } = new URL(response.url());
    responses.push([pathname, response.status(), response.headers()["x-audio-proxy"] ?? null]);
  });
}

async function watch(page) {
  // Wait until playback passes a position. Without a seek, this proves that the audio plays.
  const passes = (time) => page.waitForFunction((it) => window.audio.currentTime > it, time);
  const seek = (time) => page.evaluate((it) => void (window.audio.currentTime = it), time);

  await page.goto(url);
  await page.waitForFunction(() => window.waveformCanvas);
  await page.evaluate(() => {
    window.audio = document.querySelector("audio");
    return window.audio.play();
  });
  await passes(0.2);
  const before = await page.evaluate(state);
  const columns = await page.evaluate(measure, Number(bands));
  await page.screenshot({ path: screenshot });
  const after = await page.evaluate(state);
  await passes(after.currentTime + 0.2);
  const later = await page.evaluate(state);

  await seek(Number(target));
  await passes(Number(target) + 0.2);
  const afterSeek = await page.evaluate(state);
  await seek(afterSeek.duration - 0.3);
  await page.waitForFunction(() => window.audio.ended);
  const atEnd = await page.evaluate(state);
  return { columns, before, after, later, afterSeek, atEnd };
}

try {
  const page = await browser.newPage({ viewport: { width: 640, height: 640 } });
  page.setDefaultTimeout(120_000);
  listen(page);
  const broken = new Promise((_, reject) => page.on("pageerror", reject));
  const seen = await Promise.race([watch(page), broken]);
  await browser.close();
  printReport({ ...seen, consoleMessages, responses });
} catch (error) {
  await browser.close();
  throw new Error(`Messages on the console: ${consoleMessages.join("; ") || "nothing"}`, { cause: error });
}

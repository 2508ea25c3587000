// Usage: node screenshots.mjs PYTHON FOLDER
//
// Start the player with its samples and take screenshots: light, dark and on a telephone.

import { spawn } from "node:child_process";
import { mkdir, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { chromium } from "playwright-core";

const [python, folder] = process.argv.slice(2);

const PICTURES = [
  { name: "player-light", colorScheme: "light", width: 1200 },
  { name: "player-dark", colorScheme: "dark", width: 1200 },
  { name: "player-narrow", colorScheme: "light", width: 390, height: 780 },
];

// Resolve with the URL that the player prints.
function listening(player) {
  let printed = "";
  return new Promise((resolve, reject) => {
    player.stdout.setEncoding("utf-8").on("data", (text) => {
      printed += text;
      const [url] = /http:\S+/.exec(printed) ?? [];
      url && resolve(url);
    });
    player.on("exit", (code) => reject(new Error(`the player ended with ${code}: ${printed}`)));
  });
}

async function take(browser, url, { name, colorScheme, width, height }) {
  const page = await browser.newPage({
    colorScheme,
    viewport: { width, height: height ?? 900 },
    deviceScaleFactor: 1.5,
    isMobile: height !== undefined,
    hasTouch: height !== undefined,
    reducedMotion: "reduce",
  });
  await page.goto(url);
  await page.locator("#waveform[data-drawn]:not(.stale)").waitFor();
  const part = (option, index) => page.locator(`#${option}-${index}`);
  await page.locator("input[value=opus]").check({ force: true });
  await part("br", 0).fill("96");
  await part("t", 0).fill("4");
  await part("t", 1).fill("14");
  await part("fade", 0).fill("1.5");
  await part("fade", 1).fill("3");
  await part("norm", 0).selectOption("ebu");
  await page.waitForFunction(() => canonical.textContent.includes("norm") && !document.querySelector(".stale"));
  await page.locator("#loudness:not(.measuring) td:last-child").filter({ hasText: /\d/ }).first().waitFor();
  // Play first, which renders the variant; then seek, which is a HIT.
  await page.locator("#play").click();
  await page.locator("#waveform.seekable").waitFor();
  await page.locator("#seek").fill("6.4");
  await page.locator("#state[data-state=HIT]").waitFor();
  await page.waitForFunction(() => audio.currentTime > 6.45);
  await page.locator("#play").click();
  await page.evaluate(() => document.activeElement.blur());
  await page.evaluate(() => scrollTo(0, 0));
  await page.mouse.move(0, 0);
  await page.screenshot({ path: join(folder, `${name}.png`), fullPage: height === undefined });
  await page.close();
}

const home = await mkdtemp(join(tmpdir(), "player-"));
const player = spawn(python, ["-m", "examples.player", home], { stdio: ["ignore", "pipe", "inherit"] });
const browser = await chromium.launch({ executablePath: "/usr/bin/chromium-headless-shell", args: ["--disable-gpu"] });
try {
  const url = await listening(player);
  await mkdir(folder, { recursive: true });
  for (const picture of PICTURES) {
    await take(browser, url, picture);
  }
} finally {
  await browser.close();
  player.removeAllListeners("exit").kill();
  await rm(home, { recursive: true, force: true });
}

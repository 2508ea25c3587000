// Usage: node pages.mjs CHROMIUM VISITS
//
// VISITS is a JSON object of names, each with the name of a visitor and its arguments. Make the
// visits in one browser, and report what each visitor saw, or its error.

import { chromium } from "playwright-core";

import { printReport } from "./parent.mjs";
import { usePlayer } from "./player.mjs";
import { readSite } from "./site.mjs";
import { watch } from "./watch.mjs";

const [executablePath, visits] = process.argv.slice(2);
const visitors = { readSite, usePlayer, watch };

const browser = await chromium.launch({
  executablePath,
  // No GPU, and no requests to servers other than the page's.
  args: ["--disable-gpu", "--disable-quic", "--disable-sync"],
});

async function visit(visitor, words) {
  // No animations, in the midst of which a page could be measured.
  const options = { viewport: { width: 640, height: 640 }, reducedMotion: "reduce" };
  const context = await browser.newContext(options);
  context.setDefaultTimeout(120_000);
  const consoleMessages = [];
  try {
    return await visitors[visitor](context, consoleMessages, ...words);
  } catch (error) {
    return { error: `${error.stack}; messages on the console: ${consoleMessages.join("; ") || "none"}` };
  } finally {
    await context.close();
  }
}

const reports = {};
for (const [name, [visitor, ...words]] of Object.entries(JSON.parse(visits))) {
  reports[name] = await visit(visitor, words);
}
await browser.close();
printReport(reports);

// Barriers of a page, found by axe-core.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf-8");

// Return what axe-core finds on a page: the rule and the elements. The options are those of `axe.run`.
export async function findBarriers(page, options = {}) {
  // The page's content security policy does not apply here.
  if (await page.evaluate(() => !window.axe)) {
    await page.evaluate(AXE);
  }
  // The theme makes blocks that scroll focusable when it is told of their size, in the next frame.
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
  const violations = await page.evaluate(async (words) => (await axe.run(document, words)).violations, options);
  return violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(" ")}`);
}

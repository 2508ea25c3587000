// Barriers of a page, found by axe-core.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf-8");

// Return what axe-core finds on a page: the rule and the elements. The options are those of `axe.run`.
export async function findBarriers(page, options = {}) {
  // The page's content security policy does not apply here.
  await page.evaluate(AXE);
  const violations = await page.evaluate(async (words) => (await axe.run(document, words)).violations, options);
  return violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(" ")}`);
}

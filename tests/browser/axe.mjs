// Barriers of a page, found by axe-core.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf-8");

// Return what axe-core finds on a page: the rule and the elements.
export async function findBarriers(page) {
  // The page's content security policy does not apply here.
  await page.evaluate(AXE);
  const violations = await page.evaluate(async () => (await axe.run()).violations);
  return violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(" ")}`);
}

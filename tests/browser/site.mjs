import { findBarriers } from "./axe.mjs";

// The theme puts the button that copies a block of code into a landmark without a name.
const WIDE = { rules: { "landmark-unique": { enabled: false } } };
// On a narrow screen and in the dark, only these rules can give another result. These pages together have every kind of
// block, and axe takes as long for each page as everything else.
const NARROW = { runOnly: ["color-contrast", "link-in-text-block", "scrollable-region-focusable", "target-size"] };
const VARIED = ["index", "signing", "caches", "api"];

// Return what is wider than the screen, or cut.
function findProblems() {
  const width = document.documentElement.clientWidth;
  const problems = [];
  if (document.scrollingElement.scrollWidth > width) {
    problems.push("the page scrolls sideways");
  }
  for (const element of document.querySelectorAll("article :is(table, th, td)")) {
    const box = element.getBoundingClientRect();
    const text = element.textContent.trim().slice(0, 40);
    if (box.width && (box.right > width || element.scrollWidth > element.clientWidth + 2)) {
      problems.push(`cut: ${text}`);
    }
    if (box.width && box.width < 30) {
      problems.push(`too narrow: ${text}`);
    }
  }
  return problems;
}

// Open each page of the documentation's site, wide and light, then narrow and dark, and search for a word.
export async function readSite(context, consoleMessages, site, ...names) {
  const report = { problems: [], requests: [], linked: [], found: "" };
  const page = await context.newPage();
  page.on("request", (request) => /^(file|data|blob|about):/.test(request.url()) || report.requests.push(request.url()));
  for (const name of names) {
    await page.goto(`file://${site}/${name}.html`);
    for (const [width, colorScheme, rules] of [[1280, "light", WIDE], [390, "dark", NARROW]]) {
      await page.setViewportSize({ width, height: 900 });
      await page.emulateMedia({ colorScheme });
      const barriers = rules === WIDE || VARIED.includes(name) ? await findBarriers(page, rules) : [];
      for (const problem of [...(await page.evaluate(findProblems)), ...barriers]) {
        report.problems.push(`${name}, ${width} pixels: ${problem}`);
      }
    }
  }
  await page.setViewportSize({ width: 1280, height: 900 });
  await page.goto(`file://${site}/index.html`);
  report.linked = await page.evaluate(() =>
    [...document.querySelectorAll(".md-nav a")].map((link) => link.pathname.split("/").at(-1).replace(".html", "")),
  );
  // The theme listens for keys.
  await page.locator(".md-search__input").pressSequentially("VBRI");
  const result = page.locator(".md-search-result__link").first();
  await result.waitFor();
  report.found = await result.getAttribute("href");
  return report;
}

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

// Open each page of the documentation's site, wide and narrow, and search for a word.
export async function readSite(context, consoleMessages, site, ...names) {
  const report = { problems: [], requests: [], linked: [], found: "" };
  const page = await context.newPage();
  page.on("request", (request) => /^(file|data|blob|about):/.test(request.url()) || report.requests.push(request.url()));
  for (const name of names) {
    await page.goto(`file://${site}/${name}.html`);
    for (const width of [1280, 390]) {
      await page.setViewportSize({ width, height: 900 });
      for (const problem of await page.evaluate(findProblems)) {
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

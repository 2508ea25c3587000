import { chromium } from "playwright-core";
import { readdirSync } from "node:fs";
const [site, out, ...only] = process.argv.slice(2);
const pages = only.length ? only : readdirSync(site).filter(n=>n.endsWith(".html")).map(n=>n.slice(0,-5));
const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox","--disable-gpu"] });
for (const [width, scheme] of [[1280,"light"],[390,"light"],[1280,"dark"],[390,"dark"]]) {
  const ctx = await browser.newContext({ viewport:{width,height:900}, colorScheme: scheme});
  const page = await ctx.newPage();
  page.on("request", r => { if(!r.url().startsWith("file:")&&!r.url().startsWith("data:")) console.log("REQ", r.url()); });
  page.on("console", m => console.log("CONSOLE", m.text()));
  page.on("pageerror", m => console.log("ERR", String(m)));
  for (const name of pages) {
    await page.goto(`file://${site}/${name}.html`);
    const r = await page.evaluate(() => {
      const vw = document.documentElement.clientWidth, bad = [];
      if (document.scrollingElement.scrollWidth > vw) bad.push("PAGE "+document.scrollingElement.scrollWidth);
      for (const el of document.querySelectorAll(".md-content td, .md-content th, .md-content table, .md-typeset__scrollwrap, .md-content p, .md-content h1, .md-content h2, .md-content h3, .md-content li")) {
        const b = el.getBoundingClientRect();
        if (b.width && (el.scrollWidth > el.clientWidth + 1 || b.right > vw + 1)) bad.push(el.tagName+" "+el.scrollWidth+">"+el.clientWidth+" "+el.textContent.trim().slice(0,40));
        if (/T[DH]/.test(el.tagName) && el.textContent.trim().length>8 && b.width < 60) bad.push("NARROW "+b.width+" "+el.textContent.trim().slice(0,40));
        if (/T[DH]/.test(el.tagName) && b.height > 500) bad.push("TALL "+b.width+"x"+b.height+" "+el.textContent.trim().slice(0,40));
      }
      return bad;
    });
    if (r.length) console.log(name, width, r.slice(0,8), r.length);
    await page.screenshot({path: `${out}/${name}-${width}-${scheme}.png`, fullPage: true});
  }
  await ctx.close();
}
await browser.close();

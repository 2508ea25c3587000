// A page of the documentation: shows its Markdown.

import { marked } from "./marked.js";

const article = document.getElementById("article");
const [, name = "index"] = /([^/]*)\.html$/.exec(location.pathname) ?? [];

const response = await fetch(`${name}.md`);
article.innerHTML = marked.parse(await response.text());

// The anchors of headings, as GitHub makes them.
for (const heading of article.querySelectorAll("h1, h2, h3, h4")) {
  const words = heading.textContent.trim().toLowerCase();
  heading.id = words.replace(/[^\p{L}\p{N}_ -]/gu, "").replaceAll(" ", "-");
}
for (const link of article.querySelectorAll("a")) {
  const target = link.getAttribute("href");
  if (target.startsWith("../")) {
    // A file of the project, outside this folder.
    const [text, path] = [link.textContent, target.slice(3)];
    link.replaceWith(text === path ? text : `${text} (${path})`);
  } else if (!/^[a-z]+:/.test(target)) {
    link.setAttribute("href", target.replace(/\.md(?=$|#)/, ".html"));
  }
}
for (const cell of article.querySelectorAll("th:empty")) {
  cell.replaceWith(document.createElement("td"));
}
// What is wider than the screen scrolls, also by keys.
for (const block of article.querySelectorAll("pre, table")) {
  const box = document.createElement("div");
  Object.assign(box, { className: "wide", tabIndex: 0 });
  block.replaceWith(box);
  box.append(block);
}
document.title = `${article.querySelector("h1").textContent} · audioproxy`;
document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();

// The panel of the signed URL: the URL itself, and programs that print, fetch or embed it, to copy.

import { element } from "./element.mjs";

const at = (id) => document.getElementById(id);

const FORMS = {
  url: "URL",
  html: "HTML",
  curl: "curl",
  command: "audioproxy sign",
  python: "Python",
  javascript: "JavaScript",
};

export class SignedPanel {
  #form = "url";
  #signed = null;

  constructor() {
    const choices = Object.entries(FORMS).map(([form, name]) =>
      element("label", { title: `Show ${name} to copy` }, [
        element("input", { type: "radio", name: "form", value: form, checked: form === this.#form }),
        element("span", {}, [name]),
      ]),
    );
    at("forms").append(...choices);
    at("forms").addEventListener("input", ({ target }) => {
      this.#form = target.value;
      this.#draw();
    });
    at("copy").addEventListener("click", async ({ target }) => {
      await navigator.clipboard.writeText(this.#text);
      target.textContent = "Copied";
      setTimeout(() => (target.textContent = "Copy"), 1500);
    });
  }

  // Show a URL, or nothing.
  show(signed) {
    this.#signed = signed;
    at("address").hidden = !signed;
    this.#draw();
  }

  get #text() {
    return { url: this.#signed.url, ...this.#signed.snippets }[this.#form];
  }

  #draw() {
    const { url = "", canonical = "", key = "" } = this.#signed ?? {};
    const program = this.#form !== "url";
    at("url").hidden = program;
    at("url").replaceChildren(...parts(url));
    at("snippet").hidden = !program;
    at("snippet").textContent = this.#signed && program ? this.#text : "";
    at("open").href = url;
    at("canonical").textContent = canonical;
    at("key").textContent = key;
  }
}

// Return the parts of a URL in different styles: base, signature, options, source.
function parts(url) {
  const [, ...texts] = /^(.*?\/audio\/)([^/]+)(\/.*?)(\/(?:plain|enc)\/.*)$/.exec(url) ?? [];
  const names = ["faint", "signature", "options", "source"];
  return texts.map((text, index) => element("span", { class: names[index] }, [text]));
}

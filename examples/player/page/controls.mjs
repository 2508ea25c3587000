// The form: builds the controls, reads their values, and shows refusals beside the controls.

import { FORMATS, GROUPS } from "./fields.mjs";
import { element } from "./element.mjs";

export class Controls {
  #form;
  #fields = new Map();
  #formats;

  constructor(form, formats, changed) {
    this.#form = form;
    this.#formats = new Map(formats.map((format) => [format.token, format]));
    form.append(this.#formatPicker(formats), ...GROUPS.map((group) => this.#group(group)));
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", () => {
      this.#follow();
      changed();
    });
    this.#follow();
  }

  get format() {
    return this.#formats.get(this.#form.elements.f.value);
  }

  // Options that are set and that the format supports, with their values as in a URL.
  get options() {
    const options = { f: this.format.token };
    for (const [option, { parts }] of this.#fields) {
      const value = this.format.unavailable[option] ? "" : spell(parts);
      if (value) {
        options[option] = value;
      }
    }
    return options;
  }

  // Set the parts of an option, as if the user had typed them.
  fill(option, ...values) {
    this.#fields.get(option).parts.forEach((part, index) => part.set(values[index] ?? ""));
    this.#form.dispatchEvent(new Event("input"));
  }

  // Set all options, as an address has them. Return the names of those that cannot be set.
  restore(options) {
    const format = options.get("f");
    this.#form.elements.f.value = this.#formats.has(format) ? format : "mp3";
    // The format determines which values the parts offer.
    this.#follow();
    for (const [option, { parts }] of this.#fields) {
      const text = options.get(option) ?? "";
      const values = parts.length > 1 ? text.split(":") : [text];
      parts.forEach((part, index) => part.set(values[index] ?? ""));
    }
    this.#follow();
    const unused = [...options.keys()].filter((name) => this.options[name] !== options.get(name));
    unused.forEach((name) => this.#fields.get(name)?.parts.forEach((part) => part.set("")));
    this.#follow();
    return unused;
  }

  // Set the duration of the source as the maximum of the sliders along it.
  stretch(seconds) {
    for (const { parts } of this.#fields.values()) {
      for (const part of parts.filter(({ along }) => along)) {
        part.bound(0, seconds);
      }
    }
  }

  // Show a refusal beside its option.
  refuse(option, message) {
    for (const [name, { refusal, root }] of this.#fields) {
      const meant = name === option;
      refusal.textContent = meant ? message : "";
      root.classList.toggle("refused", meant);
      root.querySelectorAll("input, select").forEach((it) => (it.ariaInvalid = meant ? "true" : null));
    }
  }

  #formatPicker(formats) {
    const choices = formats.map(({ token }) =>
      element("label", { title: FORMATS[token] }, [
        element("input", { type: "radio", name: "f", value: token, checked: token === "mp3" }),
        element("span", {}, [token]),
      ]),
    );
    return element("fieldset", { class: "formats", "aria-describedby": "format-hint" }, [
      element("legend", {}, ["Format"]),
      element("div", { class: "segments" }, choices),
      element("p", { class: "hint", id: "format-hint", role: "status" }),
      element("p", { class: "hint" }, [
        "Press the name of an option, such as ",
        element("code", { class: "name" }, ["br"]),
        ", for what it does.",
      ]),
    ]);
  }

  #group({ title, note, fields }) {
    return element("section", { class: "group" }, [
      element("h3", {}, [title, ...(note ? [element("small", {}, [note])] : [])]),
      ...fields.map((field) => this.#field(field)),
    ]);
  }

  #field({ option, label, hint, parts: rows }) {
    const many = rows.length > 1;
    const about = `${option}-hint ${option}-refusal`;
    const parts = rows.map((row, index) => new Part(row, `${option}-${index}`, many ? row.label : label, about));
    const text = element("p", { class: "hint", id: `${option}-hint`, hidden: true });
    const refusal = element("p", { class: "refusal", id: `${option}-refusal` });
    const clear = element("button", { type: "button", class: "clear", "aria-label": `Leave out ${label}` }, ["×"]);
    clear.addEventListener("click", () => this.fill(option));
    const box = element("fieldset", { class: "field" }, [
      ...(many ? [element("legend", {}, [label, explainer(option, label, text)])] : []),
      ...parts.map((part) => part.root),
      clear,
    ]);
    if (!many) {
      const caption = parts[0].root.querySelector("label");
      const named = element("span", { class: "named" });
      caption.replaceWith(named);
      named.append(caption, explainer(option, label, text));
    }
    const root = element("div", { class: many ? "option many" : "option", "data-option": option }, [
      box,
      text,
      refusal,
    ]);
    this.#fields.set(option, { hint, parts, refusal, root, text });
    return root;
  }

  // Enable and disable controls by the format and by the other controls.
  #follow() {
    const { unavailable, ...format } = this.format;
    document.getElementById("format-hint").textContent = FORMATS[format.token];
    for (const [option, { hint, parts, root, text }] of this.#fields) {
      const why = unavailable[option];
      text.textContent = why ? `Not available: ${why}.` : typeof hint === "string" ? hint : hint(format);
      root.title = text.textContent;
      parts.forEach((part) => part.suit(format));
      // Without normalization, its targets have no effect, so they are disabled.
      const [first] = parts;
      const pointless = first.chooses && first.value === "";
      parts.forEach((part) => part.allow(!why && (part === first || !pointless)));
      root.classList.toggle("set", !why && spell(parts) !== "");
    }
  }
}

// Return the name of an option as a button that shows and hides its hint.
function explainer(option, label, text) {
  const name = `${option}: what is ${label}?`;
  const button = element("button", { type: "button", class: "name", "aria-label": name }, [option]);
  const set = (open) => {
    text.hidden = !open;
    button.setAttribute("aria-expanded", open);
  };
  button.setAttribute("aria-controls", text.id);
  button.addEventListener("click", () => set(text.hidden));
  set(false);
  return button;
}

// Join the parts of a value. Empty parts before a set part get their defaults.
function spell(parts) {
  if (parts[0].chooses && !parts[0].value) {
    return "";
  }
  const last = parts.findLastIndex((part) => part.value !== "");
  return parts
    .slice(0, last + 1)
    .map((part) => part.value || part.otherwise)
    .join(":");
}

// One input. If its value is a number, a slider is beside it.
class Part {
  #input;
  #slider = null;
  #choices;
  #bounds;
  #step;
  #words;

  constructor({ choices, words, text, unit, range, bounds, step, start, along, otherwise }, id, label, about) {
    this.chooses = choices !== undefined;
    this.otherwise = otherwise ?? "";
    this.along = along;
    this.#choices = choices;
    this.#bounds = bounds;
    this.#step = step;
    this.#words = words;
    const spoken = [label, unit].filter(Boolean).join(", ");
    if (choices) {
      this.#input = element("select", { id, "aria-describedby": about });
      this.#offer(Array.isArray(choices) ? choices : []);
    } else {
      const kind = text && !unit ? { maxlength: 255, spellcheck: false } : { inputmode: "decimal", class: "number" };
      const placeholder = text ?? this.otherwise;
      this.#input = element("input", { id, type: "text", placeholder, "aria-describedby": about, ...kind });
    }
    const children = [element("label", { for: id }, [label])];
    if (range || bounds) {
      const neutral = start ?? (Number(otherwise) || 0);
      this.#slider = element("input", {
        type: "range",
        "aria-label": `${spoken}, slider`,
        "aria-describedby": about,
        "data-start": neutral,
      });
      this.bound(...(range ?? [0, 1]));
      this.#slider.addEventListener("input", () => (this.#input.value = this.#slider.value));
      children.push(this.#slider);
    }
    children.push(this.#input);
    if (!choices && (unit || this.#slider)) {
      children.push(element("span", { class: "unit", "aria-hidden": "true" }, [unit ?? ""]));
    }
    this.#input.addEventListener("input", () => this.#settle());
    this.root = element("div", { class: this.#slider ? "part slides" : "part" }, children);
    this.#settle();
  }

  get value() {
    return this.#input.value.trim();
  }

  set(value) {
    this.#input.value = value;
    // A select that does not offer the value shows nothing.
    this.value || (this.#input.value = "");
    this.#settle();
  }

  allow(allowed) {
    this.root.classList.toggle("idle", !allowed);
    this.#input.disabled = !allowed;
    this.#slider && (this.#slider.disabled = !allowed);
  }

  bound(low, high) {
    Object.assign(this.#slider, { min: low, max: high, step: this.#step });
    this.#settle();
  }

  // Offer the values that a format accepts.
  suit(format) {
    if (typeof this.#choices === "string") {
      this.#offer(format[this.#choices]);
    }
    const bounds = this.#bounds && format[this.#bounds];
    if (bounds) {
      this.#step = this.#bounds === "q" && !format.q_whole ? 0.1 : 1;
      this.bound(...bounds);
    } else {
      this.#settle();
    }
  }

  #offer(choices) {
    const kept = this.#input.value;
    const options = choices.map((choice, index) => {
      return element("option", { value: choice }, [String(this.#words?.[index] ?? choice)]);
    });
    this.#input.replaceChildren(element("option", { value: "" }, ["–"]), ...options);
    this.#input.value = choices.map(String).includes(kept) ? kept : "";
  }

  // Move the slider to the number in the input.
  #settle() {
    if (this.#slider) {
      const slider = this.#slider;
      slider.classList.toggle("unset", this.value === "");
      slider.value = this.value === "" ? slider.dataset.start : this.value;
      const share = (slider.value - slider.min) / (slider.max - slider.min || 1);
      slider.style.setProperty("--share", share);
    }
  }
}

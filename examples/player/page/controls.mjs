// The form: builds the controls, reads their values, and shows refusals beside the controls.

import { GROUPS } from "./fields.mjs";
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
    for (const [option, { box, parts }] of this.#fields) {
      const value = box.disabled ? "" : spell(parts);
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

  // Set the duration of the source as the maximum of the sliders along it.
  stretch(seconds) {
    for (const { parts } of this.#fields.values()) {
      for (const part of parts.filter(({ along }) => along)) {
        part.bound(0, seconds);
      }
    }
  }

  // Show a refusal beside its option. Return whether there is a control for that option.
  refuse(option, message) {
    for (const [name, { refusal, root }] of this.#fields) {
      const meant = name === option;
      refusal.textContent = meant ? message : "";
      root.classList.toggle("refused", meant);
      root.querySelectorAll("input, select").forEach((it) => (it.ariaInvalid = meant ? "true" : null));
    }
    return this.#fields.has(option);
  }

  #formatPicker(formats) {
    const choices = formats.map(({ token }) =>
      element("label", {}, [
        element("input", { type: "radio", name: "f", value: token, checked: token === "mp3" }),
        element("span", {}, [token]),
      ]),
    );
    return element("fieldset", { class: "formats" }, [
      element("legend", {}, ["Format"]),
      element("div", { class: "segments" }, choices),
    ]);
  }

  #group({ title, note, fields }) {
    return element("section", { class: "group" }, [
      element("h3", {}, [title, ...(note ? [element("small", {}, [note])] : [])]),
      ...fields.map((field) => this.#field(field)),
    ]);
  }

  #field({ option, label, parts: rows }) {
    const many = rows.length > 1;
    const parts = rows.map((row, index) => new Part(row, `${option}-${index}`, many ? row.label : label));
    const code = element("code", {}, [option]);
    const refusal = element("p", { class: "refusal", role: "alert", id: `${option}-refusal` });
    const reason = element("p", { class: "unseen", id: `${option}-reason` });
    const clear = element("button", { type: "button", class: "clear", "aria-label": `Leave out ${label}` }, ["×"]);
    clear.addEventListener("click", () => this.fill(option));
    const box = element("fieldset", { class: "field", "aria-describedby": `${option}-reason ${option}-refusal` }, [
      ...(many ? [element("legend", {}, [label, code])] : []),
      ...parts.map((part) => part.root),
      clear,
    ]);
    many || parts[0].root.querySelector("label").append(code);
    const root = element("div", { class: many ? "option many" : "option", "data-option": option }, [
      box,
      reason,
      refusal,
    ]);
    this.#fields.set(option, { box, parts, reason, refusal, root });
    return root;
  }

  // Enable and disable controls by the format and by the other controls.
  #follow() {
    const { unavailable, ...format } = this.format;
    for (const [option, { box, parts, reason, root }] of this.#fields) {
      const why = unavailable[option] ?? "";
      box.disabled = Boolean(why);
      root.title = why;
      reason.textContent = why;
      parts.forEach((part) => part.suit(format));
      // Without normalization, its targets have no effect, so they are disabled.
      if (parts.length > 1 && parts[0].chooses) {
        parts.slice(1).forEach((part) => part.allow(parts[0].value !== ""));
      }
      root.classList.toggle("set", !why && spell(parts) !== "");
    }
  }
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

  constructor({ choices, words, text, unit, range, bounds, step, start, along, otherwise }, id, label) {
    this.chooses = choices !== undefined;
    this.otherwise = otherwise ?? "";
    this.along = along;
    this.#choices = choices;
    this.#bounds = bounds;
    this.#step = step;
    this.#words = words;
    const spoken = [label, unit].filter(Boolean).join(", ");
    if (choices) {
      this.#input = element("select", { id });
      this.#offer(Array.isArray(choices) ? choices : []);
    } else {
      const kind = text && !unit ? { maxlength: 255, spellcheck: false } : { inputmode: "decimal", class: "number" };
      this.#input = element("input", { id, type: "text", placeholder: text ?? this.otherwise, ...kind });
    }
    const children = [element("label", { for: id }, [label])];
    if (range || bounds) {
      const neutral = start ?? (Number(otherwise) || 0);
      this.#slider = element("input", { type: "range", "aria-label": `${spoken}, slider`, "data-start": neutral });
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

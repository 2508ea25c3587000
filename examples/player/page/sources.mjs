// The choice of a source: a file of the list, or a path or URL that the user types.

import { decode, encode } from "./address.mjs";

const at = (id) => document.getElementById(id);

// The nocturne has the most interesting waveform of the samples.
const FAVORITE = "nocturne.flac";

export class SourcePicker {
  #list = at("source");
  #field = at("own");
  #value = "";

  constructor({ sources, complete }, changed) {
    sources.forEach((row) => this.add(row));
    if (!complete) {
      this.#list.add(Object.assign(new Option("The folder has more files than this list"), { disabled: true }));
    }
    const [first = { source: "" }] = sources;
    this.fallback = sources.some(({ source }) => source === FAVORITE) ? FAVORITE : first.source;
    this.#list.addEventListener("change", () => {
      this.value = this.#list.value;
      changed();
    });
    at("picker").addEventListener("submit", (event) => {
      event.preventDefault();
      const typed = this.#field.value.trim();
      if (typed) {
        this.value = encode(typed);
        changed();
      }
    });
  }

  // Add a source to the list.
  add({ source, name }) {
    this.#list.add(new Option(name, source));
    this.#list.disabled = false;
  }

  // The source, percent-encoded.
  get value() {
    return this.#value;
  }

  set value(source) {
    this.#value = source;
    const listed = [...this.#list.options].some((option) => option.value === source && !option.disabled);
    // The first option of the list stands for the field.
    this.#list.value = listed ? source : "";
    this.#field.value = listed ? "" : decode(source);
  }

  // Name for display.
  get name() {
    return decode(this.#value);
  }
}

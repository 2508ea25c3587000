// Loudness of the source and of the result, in the table beside the waveform.

import { query } from "./address.mjs";

const at = (id) => document.getElementById(id);

// Milliseconds without a change before a measurement begins: it decodes the whole audio.
const PATIENCE = 400;
const [SOURCE, RESULT] = [0, 1];

const NOTES = {
  measuring: "Measuring …",
  measured: "The result is measured before its encoder.",
  short: "–: silence, or less than 3 s of audio.",
};

export class LoudnessTable {
  #known = new Map();
  #shaping;

  // Use the names of the options that change the audio.
  constructor(shaping) {
    this.#shaping = shaping;
  }

  // Measure what is not known yet. The last values stay visible meanwhile.
  async show(source, options, signal) {
    const names = this.#shaping.filter((name) => options[name]);
    const shaping = Object.fromEntries(names.map((name) => [name, options[name]]));
    const queries = [query({ source })];
    if (options.f === "peaks") {
      this.#fill(RESULT, {});
    } else {
      // The loudness before the encoder is that of every format. wav has every sample rate.
      queries.push(query({ source, f: "wav", ...shaping }));
    }
    if (!queries.every((it) => this.#known.has(it))) {
      this.#note("measuring");
      await new Promise((resolve) => setTimeout(resolve, PATIENCE));
    }
    const found = await Promise.all(queries.map((it, column) => this.#measure(it, column, signal)));
    const missing = found.some((loudness) => Object.values(loudness).includes(null));
    const [failure] = found.filter(({ message }) => message);
    this.#note(missing ? "short" : "measured", failure?.message);
  }

  clear() {
    [SOURCE, RESULT].forEach((column) => this.#fill(column, {}));
    this.#note("");
  }

  async #measure(it, column, signal) {
    if (!this.#known.has(it)) {
      signal.throwIfAborted();
      const response = await fetch(`loudness?${it}`, { signal });
      const loudness = await response.json();
      if (!response.ok) {
        this.#fill(column, {});
        return loudness;
      }
      this.#known.set(it, loudness);
    }
    this.#fill(column, this.#known.get(it));
    return this.#known.get(it);
  }

  #fill(column, loudness) {
    for (const row of at("loudness").querySelectorAll("[data-value]")) {
      const value = loudness[row.dataset.value];
      row.querySelectorAll("td")[column].textContent = value?.toFixed(1).replace("-", "−") ?? "–";
    }
  }

  #note(note, failure) {
    at("loudness").classList.toggle("measuring", note === "measuring");
    at("loudness-note").textContent = failure ?? NOTES[note] ?? "";
  }
}

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
    const queries = [query({ source })];
    if (options.f === "peaks") {
      this.#fill(RESULT, {});
    } else {
      queries.push(shaped(source, options, this.#shaping));
    }
    if (!queries.every((it) => this.#known.has(it))) {
      this.#note("measuring");
      await new Promise((resolve) => setTimeout(resolve, PATIENCE));
    }
    const found = await Promise.all(queries.map((it, column) => this.#show(it, column, signal)));
    const missing = found.some((loudness) => Object.values(loudness).includes(null));
    const [failure] = found.filter(({ message }) => message);
    this.#note(missing ? "short" : "measured", failure?.message);
  }

  clear() {
    [SOURCE, RESULT].forEach((column) => this.#fill(column, {}));
    this.#note("");
  }

  // Return the integrated loudness of the result, and of the same part of the source, or null.
  async compare(source, options, signal) {
    const queries = [shaped(source, options, this.#shaping), shaped(source, options, ["t"])];
    const found = await Promise.all(queries.map((it) => this.#measure(it, signal)));
    const [result, original] = found.map(({ integrated }) => integrated ?? null);
    return result === null || original === null ? null : { result, source: original };
  }

  async #show(it, column, signal) {
    const loudness = await this.#measure(it, signal);
    this.#fill(column, loudness);
    return loudness;
  }

  // Return the loudness, or the error document of a refusal.
  async #measure(it, signal) {
    if (!this.#known.has(it)) {
      signal.throwIfAborted();
      const response = await fetch(`loudness?${it}`, { signal });
      const document = await response.json();
      if (!response.ok) {
        return document;
      }
      this.#known.set(it, document);
    }
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

// Return the query of a source's loudness with the options of these names. The loudness before the encoder is
// that of every format. wav has every sample rate.
function shaped(source, options, names) {
  const given = names.filter((name) => options[name]).map((name) => [name, options[name]]);
  return query({ source, f: "wav", ...Object.fromEntries(given) });
}

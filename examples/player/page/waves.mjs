// Waveforms: reads the documents of f:peaks and draws them with wavesurfer.js. wavesurfer.js gets the peaks
// and the duration, so it fetches and decodes nothing itself.

import WaveSurfer from "./wavesurfer.js";

const HEADER_BYTES = 24;

// Read either serialization. Return its fields, and for each channel the larger absolute value of each
// pixel, from 0 to 1.
export async function readWaveform(response) {
  const json = response.headers.get("content-type") === "application/json";
  const document = json ? await response.json() : readBinary(await response.arrayBuffer());
  const { bits, channels, data, length } = document;
  const peaks = Array.from({ length: channels }, (_, channel) =>
    Float32Array.from({ length }, (_, pixel) => {
      const index = 2 * (pixel * channels + channel);
      return Math.max(-data[index], data[index + 1]) / 2 ** (bits - 1);
    }),
  );
  return { ...document, peaks };
}

function readBinary(buffer) {
  const [, flags, sample_rate, samples_per_pixel, length, channels] = new Int32Array(buffer, 0, 6);
  const bits = flags & 1 ? 8 : 16;
  const data = new (bits === 8 ? Int8Array : Int16Array)(buffer, HEADER_BYTES);
  return { bits, channels, data, length, sample_rate, samples_per_pixel };
}

// Cut the pixels after the end of the audio: a waveform has whole pixels, which may exceed it.
function cut({ peaks, samples_per_pixel, sample_rate }, duration) {
  const pixels = Math.ceil((duration * sample_rate) / samples_per_pixel);
  return peaks.map((channel) => channel.subarray(0, Math.max(1, pixels)));
}

export function span({ length, samples_per_pixel, sample_rate }) {
  return (length * samples_per_pixel) / sample_rate;
}

class Drawing {
  #surfer;
  #names;

  constructor(container, { wave, progress, ...options }) {
    this.#names = { waveColor: wave, progressColor: progress };
    this.container = container;
    this.#surfer = WaveSurfer.create({
      container,
      // That of the container, whenever it changes.
      height: "auto",
      cursorWidth: 0,
      barRadius: 3,
      interact: false,
      // The content security policy allows its style sheet by the nonce of the page's own.
      cspNonce: document.querySelector("link[nonce]").nonce,
      ...this.#colours(),
      ...options,
    });
    for (const condition of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) {
      matchMedia(condition).addEventListener("change", () => this.#surfer.setOptions(this.#colours()));
    }
  }

  async draw(waveform, duration) {
    this.duration = duration;
    await this.#surfer.load("", cut(waveform, duration), duration).catch((error) => {
      // A newer waveform cancels the load. That is not an error.
      if (error.name !== "AbortError") {
        throw error;
      }
    });
    this.container.dataset.drawn = "";
  }

  // Show nothing until the next waveform.
  clear() {
    delete this.container.dataset.drawn;
    this.container.classList.remove("stale");
  }

  // Color the part before a time.
  move(time) {
    this.#surfer.setTime(time);
  }

  // A canvas cannot use the variables of the style sheet, so the colors are read from it.
  #colours() {
    const style = getComputedStyle(document.documentElement);
    const named = Object.entries(this.#names);
    return Object.fromEntries(named.map(([key, name]) => [key, style.getPropertyValue(name).trim()]));
  }
}

// Waveform of the variant. A click seeks.
export class Stage extends Drawing {
  constructor(container, seek) {
    super(container, { wave: "--wave", progress: "--accent", barWidth: 3, barGap: 2 });
    container.addEventListener("click", ({ clientX }) => {
      const { left, width } = container.getBoundingClientRect();
      seek((this.duration * (clientX - left)) / width);
    });
  }
}

// Waveform of the whole source.
export class Overview extends Drawing {
  constructor(container) {
    super(container, { wave: "--wave", progress: "--wave", barWidth: 2, barGap: 1 });
  }
}

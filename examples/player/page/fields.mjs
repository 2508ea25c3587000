// Table of the controls: the label of each option, and the parts of its value.
//
// A part without `choices` is a number or text. `range` is the range of its slider. The field beside the
// slider accepts other values too; the service refuses invalid ones. The values that a format accepts are
// not in this table: they come from the service, and the hint of an option may be a function of them.

const seconds = { unit: "s", range: [0, 10], step: 0.05 };

export const FORMATS = {
  mp3: "MP3: lossy, played by everything.",
  opus: "Opus in Ogg: lossy, the best sound at low bit rates.",
  ogg: "Vorbis in Ogg: lossy.",
  aac: "AAC as a bare stream (ADTS): lossy, without tags or a length.",
  m4a: "AAC in fragmented MP4: lossy, played by everything of today.",
  flac: "FLAC: lossless, half the size of wav.",
  wav: "WAV: uncompressed.",
  peaks: "The waveform as data, without audio. A page draws it as this one does.",
};

// What the lowest and the highest quality of a format mean.
const QUALITY = {
  mp3: ["best", "smallest file"],
  opus: ["fastest", "most thorough compression"],
  flac: ["fastest", "smallest file"],
};
const USUAL_QUALITY = ["smallest file", "best"];

export const GROUPS = [
  {
    title: "Encoding",
    fields: [
      {
        option: "br",
        label: "Bit rate",
        hint: ({ token, br }) =>
          `More kilobits a second sound better and need more space. ${token}: ${br?.join(" to ")} kbps. Excludes a quality.`,
        parts: [{ unit: "kbps", bounds: "br", step: 1 }],
      },
      {
        option: "q",
        label: "Quality",
        hint: ({ token, q }) => {
          const [low, high] = QUALITY[token] ?? USUAL_QUALITY;
          return `The encoder's own scale. ${token}: ${q?.[0]} (${low}) to ${q?.[1]} (${high}). Excludes a bit rate.`;
        },
        parts: [{ bounds: "q", step: 0.1 }],
      },
      {
        option: "sr",
        label: "Sample rate",
        hint: ({ token, sr }) => `Samples a second. ${token}: ${sr[0]} to ${sr.at(-1)} Hz. Unset: as the source.`,
        parts: [{ choices: "sr", unit: "Hz" }],
      },
      {
        option: "bd",
        label: "Bit depth",
        hint: ({ token, bd }) => `Bits of a sample. ${token}: ${bd?.join(", ")} (f is floating point). Unset: as the source.`,
        parts: [{ choices: "bd", unit: "bit" }],
      },
      {
        option: "ch",
        label: "Channels",
        hint: "1 mixes to mono, 2 to stereo. Unset: as the source, at most 2; a waveform has 1.",
        parts: [{ choices: ["1", "2"], words: ["mono", "stereo"] }],
      },
    ],
  },
  {
    title: "Time",
    fields: [
      {
        option: "t",
        label: "Trim",
        hint: "The part of the source to render: its start and its duration in seconds, with at most 3 decimals. Unset: all.",
        parts: [
          { label: "Start", ...seconds, along: true, otherwise: "0" },
          { label: "Duration", ...seconds, along: true },
        ],
      },
      {
        option: "fade",
        label: "Fade",
        hint: "Seconds of the fade-in and the fade-out, within the trimmed part: 0 (no fade) to its duration.",
        parts: [
          { label: "In", ...seconds, otherwise: "0" },
          { label: "Out", ...seconds },
        ],
      },
    ],
  },
  {
    title: "Level",
    fields: [
      {
        option: "gain",
        label: "Gain",
        hint: "A fixed change of level: -60 to 60 dB. 6 dB double the amplitude. Peaks above 0 dBFS clip.",
        parts: [{ unit: "dB", range: [-24, 24], step: 0.5, start: 0 }],
      },
      {
        option: "norm",
        label: "Loudness",
        hint:
          "Normalizes while it renders, so the level may move within the programme. Target: -70 to -5 LUFS, " +
          "true peak: -9 to 0 dBTP, loudness range: 1 to 50 LU.",
        parts: [
          { choices: ["ebu"], words: ["EBU R 128"], label: "Normalize" },
          { label: "Target", unit: "LUFS", range: [-32, -8], step: 0.5, otherwise: "-16" },
          { label: "Peak", unit: "dBTP", range: [-9, 0], step: 0.1, otherwise: "-1.5" },
          { label: "Range", unit: "LU", range: [1, 30], step: 0.5, otherwise: "11" },
        ],
      },
      {
        option: "enhance",
        label: "Enhance",
        hint: "voice is for speech: high-pass filter, less noise, softer s, compressor and limiter.",
        parts: [{ choices: ["voice"] }],
      },
    ],
  },
  {
    title: "Waveform",
    note: "shown above",
    fields: [
      {
        option: "pts",
        label: "Pixels",
        hint: "Columns of the waveform, each with a minimum and a maximum: 1 to 65536.",
        parts: [{ range: [50, 2000], step: 10, otherwise: "800" }],
      },
      {
        option: "pk_fmt",
        label: "Form",
        hint: "json is text for any program. dat is the smaller binary form of audiowaveform. Unset: json.",
        parts: [{ choices: ["json", "dat"] }],
      },
      {
        option: "pk_bits",
        label: "Bits",
        hint: "Bits of each value: 8 (-128 to 127) or 16 (-32768 to 32767). Unset: 16.",
        parts: [{ choices: ["8", "16"] }],
      },
    ],
  },
  {
    title: "Delivery",
    fields: [
      {
        option: "dl",
        label: "Download as",
        hint: "Browsers save the variant under this name instead of playing it: at most 255 bytes, no slash.",
        parts: [{ text: "a file name" }],
      },
      {
        option: "cb",
        label: "Cache buster",
        hint: "Any text of at most 255 bytes. Another text is another variant, which is rendered again.",
        parts: [{ text: "anything" }],
      },
      {
        option: "exp",
        label: "Expires in",
        hint: "Seconds from now until the URL stops working: a whole number from 0. Unset: never.",
        parts: [{ unit: "s", text: "never" }],
      },
    ],
  },
];

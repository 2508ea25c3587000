// Table of the controls: the label of each option, and the parts of its value.
//
// A part without `choices` is a number or text. `range` is the range of its slider. The field beside the
// slider accepts other values too; the service refuses invalid ones. The values that a format accepts are
// not in this table: they come from the service.

const seconds = { unit: "s", range: [0, 10], step: 0.05 };

export const GROUPS = [
  {
    title: "Encoding",
    fields: [
      { option: "br", label: "Bit rate", parts: [{ unit: "kbps", bounds: "br", step: 1 }] },
      { option: "q", label: "Quality", parts: [{ bounds: "q", step: 0.1 }] },
      { option: "sr", label: "Sample rate", parts: [{ choices: "sr", unit: "Hz" }] },
      { option: "bd", label: "Bit depth", parts: [{ choices: "bd", unit: "bit" }] },
      { option: "ch", label: "Channels", parts: [{ choices: ["1", "2"], words: ["mono", "stereo"] }] },
    ],
  },
  {
    title: "Time",
    fields: [
      {
        option: "t",
        label: "Trim",
        parts: [
          { label: "Start", ...seconds, along: true, otherwise: "0" },
          { label: "Duration", ...seconds, along: true },
        ],
      },
      {
        option: "fade",
        label: "Fade",
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
      { option: "gain", label: "Gain", parts: [{ unit: "dB", range: [-24, 24], step: 0.5, start: 0 }] },
      {
        option: "norm",
        label: "Loudness",
        parts: [
          { choices: ["ebu"], words: ["EBU R 128"], label: "Normalize" },
          { label: "Target", unit: "LUFS", range: [-32, -8], step: 0.5, otherwise: "-16" },
          { label: "Peak", unit: "dBTP", range: [-9, 0], step: 0.1, otherwise: "-1.5" },
          { label: "Range", unit: "LU", range: [1, 30], step: 0.5, otherwise: "11" },
        ],
      },
      { option: "enhance", label: "Enhance", parts: [{ choices: ["voice"] }] },
    ],
  },
  {
    title: "Waveform",
    note: "shown above",
    fields: [
      { option: "pts", label: "Pixels", parts: [{ range: [50, 2000], step: 10, otherwise: "800" }] },
      { option: "pk_fmt", label: "Form", parts: [{ choices: ["json", "dat"] }] },
      { option: "pk_bits", label: "Bits", parts: [{ choices: ["8", "16"] }] },
    ],
  },
  {
    title: "Delivery",
    fields: [
      { option: "dl", label: "Download as", parts: [{ text: "a file name" }] },
      { option: "cb", label: "Cache buster", parts: [{ text: "anything" }] },
      { option: "exp", label: "Expires in", parts: [{ unit: "s", text: "never" }] },
    ],
  },
];

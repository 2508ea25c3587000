// Code that both pages share: URL parameters, and the signal that the waveform is complete.

const parameters = new URLSearchParams(location.search);

export const waveform = parameters.get("waveform");
export const container = document.getElementById("waveform");
export const audio = document.querySelector("audio");
audio.src = parameters.get("sound");

// The test reads the pixels of the canvas that it finds here.
export function show(canvas) {
  window.drawing = canvas;
}

// Code that both pages share: URL parameters, and the signal that the waveform is complete.

const parameters = new URLSearchParams(location.search);

export const waveform = parameters.get("waveform");
export const container = document.getElementById("waveform");
export const audio = document.querySelector("audio");
audio.src = parameters.get("sound");

// Make the canvas available to the test, which reads its pixels.
export function publishCanvas(canvas) {
  window.waveformCanvas = canvas;
}

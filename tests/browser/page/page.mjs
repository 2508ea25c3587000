// What both pages have: the parameters in their address, and the way to say that all is drawn.

const parameters = new URLSearchParams(location.search);

export const waveform = parameters.get("waveform");
export const container = document.getElementById("waveform");
export const audio = document.querySelector("audio");
audio.src = parameters.get("sound");

// The test reads the pixels of the canvas that it finds here.
export function show(canvas) {
  window.drawing = canvas;
}

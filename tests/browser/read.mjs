// Usage: node read.mjs URL...
//
// Read each waveform with waveform-data.js, and print the parsed waveforms as one JSON array.

import WaveformData from "waveform-data";

import { printReport } from "./parent.mjs";

function describe(waveform) {
  const channels = Array.from({ length: waveform.channels }, (_, index) => waveform.channel(index));
  return {
    bits: waveform.bits,
    channels: waveform.channels,
    duration: waveform.duration,
    length: waveform.length,
    sample_rate: waveform.sample_rate,
    scale: waveform.scale,
    minima: channels.map((channel) => channel.min_array()),
    maxima: channels.map((channel) => channel.max_array()),
  };
}

async function read(url) {
  const response = await fetch(url);
  if (!response.ok) {
    throw new Error(`${response.status}: ${await response.text()}`);
  }
  const json = response.headers.get("content-type") === "application/json";
  const waveform = WaveformData.create(json ? await response.json() : await response.arrayBuffer());
  return {
    ...describe(waveform),
    at_half: waveform.at_time(waveform.duration / 2),
  };
}

printReport(await Promise.all(process.argv.slice(2).map(read)));

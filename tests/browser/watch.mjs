// Return the first drawn row, the last drawn row and the number of drawn rows, for each column of each
// band.
function measure(bands) {
  const { waveformCanvas } = window;
  const { width, height } = waveformCanvas;
  const { data } = waveformCanvas.getContext("2d").getImageData(0, 0, width, height);
  const rows = height / bands;
  // A pixel counts as drawn if at least a quarter of it is covered. The line across a silent column
  // covers half a pixel.
  const drawn = (x, y) => data[4 * (y * width + x) + 3] >= 64;
  const column = (top, x) => {
    const found = Array.from({ length: rows }, (_, row) => row).filter((row) => drawn(x, top + row));
    return [found.at(0) ?? null, found.at(-1) ?? null, found.length];
  };
  return Array.from({ length: bands }, (_, band) =>
    Array.from({ length: width }, (_, x) => column(band * rows, x)),
  );
}

const state = () => {
  const { currentTime, duration, ended, error, paused, readyState } = audio;
  return { currentTime, duration, ended, error: error && error.message, paused, readyState };
};

// Open a page of page/ and play its audio. During playback, measure the waveform on the page, which
// consists of a number of bands, one above the other. Then seek to a time, play on, and play the end.
export async function watch(context, consoleMessages, url, bands, target, screenshot) {
  const page = await context.newPage();
  const responses = [];
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) {
      consoleMessages.push(`${message.text()} ${message.location().url}`);
    }
  });
  page.on("response", (response) => {
    const { pathname } = new URL(response.url());
    responses.push([pathname, response.status(), response.headers()["x-audio-proxy"] ?? null]);
  });
  const broken = new Promise((_, reject) => page.on("pageerror", reject));
  return { ...(await Promise.race([play(page, url, bands, target, screenshot), broken])), consoleMessages, responses };
}

async function play(page, url, bands, target, screenshot) {
  // Wait until playback has moved on from a position. Without a seek, this proves that the audio plays.
  const moved = (time) =>
    page.waitForFunction((it) => (audio.currentTime - it + audio.duration) % audio.duration > 0.2, time);

  await page.goto(url);
  await page.waitForFunction(() => window.waveformCanvas);
  await page.evaluate(() => {
    window.audio = document.querySelector("audio");
    // However slow the machine is, the audio plays until the page is measured.
    audio.loop = true;
    return audio.play();
  });
  await moved(0);
  const before = await page.evaluate(state);
  const columns = await page.evaluate(measure, bands);
  await page.screenshot({ path: screenshot });
  const after = await page.evaluate(state);
  await moved(after.currentTime);

  const sought = await page.evaluate(async (it) => {
    audio.pause();
    const seeked = new Promise((resolve) => audio.addEventListener("seeked", resolve, { once: true }));
    audio.currentTime = it;
    await seeked;
    const { currentTime } = audio;
    await audio.play();
    return currentTime;
  }, target);
  await moved(target);
  const afterSeek = await page.evaluate(state);
  await page.evaluate(() => {
    audio.loop = false;
    audio.currentTime = audio.duration - 0.3;
  });
  await page.waitForFunction(() => audio.ended);
  const atEnd = await page.evaluate(state);
  return { columns, before, after, sought, afterSeek, atEnd };
}

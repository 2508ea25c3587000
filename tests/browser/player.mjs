// Use the player's controls as a person would, and report what the page shows.

import { useOwnFile } from "./own_file.mjs";

// Open the player in a state, and collect messages of its console and requests to other hosts.
async function open(context, { url, consoleMessages, foreignRequests }, state = "") {
  const page = await context.newPage();
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) {
      consoleMessages.push(`${message.text()} ${message.location().url}`);
    }
  });
  page.on("pageerror", (error) => consoleMessages.push(String(error)));
  page.on("dialog", (dialog) => consoleMessages.push(dialog.message()) && dialog.dismiss());
  page.on("request", (request) => {
    if (!request.url().startsWith(url) && !request.url().startsWith("data:")) {
      foreignRequests.push(request.url());
    }
  });
  await page.goto(url + state);
  await page.waitForSelector("#waveform[data-drawn]:not(.stale)");
  return page;
}

const text = (page, id) => page.locator(`#${id}`).textContent();
const passes = async (page, time) => {
  try {
    await page.waitForFunction((it) => audio.currentTime > it && !audio.paused, time, { polling: 50 });
  } catch (error) {
    const seen = await page.evaluate(() => {
      const { currentTime, duration, ended, error, loop, networkState, paused, readyState, seeking } = audio;
      const state = { currentTime, duration, ended, error: error?.message, loop, networkState, paused, readyState, seeking };
      return JSON.stringify({ ...state, text: document.querySelector("#stage, main").innerText.slice(0, 300) });
    });
    throw new Error(`${error.message} waiting for ${time} s in ${seen}`);
  }
};

// Wait until the form's current state is signed, with these canonical options.
const signed = (page, options) =>
  page.waitForFunction((it) => canonical.textContent === it && !document.querySelector(".stale"), options);

// Return the height of the waveform in each column.
const columnHeights = (page, id) =>
  page.evaluate((it) => {
    const host = document.getElementById(it).firstElementChild;
    const [canvas] = host.shadowRoot.querySelectorAll(".canvases canvas");
    const { width, height } = canvas;
    const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
    return Array.from({ length: width }, (_, x) => {
      return Array.from({ length: height }, (_, y) => data[4 * (y * width + x) + 3]).filter(Boolean).length;
    });
  }, id);

// Play a format while it is rendered, and once more from the store; a failure names it.
const playFormat = async (open, seconds, format) => {
  try {
    return [format, await playTwice(open, seconds, format)];
  } catch (error) {
    throw new Error(`f:${format}: ${error.message}`);
  }
};

async function playTwice(open, seconds, format) {
  const page = await open();
  const responses = [];
  page.on("response", (response) => {
    if (response.request().resourceType() === "media") {
      responses.push([response.status(), response.headers()["x-audio-proxy"]]);
    }
  });
  await page.locator(`input[value=${format}]`).check({ force: true });
  await signed(page, `f:${format}`);
  await page.locator("#state[data-state=MISS]").waitFor();
  const [type, known] = await page.evaluate(async (it) => {
    const { formats } = await (await fetch("formats")).json();
    const type = formats.find(({ token }) => token === it).content_type;
    return [type, audio.canPlayType(type)];
  }, format);
  if (!known) {
    throw new Error(`the browser does not play ${type}, although the format's row has in_browsers`);
  }
  // Measure the audio element's output.
  await page.evaluate(() => {
    const context = new AudioContext();
    window.analyser = context.createAnalyser();
    context.createMediaElementSource(audio).connect(analyser).connect(context.destination);
    window.loudness = () => {
      const samples = new Float32Array(analyser.fftSize);
      analyser.getFloatTimeDomainData(samples);
      return Math.max(...samples.map(Math.abs));
    };
  });
  await page.locator("#play").click();
  await passes(page, 0.2);
  await page.waitForFunction(() => loudness() > 0.02);
  const streamed = {
    duration: await page.evaluate(() => String(audio.duration)),
    shown: await text(page, "duration"),
    seekable: await page.evaluate(() => audio.seekable.length && String(audio.seekable.end(0))),
  };
  await page.locator("#waveform.seekable").waitFor();
  // On a busy machine, playback goes on before this script can ask for the position.
  await page.evaluate(() =>
    audio.addEventListener("seeked", () => (window.soughtTime = audio.currentTime), { once: true }),
  );
  const { width, height } = await page.locator("#waveform").boundingBox();
  await page.locator("#waveform").click({ position: { x: 0.7 * width, y: height / 2 } });
  await page.waitForFunction(() => audio.seekable.length && audio.seekable.end(0) > 0);
  await page.locator("#state[data-state=HIT]").waitFor();
  // On a busy machine, playback may have reached the end before the click, or between two looks of this script.
  await page.evaluate(() => {
    audio.loop = true;
    return audio.paused && audio.play();
  });
  await passes(page, 0.7 * seconds);
  await page.waitForFunction(() => loudness() > 0.02);
  const afterSeek = {
    time: await page.evaluate(() => soughtTime),
    duration: await page.evaluate(() => String(audio.duration)),
    shown: await text(page, "duration"),
    measured: await text(page, "measurements"),
  };
  await page.close();
  return { streamed, afterSeek, responses };
}

// Hold requests until the returned function is called.
async function hold(page, method) {
  let release;
  const released = new Promise((resolve) => (release = resolve));
  await page.route(/\/audio\//, async (route) => {
    await (route.request().method() === method && released);
    await route.fallback();
  });
  return release;
}

// Drag the slider: several input events fire before anything else can happen.
const drag = (page, ...times) =>
  page.evaluate((it) => {
    for (const time of it) {
      seek.value = time;
      seek.dispatchEvent(new Event("input"));
    }
  }, times);

// Change the variant faster than the service responds.
async function changeQuickly(page) {
  const seen = {};
  const releaseHeads = await hold(page, "HEAD");
  for (const format of ["flac", "ogg"]) {
    const requested = page.waitForRequest(
      (request) => request.method() === "HEAD" && request.url().includes(`f:${format}`),
    );
    await page.locator(`input[value=${format}]`).check({ force: true });
    await requested;
  }
  releaseHeads();
  await passes(page, 0);
  await page.locator("#waveform.seekable").waitFor();

  const releaseGets = await hold(page, "GET");
  await drag(page, 1, 4);
  seen.seekTarget = await page.locator("#seek").inputValue();
  const requested = page.waitForRequest((request) => request.method() === "GET" && request.url().includes("f:wav"));
  await page.locator("input[value=wav]").check({ force: true });
  await requested;
  releaseGets();
  await passes(page, 0);
  // Where playback began, however far it is.
  seen.startPosition = await page.evaluate(() => audio.played.start(0));
  await page.unroute(/\/audio\//);

  await page.locator("#waveform.seekable").waitFor();
  await drag(page, 1, 4);
  await page.waitForFunction(() => audio.readyState > 1 && !audio.seeking);
  seen.dragged = await page.evaluate(() => audio.currentTime);

  // Seek with the arrow keys, which move the position by 5 seconds. Nothing plays meanwhile.
  await page.evaluate(() => audio.pause());
  await drag(page, 4);
  await page.locator("#seek").focus();
  seen.steps = [];
  for (const key of ["ArrowLeft", "ArrowRight"]) {
    await page.keyboard.press(key);
    seen.steps.push(await page.evaluate(() => audio.currentTime));
  }
  return seen;
}

// The service goes down; then it is back, and a file that is not audio is chosen.
async function failRequests(page, broken, whole) {
  const seen = {};
  const failure = page.locator("#failure:not(:empty)");
  const playable = () => page.locator("#play").isEnabled();
  const shown = async () => [
    ...(await Promise.all(["state", "url", "canonical", "key"].map((id) => text(page, id)))),
    ...(await Promise.all(["waveform", "overview"].map((id) => page.locator(`#${id} > div`).isVisible()))),
  ];
  await page.route(/./, (route) => route.abort());
  await page.locator("input[value=mp3]").check({ force: true });
  seen.unavailable = [await failure.textContent(), await text(page, "state"), await playable()];
  await page.unroute(/./);
  await page.locator("#source").selectOption({ label: broken });
  await page.waitForFunction(() => !document.querySelector("#failure").textContent.includes("respond"));
  seen.broken = [await failure.textContent(), await playable(), await shown()];
  await page.locator("#source").selectOption({ label: whole });
  await page.waitForFunction(() => !document.querySelector(".stale"));
  seen.recovered = [await playable(), await shown()];
  return seen;
}

// Return the failure that the stage shows, and whether Play is enabled.
async function failure(page, words) {
  await page.locator("#failure").filter({ hasText: words }).waitFor();
  return [await text(page, "failure"), await page.locator("#play").isEnabled()];
}

// Press the space bar on an element, and return whether audio plays afterwards.
async function pressSpace(page, selector) {
  await page.evaluate(() => document.activeElement.blur());
  selector && (await page.locator(selector).focus());
  const before = await page.evaluate(() => audio.paused);
  await page.keyboard.press("Space");
  // A field keeps the key, so nothing happens there.
  const timeout = selector === "#own" ? 1000 : 120_000;
  await page.waitForFunction((it) => audio.paused !== it, before, { timeout }).catch(() => {});
  return page.evaluate(() => !audio.paused);
}

// Return the controls without a hint, and the options whose hint is empty.
const findUnexplained = (page) =>
  page.evaluate(() => {
    const described = ({ title, ariaDescribedByElements }) => {
      return title || ariaDescribedByElements?.some(({ textContent }) => textContent);
    };
    const explained = (it) => described(it) || it.ariaLabel || described(it.closest("[title]") ?? it);
    return [
      ...[...document.querySelectorAll("main :is(button, input, select, a)")].filter((it) => !explained(it)),
      ...[...document.querySelectorAll("[data-option] .hint")].filter(({ textContent }) => !textContent),
    ].map(({ outerHTML }) => outerHTML);
  });

const scenarios = {
  useOwnFile,

  // Load states from the address, and sources that are typed.
  async keepState({ open, url, consoleMessages }, remote, refused) {
    const page = await open("#source=rising.wav&f=opus&br=96&t=1:2");
    const seen = { consoleMessages: [] };
    const state = async () => [await text(page, "title"), await text(page, "canonical"), new URL(page.url()).hash];
    const settled = (canonical) => signed(page, canonical);
    const load = async (source) => {
      await page.locator("#own").fill(source);
      await page.keyboard.press("Enter");
    };
    await settled("br:96/f:opus/t:1:2");
    seen.opened = await state();

    await load(remote);
    await page.waitForFunction(() => title.textContent === "remote.wav");
    await settled("br:96/f:opus/t:1:2");
    seen.typed = await state();
    await page.locator("input[value=wav]").check({ force: true });
    await settled("f:wav/t:1:2");
    await page.reload();
    await settled("f:wav/t:1:2");
    seen.reloaded = await state();
    await page.goBack();
    await settled("br:96/f:opus/t:1:2");
    await page.goBack();
    await page.waitForFunction(() => title.textContent === "rising.wav");
    await settled("br:96/f:opus/t:1:2");
    seen.back = await state();

    // Space plays, also on a slider; fields and buttons keep it.
    await page.locator("#play:enabled").waitFor();
    seen.space = [];
    for (const selector of [null, "#seek", "#play", "#play", "#own", "[data-option=gain] input[type=range]"]) {
      seen.space.push(await pressSpace(page, selector));
    }
    seen.field = await page.locator("#own").inputValue();

    seen.unexplained = await findUnexplained(page);
    await page.locator("[data-option=br] .name").click();
    seen.hint = await page.locator("#br-hint").innerText();

    await page.goto(`${url}#source=rising.wav&f=xyz&ch=7&gain=-3&zzz=1&gain=4`);
    await settled("f:mp3/gain:-3");
    seen.unusable = [await text(page, "notice"), ...(await state())];
    await page.locator("#loudness:not(.measuring) tbody tr:first-child td:last-child").filter({ hasText: /\d/ }).waitFor();
    seen.loudness = await page.locator("#loudness tbody td").allTextContents();
    seen.consoleMessages.push(...consoleMessages.splice(0));

    // What cannot be played is refused in the stage.
    seen.failures = [];
    await page.locator("#t-0").fill("6");
    seen.failures.push(await failure(page, "past the end"));
    seen.trim = await page.locator("[data-option=t] .refusal").textContent();
    await page.locator("#t-1").fill("0");
    seen.failures.push(await failure(page, "longer than 0"));
    await page.locator("[data-option=t] .clear").click();
    await settled("f:mp3/gain:-3");
    // The page enables the button when the source can be played again.
    await page.locator("#play:enabled").waitFor();
    seen.cleared = [await text(page, "failure"), await page.locator("#play").isEnabled()];
    for (const [source, words] of refused) {
      await load(source);
      seen.failures.push(await failure(page, words));
    }
    await page.setViewportSize({ width: 390, height: 700 });
    seen.width = await page.evaluate(() => document.documentElement.scrollWidth);
    for (const line of consoleMessages.splice(0)) {
      /status of 4\d\d/.test(line) || seen.consoleMessages.push(line);
    }
    await page.close();
    return seen;
  },

  async playFormats({ open }, seconds, ...formats) {
    return Object.fromEntries(await Promise.all(formats.map((it) => playFormat(open, seconds, it))));
  },

  async useControls({ open, consoleMessages }, first, second, hostile, broken) {
    const page = await open();
    const option = (name) => page.locator(`[data-option=${name}]`);
    const choose = async (name) => {
      await page.locator("#source").selectOption({ label: name });
      await page.waitForFunction((it) => title.textContent === it && facts.textContent, name);
      await page.waitForFunction(() => !document.querySelector(".stale"));
    };
    const address = async () => [await text(page, "url"), await text(page, "canonical"), await text(page, "key")];
    const seen = {};

    await choose(first);
    seen.first = [await columnHeights(page, "waveform"), await columnHeights(page, "overview")];
    await choose(second);
    seen.second = [await columnHeights(page, "waveform"), await columnHeights(page, "overview")];
    seen.before = await address();
    // By the keyboard alone: move the gain slider two steps up.
    await option("gain").locator("input[type=range]").focus();
    await page.keyboard.press("ArrowRight");
    await page.keyboard.press("ArrowRight");
    await signed(page, "f:mp3/gain:1");
    seen.after = await address();
    await page.locator("#copy").click();
    seen.copied = await page.evaluate(() => navigator.clipboard.readText());

    // Select a region of the source with the mouse.
    await page.locator("#overview").scrollIntoViewIfNeeded();
    const { x, y, width } = await page.locator("#overview").boundingBox();
    await page.mouse.move(x + width / 4, y + 20);
    await page.mouse.down();
    await page.mouse.move(x + width / 2, y + 22, { steps: 4 });
    await page.mouse.move(x + (3 * width) / 4, y + 22, { steps: 4 });
    await page.mouse.up();
    // The page signs some of the positions on the way, too.
    await page.waitForFunction(() => {
      const [start, end] = [...document.querySelectorAll("#trim .handle")].map((it) => Number(it.ariaValueNow));
      const [, from, seconds] = canonical.textContent.match(/\/t:([\d.]+):([\d.]+)/) ?? [];
      return Math.abs(from - start) < 0.02 && Math.abs(seconds - (end - start)) < 0.02;
    });
    seen.trimmed = await text(page, "canonical");
    await option("t").locator(".clear").click();
    await signed(page, "f:mp3/gain:1");

    // A format without a bit rate, but with bit depths.
    await page.locator("input[value=wav]").check({ force: true });
    await signed(page, "f:wav/gain:1");
    seen.disabled = await option("br").locator("input[type=text]").isDisabled();
    seen.reason = await option("br").getAttribute("title");
    seen.depths = await option("bd").locator("option").allTextContents();
    await page.locator("input[value=mp3]").check({ force: true });
    await signed(page, "f:mp3/gain:1");

    await choose(hostile);
    seen.hostile = await text(page, "title");
    seen.consoleMessages = consoleMessages.splice(0);

    // A refusal appears beside its control, and on the console.
    await option("br").locator("input[type=text]").fill("9999");
    await option("br").locator(".refusal:not(:empty)").waitFor();
    seen.refusal = await option("br").locator(".refusal").textContent();
    seen.playable = await page.locator("#play").isEnabled();
    await option("br").locator("input[type=text]").fill("96");
    await signed(page, "br:96/f:mp3/gain:1");
    seen.clearedRefusal = await option("br").locator(".refusal").textContent();
    seen.refused = consoleMessages.splice(0);

    // A browser that cannot play streams: after the stream fails, the stored variant plays.
    let failed = 0;
    await page.route(/\/audio\/.*\?\d+$/, async (route) => {
      failed += 1;
      await (failed === 1 ? route.abort() : route.continue());
    });
    await page.locator("#play").click();
    await page.locator("#state[data-state=HIT]").waitFor();
    await passes(page, 0.1);
    seen.failed = consoleMessages.splice(0);

    Object.assign(seen, await changeQuickly(page));
    seen.consoleMessages.push(...consoleMessages.splice(0));
    Object.assign(seen, await failRequests(page, broken, first));
    seen.failureMessages = consoleMessages.splice(0);

    // With forced colors, the checked option must still differ from the unchecked ones.
    await page.emulateMedia({ forcedColors: "active" });
    seen.colours = await page.evaluate(() =>
      ["#play", ".segments input:checked + span", ".segments input:not(:checked) + span"].map((selector) => {
        return getComputedStyle(document.querySelector(selector)).backgroundColor;
      }),
    );
    return seen;
  },
};

// Run each of these scenarios, which are given by name with their arguments.
export async function usePlayer(context, consoleMessages, url, scenarioArguments) {
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  const player = { url, consoleMessages, foreignRequests: [] };
  player.open = (state) => open(context, player, state);
  const seen = {};
  for (const [scenario, words] of Object.entries(scenarioArguments)) {
    seen[scenario] = await scenarios[scenario](player, ...words);
  }
  return { ...seen, consoleMessages, foreignRequests: player.foreignRequests };
}

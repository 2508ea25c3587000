// Use the player with a file of the user's own, and report what the page shows.

import { readFile } from "node:fs/promises";

import { findBarriers } from "./axe.mjs";

const text = (page, id) => page.locator(`#${id}`).textContent();

// Drop a file on the page, as a browser does for a file of another program.
async function drop(page, name, path) {
  const bytes = (await readFile(path)).toString("base64");
  const dataTransfer = await page.evaluateHandle(
    ([it, base64]) => {
      const transfer = new DataTransfer();
      transfer.items.add(new File([Uint8Array.from(atob(base64), (c) => c.charCodeAt(0))], it));
      return transfer;
    },
    [name, bytes],
  );
  await page.dispatchEvent("body", "dragover", { dataTransfer });
  const invited = await page.evaluate(() => document.body.classList.contains("dropping"));
  await page.dispatchEvent("body", "drop", { dataTransfer });
  return invited;
}

// Move the trim handles by keys, and then one of them with the mouse.
async function trimByHandles(page, signed) {
  const [start, end] = ["Start", "End"].map((name) => page.getByRole("slider", { name: `${name} of the trim` }));
  for (const key of ["ArrowRight", "ArrowUp", "Shift+ArrowRight", "ArrowLeft"]) {
    await start.press(key);
  }
  await end.press("PageDown");
  await signed("f:mp3/t:1.1:3.9");
  const seen = { value: await start.getAttribute("aria-valuetext"), sizes: [await start.boundingBox(), await end.boundingBox()] };
  const { x, y, width } = await page.locator("#trim").boundingBox();
  const row = y + seen.sizes[0].height / 2;
  await page.mouse.move(seen.sizes[1].x + 5, row);
  await page.mouse.down();
  await page.mouse.move(x + (4 * width) / 6, row, { steps: 3 });
  await page.mouse.up();
  await page.waitForFunction(() => {
    const duration = document.getElementById("t-1").value;
    return duration !== "3.9" && canonical.textContent.endsWith(duration);
  });
  seen.dragged = await text(page, "canonical");
  for (const handle of [start, end]) {
    await handle.press(handle === start ? "Home" : "End");
  }
  await signed("f:mp3");
  return seen;
}

// Hear the source and the result in turn.
async function compare(page) {
  await page.locator("#compare").click();
  await page.locator("#comparison:enabled").waitFor();
  const seen = { compared: await text(page, "compared") };
  // However slow the machine is, both play until the page is measured.
  await page.evaluate(() => (audio.loop = true));
  await page.locator("#play").click();
  // Once the source is heard, it is moved no more, but after each round of the loop.
  const together = (heard, most) =>
    page.waitForFunction(
      ([it, seconds]) => {
        const [one, other] = [audio, original];
        const playing = !one.paused && !other.paused && !other.seeking && one.currentTime > 0.3;
        const apart = Math.abs(one.currentTime - other.currentTime);
        return playing && one.muted === (it === "source") && apart < seconds;
      },
      [heard, most],
    );
  await together("result", 0.02);
  seen.volumes = await page.evaluate(() => [audio.volume, original.volume]);
  // A switch pauses neither, and moves neither to another position.
  seen.switched = await page.evaluate(() => {
    const times = [audio.currentTime, original.currentTime];
    document.querySelector("#comparison [value=source]").click();
    const moved = [audio.currentTime, original.currentTime].map((time, index) => Math.abs(time - times[index]) > 0.1);
    return [audio.muted, original.muted, audio.paused, original.paused, ...moved];
  });
  await together("source", 0.15);
  await page.locator("#volume").fill("50");
  seen.half = await page.evaluate(() => [audio.volume, original.volume, volume.ariaValueText]);
  await page.locator("#compare").click();
  seen.alone = await page.evaluate(() => [audio.volume, audio.muted, audio.paused, original.paused]);
  await page.locator("#play").click();
  return seen;
}

// Copy every form of the URL that is shown.
async function copyForms(page) {
  const copied = {};
  for (const form of await page.locator("#forms input").all()) {
    await form.check({ force: true });
    await page.locator("#copy").click();
    copied[await form.inputValue()] = await page.evaluate(() => navigator.clipboard.readText());
  }
  return copied;
}

// Return what axe-core finds on the player and a page of the documentation, narrow and wide, light and dark.
async function inspect(page, url) {
  const found = [];
  const look = async () => {
    for (const width of [1280, 390]) {
      await page.setViewportSize({ width, height: 900 });
      for (const colorScheme of ["light", "dark"]) {
        await page.emulateMedia({ colorScheme });
        found.push(...(await findBarriers(page)));
        found.push(...(await page.evaluate(() => (document.documentElement.scrollWidth > innerWidth ? ["too wide"] : []))));
      }
    }
  };
  await look();
  await page.locator("[data-option=br] .name").click();
  await page.locator("#br-0").fill("9999");
  await page.locator("#failure:not(:empty)").waitFor();
  await look();
  for (const name of ["", "urls.html#options"]) {
    await page.goto(`${url}docs/${name}`);
    await page.locator("main h1").waitFor();
    await look();
  }
  return found;
}

export async function useOwnFile({ open, url, consoleMessages }, name, path, limit) {
  const page = await open();
  const signed = (options) =>
    page.waitForFunction((it) => canonical.textContent === it && !document.querySelector(".stale"), options);
  const seen = { invited: await drop(page, name, path) };
  await page.waitForFunction((it) => title.textContent === it, name.split("/").at(-1));
  await signed("f:mp3");
  seen.source = await page.locator("#source option:checked").textContent();
  await page.locator("#file").setInputFiles({ name: "large.wav", mimeType: "audio/wav", buffer: Buffer.alloc(limit + 1) });
  await page.locator("#notice").filter({ hasText: "large.wav" }).filter({ hasNotText: "Copying" }).waitFor();
  seen.tooLarge = await text(page, "notice");
  seen.trim = await trimByHandles(page, signed);
  await page.locator("#gain-0").fill("-6");
  await signed("f:mp3/gain:-6");
  Object.assign(seen, await compare(page));
  await page.locator("#exp-0").fill("600");
  await page.waitForFunction(() => document.querySelector("#url").textContent.includes("exp:"));
  seen.shown = await text(page, "url");
  seen.copied = await copyForms(page);
  seen.consoleMessages = consoleMessages.splice(0);
  seen.barriers = await inspect(page, url);
  seen.documentation = await page.title();
  consoleMessages.splice(0);
  await page.close();
  return seen;
}

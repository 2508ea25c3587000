// Volume, and the comparison of the result with its source at equal loudness.
//
// Both play at the same time and one of them is muted, so a switch has no gap. The louder one is turned down, so
// neither clips. The source is the same part as flac. It is rendered and stored before it plays, so it can follow
// every position of the result.

const at = (id) => document.getElementById(id);

// Seconds by which the two may differ: less than a listener notices at a switch.
const TOLERANCE = 0.015;

// Milliseconds from a correction to the next one, and seconds that a seek takes at most.
const [PAUSE, LIMIT] = [500, 0.5];

export class Comparison {
  #tracks = { result: at("audio"), source: at("original") };
  #volume = 1;
  // What can be compared: the URL of the source, a name of the result, and a function that measures both.
  #offer = null;
  #on = false;
  #heard = "result";
  #levels = null;
  // Seconds by which a seek of the source leads, since it takes time, and the time of the last one.
  #lead = 0;
  #moved = 0;
  #work = new AbortController();

  constructor() {
    const { result, source } = this.#tracks;
    for (const event of ["playing", "seeked"]) {
      result.addEventListener(event, () => this.#join());
    }
    for (const event of ["pause", "emptied", "waiting"]) {
      result.addEventListener(event, () => source.pause());
    }
    result.addEventListener("timeupdate", () => this.#follow());
    source.addEventListener("loadedmetadata", () => this.#join());
    source.addEventListener("error", () => this.#say("This browser cannot play the source."));
    at("compare").addEventListener("click", () => this.#switch(!this.#on));
    at("comparison").addEventListener("input", ({ target }) => this.#hear(target.value));
    at("volume").addEventListener("input", ({ target }) => {
      this.#volume = target.value / 100;
      this.#apply();
    });
    this.#apply();
  }

  // Offer another comparison, or none. If the comparison is on, prepare it.
  offer(offer) {
    this.#offer = offer;
    at("compare").disabled = !offer;
    if (!offer) {
      this.#switch(false);
    } else if (this.#on) {
      this.#prepare();
    }
  }

  #switch(on) {
    this.#on = on;
    at("compare").setAttribute("aria-pressed", on);
    at("comparison").hidden = !on;
    if (on) {
      this.#prepare();
    } else {
      this.#close();
      this.#say("");
    }
  }

  async #prepare() {
    const { url, result, measure } = this.#offer;
    const { source } = this.#tracks;
    if (new URL(url, location).href !== source.src) {
      this.#close();
    }
    this.#work.abort();
    this.#work = new AbortController();
    const { signal } = this.#work;
    at("comparison").disabled = true;
    this.#say("Preparing the source …");
    try {
      const [levels] = await Promise.all([measure(signal), source.src || store(url, signal)]);
      this.#levels = levels;
      source.src ||= url;
      this.#apply();
      at("comparison").disabled = false;
      this.#say(describe(levels, result));
    } catch (error) {
      signal.aborted || this.#say(error.message);
    }
  }

  #close() {
    const { source } = this.#tracks;
    this.#work.abort();
    this.#levels = null;
    at("comparison").querySelector("[value=result]").checked = true;
    this.#hear("result");
    source.removeAttribute("src");
    source.load();
  }

  #hear(which) {
    this.#heard = which;
    this.#apply();
  }

  // Set what is heard, and how loud.
  #apply() {
    const least = this.#levels && Math.min(...Object.values(this.#levels));
    for (const [name, track] of Object.entries(this.#tracks)) {
      track.muted = name !== this.#heard;
      track.volume = this.#volume * (this.#levels ? 10 ** ((least - this.#levels[name]) / 20) : 1);
    }
    at("volume").style.setProperty("--share", this.#volume);
    at("volume").setAttribute("aria-valuetext", `${Math.round(100 * this.#volume)} %`);
  }

  // Bring the source to the position of the result.
  #join() {
    const { result, source } = this.#tracks;
    if (source.readyState > 0) {
      this.#moved = performance.now();
      source.currentTime = result.currentTime;
      // The start of another position cancels play(). That is not an error.
      result.paused || source.play().catch(() => {});
    }
  }

  // Move the source to the position of the result while it is muted, which is not audible. A playback rate would be
  // smoother, but WebKitGTK 2.50 unmutes an element whose rate is set, and moves it.
  #follow() {
    const { result, source } = this.#tracks;
    const behind = result.currentTime - source.currentTime;
    const settled = !source.paused && !source.seeking && !result.seeking && performance.now() > this.#moved + PAUSE;
    if (source.muted && settled && Math.abs(behind) > TOLERANCE) {
      this.#lead = Math.abs(behind) < LIMIT ? this.#lead + behind : 0;
      this.#moved = performance.now();
      source.currentTime = result.currentTime + this.#lead;
    }
  }

  #say(text) {
    at("compared").textContent = text;
  }
}

// Render and store a variant, by reading it once.
async function store(url, signal) {
  const response = await fetch(url, { signal, cache: "no-store" });
  if (!response.ok) {
    throw new Error((await response.json()).message);
  }
  await response.body.pipeTo(new WritableStream());
}

function describe(levels, result) {
  const pair = `The same part of the source as flac, beside the result, ${result}.`;
  if (!levels) {
    return `${pair} Each has its own loudness: it cannot be measured in silence or in less than 3 s.`;
  }
  const { source, result: own } = levels;
  const lufs = Math.min(source, own).toFixed(1).replace("-", "−");
  const change = Math.abs(source - own).toFixed(1);
  const louder = source > own ? "the source" : "the result";
  const how = change === "0.0" ? "as they are" : `${louder} turned down by ${change} dB`;
  return `${pair} Both at ${lufs} LUFS: ${how}.`;
}

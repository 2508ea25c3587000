// What plays. The audio element fetches the variant itself, and nothing else does: so the first
// listener hears a variant while ffmpeg is still making it, and nothing is downloaded twice.
//
// What is to be known beside that costs no bytes: a HEAD before tells whether the variant is stored,
// HEADs after tell when it came to be, and the browser's own record of the element's requests
// (Resource Timing, with the Server-Timing that this application adds) says where they were answered.
//
// A variant that streams has no length and no ranges: one can seek in it once it is stored. It is
// then loaded anew, at the next moment when that is not heard. The service does not look at the query
// string, so a number in it keeps the browser from answering that out of what it kept of the stream.

const FIRST_LOOK = 100;
const LAST_LOOK = 2000;

export const UNREACHABLE = { error: "unreachable", message: "The service does not answer." };

export class Playback {
  #audio;
  #changed;
  #url = null;
  #visits = 0;
  #asking = new AbortController();
  #pressed = 0;
  #waiting = null;
  // Where to begin, as long as the element knows too little of what it loads to go there.
  #aim = null;
  // Whether to play what is being looked at.
  #goes = false;

  // What is known of the current variant.
  known = {};
  duration = 0;

  constructor(audio, changed) {
    this.#audio = audio;
    this.#changed = changed;
    for (const event of ["play", "pause", "ended", "timeupdate", "seeked", "durationchange"]) {
      audio.addEventListener(event, changed);
    }
    audio.addEventListener("loadedmetadata", () => this.#arrive());
    audio.addEventListener("playing", () => this.#learn({ sound: this.known.sound ?? since(this.#pressed) }));
    audio.addEventListener("error", () => audio.src && this.#fail().catch((error) => this.#miss(error)));
    new PerformanceObserver((list) => list.getEntries().forEach((entry) => this.#record(entry))).observe({
      type: "resource",
    });
  }

  get playing() {
    return !this.#audio.paused && !this.#audio.ended;
  }

  get time() {
    return this.#aim ?? this.#audio.currentTime;
  }

  // Whether what is loaded came out of the store.
  get seekable() {
    return Boolean(this.known.loaded && !this.known.streams);
  }

  // Take another variant. What plays goes on with the new one, from its start.
  //
  // How long it is has to be told: a browser takes most streams for endless, one of m4a for as long as
  // what it has of it, and guesses for flac even when it is stored.
  async open(url, duration) {
    if (url === this.#url) {
      return;
    }
    const goes = this.#goes || this.playing;
    this.close();
    this.#url = url;
    this.#goes = goes;
    this.duration = duration;
    this.#changed();
    await this.#look();
    if (this.#url !== url) {
      return;
    }
    this.#goes = false;
    if (goes && !this.known.refusal) {
      this.play();
    }
  }

  // Have nothing to play.
  close() {
    this.#asking.abort();
    this.#asking = new AbortController();
    this.#url = null;
    this.#aim = null;
    this.#goes = false;
    this.duration = 0;
    this.known = {};
    if (this.#audio.hasAttribute("src")) {
      this.#audio.removeAttribute("src");
      this.#audio.load();
    }
    this.#changed();
  }

  toggle() {
    if (this.playing) {
      this.#audio.pause();
    } else {
      this.play();
    }
  }

  play() {
    const { loaded, streams, stored } = this.known;
    if (!loaded || (streams && stored)) {
      this.#load(this.#audio.ended ? 0 : this.time);
    }
    this.#start();
  }

  // Go to another time, if that can be done by now.
  seek(time) {
    const { loaded, stored } = this.known;
    if (this.seekable) {
      this.#aim = time;
      this.#arrive();
    } else if (stored) {
      const goes = this.playing;
      this.#load(time);
      goes && this.#start();
    } else if (!loaded) {
      return;
    }
    this.#changed();
  }

  #load(time) {
    const audio = this.#audio;
    this.#visits += 1;
    audio.src = `${this.#url}?${this.#visits}`;
    this.#aim = time || null;
    this.#pressed = performance.now();
    this.#learn({ loaded: true, streams: !this.known.stored, sound: null });
    if (!this.known.stored) {
      this.#waiting = this.#wait();
    }
  }

  // Go where it is to go. An element that is told so too soon keeps it for whatever it loads next.
  #arrive() {
    if (this.#aim !== null && this.#audio.readyState > 0) {
      this.#audio.currentTime = this.#aim;
      this.#aim = null;
    }
  }

  #start() {
    // A load that comes in between calls it off, which is nobody's fault.
    this.#audio.play().catch(() => this.#changed());
  }

  // Ask what a GET would be told.
  async #look() {
    const { signal } = this.#asking;
    try {
      const response = await fetch(this.#url, { method: "HEAD", cache: "no-store", signal });
      // Of a body that is never read, be it empty, the browser says that it was broken off.
      await response.text();
      if (!response.ok) {
        await this.#explain();
        return;
      }
      const state = response.headers.get("x-audio-proxy");
      const stored = state === "HIT";
      const size = Number(response.headers.get("content-length")) || null;
      this.#learn({ stored, ...(stored ? { size } : {}), ...(this.known.state ? {} : { state }) });
    } catch (error) {
      this.#miss(error);
    }
  }

  // Look again until the variant is stored.
  async #wait() {
    const { signal } = this.#asking;
    const began = performance.now();
    for (let pause = FIRST_LOOK; !this.known.stored && !this.known.refusal; pause *= 1.3) {
      await new Promise((resolve) => setTimeout(resolve, Math.min(pause, LAST_LOOK)));
      if (signal.aborted) {
        return;
      }
      await this.#look();
    }
    if (this.known.stored && !signal.aborted) {
      this.#learn({ rendered: since(began) });
    }
  }

  // What was called off is no failure; otherwise nobody is there.
  #miss(error) {
    if (error.name !== "AbortError") {
      this.#learn({ refusal: UNREACHABLE });
    }
  }

  // An audio element does not say what it was told in place of sound. A refusal is short.
  async #explain() {
    const { signal } = this.#asking;
    const response = await fetch(this.#url, { signal });
    if (response.ok) {
      await response.body.cancel();
    } else {
      this.#learn({ refusal: await response.json(), status: response.status });
    }
    return response.ok;
  }

  // What cannot be played as a stream, as in Safari, may be playable once it has a length.
  async #fail() {
    const { signal } = this.#asking;
    const { streams } = this.known;
    const good = await this.#explain();
    if (good && !streams) {
      this.#learn({ refusal: { error: "unplayable", message: "This browser cannot play that." } });
    } else if (good) {
      this.#learn({ loaded: false, streams: false });
      await this.#waiting;
      if (this.known.stored && !signal.aborted) {
        this.#load(0);
        this.#start();
      }
    }
  }

  #record(entry) {
    if (!this.#url || entry.name !== new URL(`${this.#url}?${this.#visits}`, location).href) {
      return;
    }
    const timing = Object.fromEntries(entry.serverTiming.map((row) => [row.name, row]));
    this.#learn({
      state: timing.cache?.description ?? this.known.state,
      server: timing.first?.duration,
      status: entry.responseStatus,
      first: entry.responseStart - entry.startTime,
      whole: entry.responseEnd - entry.startTime,
      size: this.known.size ?? entry.encodedBodySize,
    });
  }

  #learn(news) {
    this.known = { ...this.known, ...news };
    this.#changed();
  }
}

function since(moment) {
  return performance.now() - moment;
}

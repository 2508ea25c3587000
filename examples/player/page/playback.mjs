// Playback of a variant. Only the audio element fetches the variant, so the first listener hears it while
// ffmpeg is still encoding, and nothing is downloaded twice.
//
// All other information needs no audio bytes. A HEAD request before playback shows whether the variant is
// stored, and HEAD requests during playback show when it has been stored. The browser's record of the
// element's requests (Resource Timing, with the Server-Timing header that this application adds) shows the
// cache state of each.
//
// A variant that streams has no length and no ranges; seeking works once the variant is stored. The element
// then loads it again at the next play or seek, because an interruption is not audible there. The service
// ignores the query string, so a number in it prevents the browser from using its cached part of the
// stream.

const FIRST_LOOK = 100;
const LAST_LOOK = 2000;

// Milliseconds from the end of a render until its variant is stored, at most.
const STORING = 3000;

export const UNREACHABLE = { error: "unreachable", message: "The service does not respond." };
const BROKEN_OFF = { error: "broken_off", message: "The service broke off the response." };
const UNPLAYABLE = { error: "unplayable", message: "This browser cannot play this format." };
const NOT_STORED = { error: "unplayable", message: "This browser plays stored variants alone, and this one was not stored." };

export class Playback {
  #audio;
  #changed;
  #url = null;
  #visits = 0;
  // The visit that was examined last.
  #examined = 0;
  #asking = new AbortController();
  #pressed = 0;
  #waiting = null;
  // Time to start at, until the element has loaded enough metadata to seek there.
  #aim = null;
  // Whether to play the variant after its HEAD request.
  #goes = false;

  // Information about the current variant.
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
    for (const event of ["ended", "error", "stalled"]) {
      audio.addEventListener(event, () => this.#examine(event).catch((error) => this.#miss(error)));
    }
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

  // Whether the loaded audio came from the store.
  get seekable() {
    return Boolean(this.known.loaded && !this.known.streams);
  }

  // Open another variant. If audio is playing, the new variant plays from its start.
  //
  // The caller passes the duration, because browsers do not know that of every stream: streams of opus, ogg
  // and aac have an infinite duration.
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

  // Close the current variant.
  close() {
    this.#asking.abort();
    this.#asking = new AbortController();
    this.#url = null;
    this.#aim = null;
    this.#goes = false;
    this.duration = 0;
    this.known = {};
    this.#unload();
    this.#changed();
  }

  #unload() {
    if (this.#audio.hasAttribute("src")) {
      this.#audio.removeAttribute("src");
      this.#audio.load();
    }
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

  // Seek to another time, if the variant is seekable or stored.
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
    this.#learn({ loaded: true, streams: !this.known.stored, unstored: false, sound: null });
    if (!this.known.stored) {
      this.#waiting = this.#wait();
    }
  }

  // Seek to the pending time. An element without metadata would keep the time for its next source.
  #arrive() {
    if (this.#aim !== null && this.#audio.readyState > 0) {
      this.#audio.currentTime = this.#aim;
      this.#aim = null;
    }
  }

  #start() {
    // A load during the start cancels play(). That is not an error.
    this.#audio.play().catch(() => this.#changed());
  }

  // Send a HEAD request: its status and headers are those of the GET.
  async #look() {
    const { signal } = this.#asking;
    try {
      const response = await fetch(this.#url, { method: "HEAD", cache: "no-store", signal });
      // If the body is never read, even an empty one, the browser reports an aborted request.
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

  // Repeat the HEAD request until the variant is stored.
  async #wait() {
    const { signal } = this.#asking;
    const began = performance.now();
    for (let pause = FIRST_LOOK; !this.#settled; pause *= 1.3) {
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

  // A canceled request is not a failure. Every other error means that the service is unreachable.
  #miss(error) {
    if (error.name !== "AbortError") {
      this.#learn({ refusal: UNREACHABLE });
    }
  }

  // Whether nothing more can be learnt by HEAD requests.
  get #settled() {
    const { stored, refusal, unstored } = this.known;
    return stored || refusal || unstored;
  }

  // Fetch the error document of a refusal, which an audio element cannot read. Return whether it is audio, and cancel
  // that, or discard it to its end.
  async #explain(whole = false) {
    const { signal } = this.#asking;
    const response = await fetch(this.#url, { cache: "no-store", signal });
    if (!response.ok) {
      this.#learn({ refusal: await response.json(), status: response.status });
    } else if (whole) {
      await response.body.pipeTo(new WritableStream(), { signal }).catch(() => {
        signal.throwIfAborted();
        this.#learn({ refusal: BROKEN_OFF });
      });
    } else {
      await response.body.cancel();
    }
    return !this.known.refusal;
  }

  // Find out why the element has failed, stalled, or ended before the variant is stored. A stream that breaks off is an
  // error in Firefox 153, an end in WebKitGTK 2.50, and Chromium 150 requests it again and again. Reading the variant to
  // its end says whether it can be rendered. A browser that cannot play a stream, such as Safari, may play the stored
  // variant, which has a length.
  async #examine(event) {
    const { signal } = this.#asking;
    const { loaded, streams, stored } = this.known;
    const { currentTime, error, readyState } = this.#audio;
    const starved = event !== "stalled" || readyState < HTMLMediaElement.HAVE_FUTURE_DATA;
    const doubtful = error || (streams && !stored && starved);
    if (!loaded || !doubtful || this.#examined === this.#visits) {
      return;
    }
    this.#examined = this.#visits;
    if (!streams) {
      (await this.#explain()) && this.#learn({ refusal: UNPLAYABLE });
      return;
    }
    if (error) {
      this.#learn({ loaded: false, streams: false });
    } else {
      await this.#store();
    }
    if (!signal.aborted && !this.known.stored) {
      (await this.#explain(true)) && (await this.#store());
    }
    if (signal.aborted || this.#examined !== this.#visits) {
      return;
    }
    if (this.known.stored && error) {
      this.#load(currentTime);
      this.#start();
    } else if (!this.known.stored) {
      this.#learn(error ? { refusal: this.known.refusal ?? NOT_STORED } : { unstored: true });
    }
    if (this.known.refusal) {
      // Chromium would go on requesting it.
      this.#unload();
      this.#learn({ loaded: false, streams: false });
    }
  }

  // Wait until the variant is stored, for as long as that can take after its render.
  async #store() {
    await Promise.race([this.#waiting, new Promise((resolve) => setTimeout(resolve, STORING))]);
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

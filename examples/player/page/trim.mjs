// The trimmed part of the source: two handles over the waveform of the whole, for pointers and keys.

import { element } from "./element.mjs";
import { clock } from "./panels.mjs";

// Pixels on each side of a handle in which a pointer takes it: together, the width of a thumb.
const REACH = 22;

// Seconds by which a key moves a handle. Shift makes a step ten times as long.
const STEP = 0.1;
const STEPS = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10 };

const [START, END] = [0, 1];

export class TrimHandles {
  #box;
  #region = element("div", { class: "region" });
  #handles;
  #changed;
  #whole = 0;
  // The start and the end in seconds.
  #bounds = [0, 0];
  // Moves what a pointer has taken to a time, or null.
  #move = null;

  // Call `changed` with the start and the duration, each null where the source has its own.
  constructor(box, changed) {
    this.#box = box;
    this.#changed = changed;
    this.#handles = ["Start", "End"].map((name, which) => {
      const title = `${name} of the trim. The arrow keys move it by ${STEP} s, with Shift by 1 s.`;
      const handle = element("div", { class: "handle", role: "slider", tabindex: 0, "aria-label": `${name} of the trim`, title });
      handle.addEventListener("keydown", (event) => this.#press(event, which));
      return handle;
    });
    box.append(this.#region, ...this.#handles);
    box.addEventListener("pointerdown", (event) => this.#take(event));
    box.addEventListener("pointermove", (event) => this.#move?.(this.#time(event)));
    for (const end of ["pointerup", "pointercancel"]) {
      box.addEventListener(end, () => (this.#move = null));
    }
  }

  // Show the part of the trim controls; a duration of null lasts to the end. They may have been set for a longer source.
  show(start, duration, whole) {
    if (!this.#move) {
      this.#whole = whole;
      const ends = [start, duration === null ? whole : start + duration];
      this.#bounds = ends.map((time) => Math.max(0, Math.min(time, whole)) || 0);
      this.#draw();
    }
  }

  #time({ clientX }) {
    const { left, width } = this.#box.getBoundingClientRect();
    return (this.#whole * (clientX - left)) / width;
  }

  // Take the nearest handle, or else the part between the handles, or else draw a new part.
  #take(event) {
    if (!this.#whole || event.button) {
      return;
    }
    const time = this.#time(event);
    const [start, end] = this.#bounds;
    const nearest = Math.abs(time - start) < Math.abs(time - end) || time < start ? START : END;
    const pixels = (Math.abs(time - this.#bounds[nearest]) * this.#box.clientWidth) / this.#whole;
    const trimmed = start > 0 || end < this.#whole;
    if (pixels <= REACH) {
      this.#handles[nearest].focus();
      this.#move = (to) => this.#set(nearest, to);
    } else if (trimmed && start < time && time < end) {
      this.#move = (to) => {
        const from = Math.max(0, Math.min(start + to - time, this.#whole - (end - start)));
        this.#tell([from, from + end - start]);
      };
    } else {
      this.#move = (to) => {
        const inside = Math.max(0, Math.min(to, this.#whole));
        this.#tell([time, inside].sort((a, b) => a - b));
      };
    }
    this.#box.setPointerCapture(event.pointerId);
    event.preventDefault();
  }

  #press(event, which) {
    const steps = STEPS[event.key];
    const ends = { Home: 0, End: this.#whole };
    if (event.altKey || event.ctrlKey || event.metaKey || !(steps || event.key in ends)) {
      return;
    }
    event.preventDefault();
    const step = STEP * (event.shiftKey ? 10 : 1);
    this.#set(which, ends[event.key] ?? this.#bounds[which] + step * steps);
  }

  // Move a handle, at most to a step from the other one.
  #set(which, time) {
    const least = Math.min(STEP, this.#whole);
    const bounds = [...this.#bounds];
    const [low, high] = which === START ? [0, bounds[END] - least] : [bounds[START] + least, this.#whole];
    bounds[which] = Math.max(low, Math.min(time, high));
    this.#tell(bounds);
  }

  #tell([start, end]) {
    if (start === end) {
      return;
    }
    this.#bounds = [start, end];
    this.#draw();
    const last = end >= this.#whole;
    this.#changed(start === 0 ? null : start, last ? null : end - start);
  }

  #draw() {
    const [start, end] = this.#bounds;
    const lows = [0, start];
    const highs = [end, this.#whole];
    this.#bounds.forEach((time, which) => {
      const handle = this.#handles[which];
      handle.style.left = `${(100 * time) / this.#whole}%`;
      handle.ariaValueMin = lows[which].toFixed(2);
      handle.ariaValueMax = highs[which].toFixed(2);
      handle.ariaValueNow = time.toFixed(2);
      handle.ariaValueText = `${clock(time)} of ${clock(this.#whole)}`;
    });
    this.#region.style.left = `${(100 * start) / this.#whole}%`;
    this.#region.style.width = `${(100 * (end - start)) / this.#whole}%`;
    this.#box.classList.toggle("trimmed", start > 0 || end < this.#whole);
  }
}

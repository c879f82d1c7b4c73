// @ts-check
// The part of a long run that its lanes show, and below them a map of the whole run with a window to drag.
import * as dom from "../kit/dom.js";

const LEAST = 4; // pixels per step below which a run has a map
const COMFORTABLE = 8; // pixels per step with which its lanes open
const CLOSEST = 40;

export class Zoom {
  factor = 1;
  from = 0;
  whole = 1;
  plot = 1;
  most = 1;
  at = -1;
  on = false;
  dragging = false;
  /** @type {Step[] | null} */
  steps = null;

  /** @param {import("./overview.js").Overview} overview */
  constructor(overview) {
    this.overview = overview;
    const by = (factor) => () => this.to(factor ? this.factor * factor : 1);
    this.tools = dom.h(
      "div",
      { class: "sv-tools", hidden: true },
      dom.button("−", "More steps", by(1 / 2), { "aria-label": "Show more of the run" }),
      dom.button("Whole run", "The whole run in the lanes", by(0)),
      dom.button("+", "Fewer steps, wider (Ctrl and wheel)", by(2), { "aria-label": "Show less of the run" }),
    );
    overview.veil.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.drag();
  }

  /** What the lanes show of `whole` nanoseconds in `plot` pixels. The window follows the current step past its edges. */
  range(whole, plot) {
    const { trace, cursor } = this.overview.stage;
    const { steps, starts, ends } = trace;
    const perPixel = (steps.length / plot) * (whole / Math.max(1, this.overview.stage.total));
    const on = perPixel * LEAST > 1;
    if (on && (!this.on || this.steps !== steps)) Object.assign(this, { factor: perPixel * COMFORTABLE, at: -1 });
    Object.assign(this, { on, steps, whole, plot, most: Math.max(1, perPixel * CLOSEST) });
    this.tools.hidden = !on;
    this.factor = on ? Math.min(this.most, Math.max(1, this.factor)) : 1;
    const span = whole / this.factor;
    const hidden = cursor >= 0 && (starts[cursor] < this.from || ends[cursor] > this.from + span);
    if (hidden && this.at !== cursor) this.from = starts[cursor] - span / 8;
    this.at = cursor;
    this.from = Math.min(Math.max(0, this.from), whole - span);
    return { from: this.from, span };
  }

  /** Zoom to a factor; the time `ns`, or the current step where it is in sight, stays in its place. */
  to(factor, ns = this.middle()) {
    const next = Math.min(this.most, Math.max(1, factor));
    this.from = ns - ((ns - this.from) * this.factor) / next;
    this.factor = next;
    this.overview.stage.touch("lanes");
  }

  middle() {
    const { clock } = this.overview.stage;
    const span = this.whole / this.factor;
    return clock >= this.from && clock <= this.from + span ? clock : this.from + span / 2;
  }

  wheel(event) {
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (!this.on || !(event.ctrlKey || sideways)) return;
    event.preventDefault();
    if (sideways) this.from += (event.deltaX / this.plot) * (this.whole / this.factor);
    else this.to(this.factor * (event.deltaY < 0 ? 1.25 : 0.8), this.overview.locate(event).ns);
    this.overview.stage.touch("lanes");
  }

  /** Whether a height in the drawing is the map's. @param {number} y */
  holds(y) {
    return this.on && y >= this.overview.at.map;
  }

  /** Press or drag on the map: the window goes there. */
  drag() {
    const { veil } = this.overview;
    const move = (event) => {
      const { left, plot } = this.overview.at;
      const x = event.clientX - veil.getBoundingClientRect().left - left;
      this.from = (x / plot) * this.whole - this.whole / this.factor / 2;
      this.overview.stage.touch("lanes");
    };
    veil.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || !this.holds(this.overview.locate(event).y)) return;
      veil.setPointerCapture(event.pointerId);
      this.dragging = true;
      move(event);
    });
    veil.addEventListener("pointermove", (event) => this.dragging && move(event));
    for (const end of ["pointerup", "pointercancel"]) veil.addEventListener(end, () => (this.dragging = false));
  }

  /** The whole run: the most tokens of a step in every pixel. @param {CanvasRenderingContext2D} pen */
  map(pen) {
    const { at, paint, stage, most } = this.overview;
    const { ends, steps } = stage.trace;
    const tallest = new Float64Array(Math.ceil(at.plot) + 1);
    steps.forEach((step, index) => {
      const x = Math.floor((ends[index] / this.whole) * at.plot);
      tallest[x] = Math.max(tallest[x], step.emitted.length);
    });
    pen.fillStyle = paint.skip;
    pen.fillRect(at.left, at.height - 1, at.plot, 1);
    tallest.forEach((count, x) => {
      const h = (count / most) * (at.height - at.map - 2);
      if (count) pen.fillRect(at.left + x, at.height - 1 - h, 1, h);
    });
  }

  /** The window on the map, and the current step in it. @param {CanvasRenderingContext2D} pen */
  window(pen) {
    const { at, paint, stage } = this.overview;
    const place = (ns) => at.left + (ns / this.whole) * at.plot;
    pen.strokeStyle = paint.accepted;
    pen.lineWidth = 1.5;
    pen.strokeRect(place(at.from), at.map - 1, Math.max(4, (at.span / this.whole) * at.plot), at.height - at.map);
    pen.fillStyle = paint.ink;
    pen.fillRect(place(stage.clock) - 0.75, at.map - 1, 1.5, at.height - at.map);
  }
}

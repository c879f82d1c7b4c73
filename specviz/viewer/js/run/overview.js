// @ts-check
// The run on a time axis: the tokens and phases of every step, above the autoregressive baseline.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as labels from "../kit/labels.js";
import * as lanes from "./lanes.js";
import { palette } from "./lanes.js";
import { PHASES } from "./decode.js";
import * as verdict from "./verdict.js";
import { Zoom } from "./zoom.js";

const VERDICT = "The baseline's time per token ÷ this run's; the time saved is for this run's number of tokens";

/** @typedef {{ width: number, height: number, left: number, plot: number, from: number, to: number, span: number, lane: number, plain: number, run: number, floor: number, map: number, top: number, thin?: boolean }} Frame */

export class Overview {
  /** @type {Step[] | null} */
  steps = null;
  /** @type {Trace.Baseline | null} */
  of = null;
  /** @type {ReturnType<typeof verdict.baselineTimes>} */
  plain = null;
  /** @type {ReturnType<typeof verdict.of>} */
  verdict = null;
  /** @type {Frame} */
  at;
  /** @type {ReturnType<typeof palette>} */
  paint;
  stale = { base: false, veil: false };
  size = { width: 0, height: 0 };
  parting = "";
  scale = "";
  mapped = 0;
  drawn = 0;
  most = 4;

  /** @param {Stage} stage */
  constructor(stage) {
    this.stage = stage;
    this.title = dom.h("h2", { class: "sv-card-title" });
    this.base = dom.h("canvas", { class: "sv-plot", role: "img" });
    this.veil = dom.h("canvas", { class: "sv-plot sv-clock-layer", "aria-hidden": "true" });
    this.box = dom.h("div", { class: "sv-plots" }, this.base, this.veil);
    const key = (kind, text) => dom.h("span", {}, dom.h("i", { class: `sv-swatch ${kind}` }), text);
    const legend = dom.h(
      "div",
      { class: "sv-legend" },
      key("sv-phase-draft", "draft"),
      key("sv-phase-verify", "verify"),
      key("sv-phase-judge", "judge, commit, host"),
    );
    this.zoom = new Zoom(this);
    this.card = dom.h(
      "div",
      { class: "sv-card sv-run" },
      dom.h("div", { class: "sv-card-head" }, this.title, this.zoom.tools, legend),
      this.box,
    );
    this.veil.addEventListener("click", (event) => this.click(event));
    stage.tip.over(this.veil, (event) => this.describe(event));
  }

  get measured() {
    return this.box;
  }

  /** @param {Set<string>} changed */
  update(changed) {
    const { stage } = this;
    if (changed.has("size") || !this.size.width)
      this.size = { width: this.box.clientWidth, height: this.box.clientHeight };
    if (changed.has("theme") || changed.has("size") || !this.paint) this.paint = palette(stage.root);
    const base = ["data", "run", "theme", "size", "lanes"].some((topic) => changed.has(topic));
    this.stale = {
      base: base || this.stale.base,
      veil: base || changed.has("clock") || changed.has("cursor"),
    };
    if (!base && !this.stale.veil) return;
    const from = this.at ? this.at.from : 0;
    this.at = this.frame();
    this.stale.base = this.stale.base || this.at.from !== from;
    // While a step is animated, the text changes only at a new moment; otherwise every frame would lay out the page again.
    if (base || stage.moment === null || changed.has("moment")) this.words();
  }

  /** Draw last, since setting a canvas's font makes the browser recalculate the styles of the whole page. */
  settle() {
    const { base, veil } = this.stale;
    if (base) this.drawBase();
    if (base || veil) this.drawVeil();
    this.stale = { base: false, veil: false };
  }

  words() {
    const { stage } = this;
    const { trace, step } = stage;
    const emitted = trace.steps.slice(0, stage.written + 1).reduce((sum, entry) => sum + entry.emitted.length, 0);
    const alone = this.plain && step ? this.plain.ends.filter((end) => end <= stage.clock).length : null;
    const tau = trace.end && trace.end.metrics ? trace.end.metrics.tau : null;
    const rate = typeof tau === "number" ? ` · ${tau.toFixed(2)} tokens per target pass (τ)` : "";
    const now = step
      ? ` · at ${format.time(stage.clock)}: ${format.count(emitted, "token")}${alone === null ? "" : `, baseline ${alone}`}`
      : "";
    const difference = lanes.gain(this);
    const look = { faster: "sv-saved", slower: "sv-lost" };
    const gained = difference && !difference.fits ? [" · ", dom.h("b", { class: look[difference.word] || "", title: VERDICT }, difference.label)] : [];
    const parts = this.parting ? ` · texts diverge ${this.parting}` : "";
    this.title.replaceChildren(dom.h("b", {}, "Run"), ...gained, rate + parts + now + captured(trace.end));
    const shown = this.zoom.on ? `, steps ${this.stepAt(this.at.from) + 1} to ${this.stepAt(this.at.to) + 1} in the lanes` : "";
    const gain = this.plain ? ` Autoregressive baseline: ${format.time(this.plain.total)}.` : "";
    this.base.setAttribute(
      "aria-label",
      `${format.count(trace.steps.length, "step")}, ${format.time(stage.total)} of decoding${shown}.${gain}`,
    );
  }

  /** The layout and the time scale; a run in progress gets a rounded scale, which does not change with every step. */
  frame() {
    const { stage } = this;
    const { width, height } = this.size;
    if (stage.projector) return this.line(width, height);
    const phone = stage.size === "phone";
    const left = (phone ? 80 : 84) * stage.u,
      right = (phone ? 56 : 66) * stage.u;
    const baseline = stage.trace.end && stage.trace.end.baseline;
    if (this.of !== baseline) {
      this.plain = verdict.baselineTimes(baseline);
      this.verdict = verdict.of(stage.trace);
      [this.parting] = verdict.parting(stage.trace).split(","); // the badge gives the reason
    }
    this.of = baseline;
    const longest = Math.max(1, stage.total, this.plain ? this.plain.total : 0);
    const whole = stage.running ? 2 ** Math.ceil(Math.log2(longest * 1.05)) : Math.max(longest, stage.span);
    const plot = Math.max(10, width - left - right);
    const { from, span } = this.zoom.range(whole, plot);
    const lane = (this.zoom.on ? 12 : 14) * stage.u;
    const map = height - (this.zoom.on ? 14 * stage.u : 0);
    const plain = map - lane - 4 * stage.u,
      run = plain - lane - (this.zoom.on ? 4 : 7) * stage.u,
      floor = run - 8 * stage.u;
    return { width, height, left, plot, from, to: from + span, span, lane, plain, run, floor, map, top: 4 };
  }

  /** The layout for a thin line of the run: the phases of its steps, and the progress. @param {number} width @param {number} height */
  line(width, height) {
    const span = Math.max(1, this.stage.total);
    return { width, height, left: 3, plot: width - 6, from: 0, to: span, span, lane: height - 8, run: 4, plain: 2, floor: 0, top: 4, map: height, thin: true };
  }

  /** @param {number} ns */
  x(ns) {
    return this.at.left + ((ns - this.at.from) / this.at.span) * this.at.plot;
  }

  fit(canvas, clear = true) {
    const scale = devicePixelRatio || 1;
    const { width, height } = this.at;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
    }
    const pen = dom.pen(canvas);
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    if (clear) pen.clearRect(0, 0, width, height);
    return pen;
  }

  /** Draw whatever does not depend on the clock. While the scale is unchanged, new steps are added to the old drawing. */
  drawBase() {
    if (!this.at.width) return;
    const { steps } = this.stage.trace;
    this.most = this.steps === steps ? this.most : 4;
    for (let index = this.steps === steps ? this.drawn : 0; index < steps.length; index += 1) {
      this.most = Math.max(this.most, steps[index].emitted.length);
    }
    const scale = [
      this.at.width,
      this.at.height,
      this.at.from,
      this.at.span,
      this.most,
      this.plain ? this.plain.total : 0,
      this.paint.card,
      devicePixelRatio,
    ].join();
    const anew = scale !== this.scale || this.steps !== steps;
    const pen = this.fit(this.base, anew);
    if (anew) {
      this.drawn = this.stepAt(this.at.from);
      if (!this.at.thin) lanes.names(pen, this);
    }
    this.within(pen, () => {
      if (anew && !this.at.thin) lanes.plain(pen, this);
      const { starts } = this.stage.trace;
      for (; this.drawn < steps.length && starts[this.drawn] <= this.at.to; this.drawn += 1) {
        if (!this.at.thin) lanes.stack(pen, this, steps[this.drawn], this.drawn, this.most);
        lanes.phases(pen, this, steps[this.drawn], this.drawn);
      }
    });
    if (this.zoom.on && !this.at.thin && (anew || this.mapped !== steps.length)) this.zoom.map(pen);
    Object.assign(this, { scale, steps, mapped: steps.length });
  }

  /** Draw, clipped to the plot. @param {CanvasRenderingContext2D} pen */
  within(pen, draw) {
    const { left, plot, height } = this.at;
    pen.save();
    pen.beginPath();
    pen.rect(left - 3, 0, plot + 6, height);
    pen.clip();
    draw();
    pen.restore();
  }

  /** Dim everything after the clock's time, and frame the current step. */
  drawVeil() {
    if (!this.at || !this.at.width) return;
    const pen = this.fit(this.veil);
    const { stage } = this;
    if (!stage.step) return;
    const { thin } = this.at;
    if (this.zoom.on && !thin) this.zoom.window(pen);
    this.within(pen, () => this.drawClock(pen));
    if (!thin) lanes.ends(pen, this);
  }

  /** @param {CanvasRenderingContext2D} pen */
  drawClock(pen) {
    const { stage, at, paint } = this;
    const now = Math.max(at.left - 3, this.x(stage.clock));
    pen.globalAlpha = 0.66;
    pen.fillStyle = paint.card;
    pen.fillRect(now + 1, 0, at.left + at.plot - now, at.plain + at.lane + 2);
    pen.globalAlpha = 1;
    const start = this.x(stage.trace.starts[stage.cursor]),
      end = this.x(stage.trace.ends[stage.cursor]);
    pen.strokeStyle = paint.ink;
    pen.lineWidth = 1.5;
    pen.beginPath();
    if (pen.roundRect)
      pen.roundRect(start - 1.5, at.top - 3, Math.max(4, end - start + 2), at.run + at.lane - at.top + 6, 4);
    else pen.rect(start - 1.5, at.top - 3, Math.max(4, end - start + 2), at.run + at.lane - at.top + 6);
    pen.stroke();
    pen.fillStyle = paint.ink;
    pen.fillRect(now - 0.5, at.plain - 3, 1.5, at.lane + 6);
  }

  locate(event) {
    const frame = this.veil.getBoundingClientRect();
    const ns = this.at.from + ((event.clientX - frame.left - this.at.left) / this.at.plot) * this.at.span;
    return { ns, y: event.clientY - frame.top };
  }

  /** The index of the step at a time; past the end, of the last step. @param {number} ns */
  stepAt(ns) {
    const { ends } = this.stage.trace;
    let low = 0,
      high = ends.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (ends[middle] > ns) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  click(event) {
    if (!this.at || this.stage.last < 0) return;
    const { ns, y } = this.locate(event);
    if (!this.zoom.holds(y)) this.stage.go(this.stepAt(ns));
  }

  describe(event) {
    const { stage, at, plain } = this;
    if (!at || stage.last < 0) return null;
    const { ns, y } = this.locate(event);
    if (ns < at.from || ns > at.to || this.zoom.holds(y)) return null;
    if (!at.thin && y >= at.plain - 2) return plain && ns <= plain.total ? this.aboutPlain(plain, ns) : null;
    if (ns > stage.total) return null;
    const index = this.stepAt(ns);
    const step = stage.trace.steps[index];
    const times = PHASES.flatMap((name, place) => (step.times[place] ? `${name} ${format.time(step.times[place])}` : []));
    return [
      `step ${index + 1} · ${format.time(step.total)}`,
      `${labels.tally(step)}${step.bonus ? ", plus a bonus token" : ""}`,
      ...(times.length > 1 ? [times.slice(0, 2).join(" · "), times.slice(2).join(" · ")] : ["its parts were not reported"]),
    ];
  }

  /** @param {NonNullable<Overview["plain"]>} plain @param {number} ns */
  aboutPlain(plain, ns) {
    const { ends, times } = plain;
    const index = ends.findIndex((end) => end >= ns);
    return [
      `autoregressive baseline · token ${index + 1}`,
      `${format.time(times[index])} for one token`,
      `at ${format.time(ends[index])}`,
    ];
  }
}

/** The time spent capturing CUDA graphs, which no lane shows. */
function captured(end) {
  const ns = end && end.capture_ns;
  return ns > 0 ? ` · CUDA graphs captured in ${format.time(ns)}, not counted` : "";
}

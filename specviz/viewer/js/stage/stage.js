// @ts-check
// Holds the one state every panel draws from (which step, which node, what time it is) and tells them what has changed.
import * as dom from "../kit/dom.js";
import { Tip } from "../kit/tip.js";
import { Feed } from "../run/feed.js";
import * as motion from "../run/motion.js";
import { findNode } from "../run/decode.js";
import { Player } from "../run/player.js";
import * as attention from "./attention.js";
import * as keys from "./keys.js";
import { buildPanels } from "./panels.js";
import * as projector from "./projector.js";

/** @typedef {{ text?: string, mode?: string, autoplay?: boolean, speed?: number, tail?: Tail | null }} Options */

export class Stage {
  /** @type {Set<string>} */
  changed = new Set();
  /** @type {Set<number | string>} */
  opened = new Set();
  /** @type {string | null} */
  selectedNote = null;
  /** @type {Record<string, any>} */
  moments = {};
  /** @type {number | "bonus" | null} */
  node = null;
  /** @type {number | null} */
  moment = null;
  /** @type {number | null} */
  pointed = null;
  /** @type {((node: number | null) => void) | null} */
  pointing = null;
  /** What the shown note does once the page is laid out. @type {(() => void) | null} */
  settling = null;
  /** @type {HTMLDetailsElement[]} */
  folds = [];
  /** @type {Panel[]} */
  panels = [];
  frame = 0;
  table = false;
  /** @type {boolean | null} */
  reading = null;
  tab = "verdict";
  u = 1;
  slow = false;
  projector = false;
  unfolded = false;
  cursor = -1;
  clock = 0;
  within = 1;
  zoom = 1;
  span = 0;
  width = 0;
  height = 0;
  column = 0;
  tall = 0;
  size = "";
  picked = false;
  flipPicture() {}
  toggleProjector() {}
  toggleKeys() {}
  escape() {}

  /** @param {HTMLElement} host @param {Options} options */
  constructor(host, options = {}) {
    this.options = options;
    this.root = dom.h("section", { class: "specviz", tabindex: "0", "aria-label": "Speculative decoding run" });
    this.stillness = matchMedia("(prefers-reduced-motion: reduce)");
    this.feed = new Feed({
      onReset: () => this.reset(),
      onChange: () => this.onNewLines(),
      tail: options.tail,
      mode: options.mode,
    });
    this.reset();
    this.tip = new Tip(this);
    this.player = new Player(this);
    this.panels = buildPanels(this);
    host.replaceChildren(this.root);
    this.sizes = new ResizeObserver((entries) => {
      this.measure();
      // A banner or a longer text moves the panels without changing the stage's own size.
      if (entries.some((entry) => entry.target !== this.root)) this.touch("size", "tree");
    });
    this.themes = new MutationObserver(() => this.touch("theme"));
    this.watch();
    keys.listen(this);
  }

  reset() {
    Object.assign(this, { cursor: -1, node: null, picked: false, clock: 0, opened: new Set(), zoom: 1, span: 0 });
    Object.assign(this, { pointed: null, pointing: null, within: 1, moment: null });
    this.follow = true;
    this.fresh = true;
    if (this.player) this.player.stop();
    this.touch("run", "data", "cursor", "node", "clock", "ui");
  }

  get trace() {
    return this.feed.trace;
  }
  get step() {
    return this.trace.steps[this.cursor] || null;
  }
  get last() {
    return this.trace.steps.length - 1;
  }
  get total() {
    return this.trace.ends[this.last] || 0;
  }
  get selected() {
    return this.step && this.node !== null ? findNode(this.shown, this.node) : null;
  }
  /** The step as far as its motion has come; the whole step if it does not move. */
  get shown() {
    return this.moment === null ? this.step : motion.seen(this.step, motion.of(this.step), this.moment);
  }
  /** The last step whose tokens are in the output. */
  get written() {
    return this.moment === null || this.step === null || !this.shown.veiled ? this.cursor : this.cursor - 1;
  }
  /** Which part of a moving step is shown, in words; else nothing. */
  get phase() {
    return this.moment === null ? "" : motion.label(this.step, motion.of(this.step), this.moment);
  }
  get calm() {
    return this.stillness.matches;
  }
  get live() {
    return this.trace.mode === "live";
  }
  get running() {
    const { run, end, notice } = this.trace;
    return this.live && Boolean(run) && !end && !(notice && notice.error);
  }

  /** New lines have arrived. */
  onNewLines() {
    this.touch("data", "run");
    if (this.last < 0) return;
    if (this.live && this.follow) this.show(this.last);
    else if (this.cursor < 0) this.open();
  }

  /** Open a recorded run: at its first step, playing unless the reader asked for less motion, or where it relaxes. */
  open() {
    if (this.fresh) this.player.speed = this.options.speed || Player.comfortable(this.trace);
    const at = this.fresh ? attention.opening(this.trace) : 0;
    const plays = this.fresh && !at && this.options.autoplay !== false && !this.calm && this.last > 0 && !attention.reads(this);
    if (plays && this.player.moves) this.at(0, 0);
    else this.show(at);
    this.fresh = false;
    if (plays) this.player.play();
  }

  /** Move to a step without stopping playback; `within` 1 is the finished step, less than 1 a time of its motion. */
  show(cursor, clock = this.trace.ends[cursor], within = 1) {
    if (clock !== this.clock || within !== this.within) this.touch("clock");
    const [step, before] = [this.trace.steps[cursor], this.moment];
    const moved = cursor !== this.cursor;
    this.moment = within < 1 && step ? motion.momentAt(motion.of(step), within) : null;
    Object.assign(this, { clock, cursor, within });
    if (!moved && this.moment === before) return;
    this.touch("moment", "node");
    if (moved || this.moment !== null || before !== null) this.node = this.toExplain();
    // The tokens of a moving step enter the output with its commit.
    if (this.written === cursor) this.touch("ui");
    if (!moved) return;
    this.opened = new Set();
    this.picked = this.picked && this.size === "phone"; // there the proof stays open and follows
    this.pointed = null;
    this.touch("cursor");
    this.root.dispatchEvent(new CustomEvent("specviz:step", { bubbles: true, detail: { step: cursor } }));
  }

  /** Show a step at a time of its motion. @param {number} cursor */
  at(cursor, within) {
    const step = this.trace.steps[cursor];
    this.show(cursor, this.trace.starts[cursor] + motion.recorded(motion.of(step), within), within);
  }

  /** The reader moves to a time within a step. @param {number} cursor */
  seek(cursor, within) {
    if (this.last < 0) return;
    this.player.pause();
    this.follow = false;
    if (within < 1) this.at(cursor, Math.max(0, within));
    else this.show(cursor);
    this.touch("ui");
  }

  /** Turn slow motion on, beginning with the current step, or off. */
  toggleSlow() {
    if (this.calm || this.last < 0) return;
    this.slow = !this.slow;
    this.set({ table: false });
    if (this.slow) this.player.once();
    else this.go(this.cursor);
  }

  /** One step back; in slow motion first to the beginning of the current step. */
  back() {
    const { within, player } = this;
    const atBeginning = within < 0.12 && player.playing && this.cursor > 0;
    if (!this.slow || this.calm || atBeginning) this.go(this.cursor - 1);
    else player.once();
  }

  /** The node to explain: in a moving step, the one that was judged last. */
  toExplain() {
    const { moment, step } = this;
    if (moment === null || !this.shown.veiled) return attention.nodeToExplain(step);
    return motion.of(step).moments[moment].node ?? null;
  }

  /** The reader goes to a step: playback and following stop. @param {number} cursor @param {NodeId} [node] */
  go(cursor, node = null) {
    if (this.last < 0) return;
    this.player.pause();
    const target = Math.min(Math.max(cursor, 0), this.last);
    this.follow = this.running && target === this.last && node === null;
    const moved = target !== this.cursor;
    this.show(target);
    if (this.slow && this.player.moves && moved && node === null && !this.follow) this.player.once();
    if (node !== null) this.pick(node);
    this.touch("ui");
  }

  /** @param {NodeId} node */
  pick(node) {
    if (!this.step || !findNode(this.shown, node)) return;
    // Picking the same node again closes the proof if there is no room to keep it open.
    this.picked = !(this.picked && this.node === node && ["compact", "phone"].includes(this.size));
    this.node = node;
    this.touch("node");
    this.root.dispatchEvent(new CustomEvent("specviz:node", { bubbles: true, detail: { step: this.cursor, node } }));
  }

  /** Report the node under the pointer, or none, to drawings that follow it. @param {number | null} node */
  point(node) {
    if (node === this.pointed) return;
    this.pointed = node;
    if (this.pointing) this.pointing(node);
  }

  /** The next step where the target overruled the draft, or the first one again. */
  rejection() {
    const { steps } = this.trace;
    const at = steps.findIndex((step, index) => index > this.cursor && step.overruled);
    const place = at >= 0 ? at : steps.findIndex((step) => step.overruled);
    if (place >= 0) this.go(place, this.slow ? null : "bonus");
  }

  followLive() {
    this.player.pause();
    this.follow = true;
    if (this.last >= 0) this.show(this.last);
    this.touch("ui");
  }

  set(patch) {
    Object.assign(this, patch);
    if (this.table && this.within < 1) this.show(this.cursor);
    this.touch("ui", "tree");
  }

  fullScreen() {
    if (document.fullscreenElement) document.exitFullscreen();
    else if (this.root.requestFullscreen)
      this.root.requestFullscreen().catch(() => this.root.classList.toggle("sv-full-screen"));
    else this.root.classList.toggle("sv-full-screen");
  }

  touch(...what) {
    for (const topic of what) this.changed.add(topic);
    if (!this.frame && this.panels.length) this.frame = requestAnimationFrame(() => this.flush());
  }

  /** Draw what has changed. */
  flush() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    const changed = this.changed;
    this.changed = new Set();
    for (const panel of this.panels) panel.update(changed);
    for (const panel of this.panels) if (panel.settle) panel.settle();
    if (changed.has("run")) this.root.dispatchEvent(new CustomEvent("specviz:run", { bubbles: true }));
  }

  /** Follow the size of the stage and the theme around it. */
  watch() {
    this.sizes.observe(this.root);
    for (const panel of this.panels) if (panel.measured) this.sizes.observe(panel.measured);
    for (const element of [document.documentElement, document.body]) {
      this.themes.observe(element, { attributes: true, attributeFilter: ["class", "data-theme"] });
    }
    this.measure();
  }

  measure() {
    const { width, height } = this.root.getBoundingClientRect();
    if (!width || (width === this.width && height === this.height)) return;
    Object.assign(this, { width, height });
    this.u = this.projector ? projector.scale(this) : width >= 1500 ? 1.2 : 1;
    this.root.style.setProperty("--sv-u", this.projector ? String(this.u) : "");
    const size = this.projector ? "large" : Stage.sizeOf(width);
    this.root.dataset.size = size;
    this.size = size;
    this.touch("size", "tree");
  }

  /** Phones stack everything; a narrow column beside another stage keeps its height and shows the proof on demand. @param {number} width */
  static sizeOf(width) {
    if (width < 440 || (width < 640 && matchMedia("(pointer: coarse)").matches)) return "phone";
    if (width < 700) return "compact";
    if (width < 900) return "narrow";
    if (width < 1120) return "middle";
    return width < 1500 ? "wide" : "large";
  }

  destroy() {
    this.feed.unfollow("");
    this.player.stop();
    for (const panel of this.panels) if (panel.destroy) panel.destroy();
    this.sizes.disconnect();
    this.themes.disconnect();
    cancelAnimationFrame(this.frame);
    this.root.remove();
  }
}

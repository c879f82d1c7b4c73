// Holds the one state every panel draws from (which step, which node, what time it is) and tells them what has changed.
import * as dom from "../kit/dom.js";
import { Tip } from "../kit/tip.js";
import { Feed } from "../run/feed.js";
import { findNode } from "../run/parseStep.js";
import { Player } from "../run/player.js";
import * as keys from "./keys.js";
import { buildPanels } from "./panels.js";

export class Stage {
  constructor(host, options = {}) {
    this.options = options;
    this.root = dom.h("section", { class: "specviz", tabindex: "0", "aria-label": "Speculative decoding run" });
    Object.assign(this, {
      changed: new Set(),
      frame: 0,
      opened: new Set(),
      table: false,
      zoom: 1,
      tab: "verdict",
      selectedNote: null,
      moments: {},
      u: 1,
    });
    this.feed = new Feed({
      onReset: () => this.reset(),
      onChange: () => this.onNewLines(),
      fetchRange: options.fetchRange,
      mode: options.mode,
    });
    this.reset();
    this.tip = new Tip(this);
    this.player = new Player(this);
    this.panels = buildPanels(this);
    host.replaceChildren(this.root);
    this.watch();
    keys.listen(this);
  }

  reset() {
    Object.assign(this, { cursor: -1, node: null, picked: false, clock: 0, opened: new Set(), zoom: 1, span: 0 });
    Object.assign(this, { pointed: null, pointing: null });
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
    return this.step && this.node !== null ? findNode(this.step, this.node) : null;
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

  /** First sight of a recorded run: at its first step, playing unless the reader asked for less motion. */
  open() {
    this.show(0);
    if (!this.fresh) return;
    this.fresh = false;
    this.player.speed = this.options.speed || Player.comfortable(this.trace);
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (this.options.autoplay !== false && !calm && this.last > 0) this.player.play();
  }

  /** Move to a step without stopping playback. */
  show(cursor, clock = this.trace.ends[cursor]) {
    if (clock !== this.clock) this.touch("clock");
    this.clock = clock;
    if (cursor === this.cursor) return;
    this.cursor = cursor;
    this.opened = new Set();
    this.picked = this.picked && this.size === "phone"; // there the proof stays open and follows
    this.pointed = null;
    this.node = Stage.nodeToExplain(this.step);
    this.touch("cursor", "node");
    this.root.dispatchEvent(new CustomEvent("specviz:step", { bubbles: true, detail: { step: cursor } }));
  }

  /** The node worth explaining when a step comes up: the last one kept, else the token that ended it. */
  static nodeToExplain(step) {
    if (!step) return null;
    if (step.path.length) return step.path[step.path.length - 1];
    return step.bonus ? "bonus" : 0;
  }

  /** The reader goes to a step: playback and following stop. */
  go(cursor, node = null) {
    if (this.last < 0) return;
    this.player.pause();
    const target = Math.min(Math.max(cursor, 0), this.last);
    this.follow = this.running && target === this.last && node === null;
    this.show(target);
    if (node !== null) this.pick(node);
    this.touch("ui");
  }

  pick(node) {
    if (!this.step || !findNode(this.step, node)) return;
    // A second pick of the same node puts the proof away where there is no room to keep it open.
    this.picked = !(this.picked && this.node === node && ["compact", "phone"].includes(this.size));
    this.node = node;
    this.touch("node");
    this.root.dispatchEvent(new CustomEvent("specviz:node", { bubbles: true, detail: { step: this.cursor, node } }));
  }

  /** The pointer is over a node, or over none: for drawings that follow it. */
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
    if (place >= 0) this.go(place, "bonus");
  }

  followLive() {
    this.player.pause();
    this.follow = true;
    if (this.last >= 0) this.show(this.last);
    this.touch("ui");
  }

  set(patch) {
    Object.assign(this, patch);
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
    if (!this.frame && this.panels) this.frame = requestAnimationFrame(() => this.flush());
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
    this.sizes = new ResizeObserver((entries) => {
      this.measure();
      // A banner or a longer text moves the panels without a change of the stage's own size.
      if (entries.some((entry) => entry.target !== this.root)) this.touch("size", "tree");
    });
    this.sizes.observe(this.root);
    for (const panel of this.panels) if (panel.measured) this.sizes.observe(panel.measured);
    this.themes = new MutationObserver(() => this.touch("theme"));
    for (const element of [document.documentElement, document.body]) {
      this.themes.observe(element, { attributes: true, attributeFilter: ["class", "data-theme"] });
    }
    this.measure();
  }

  measure() {
    const { width, height } = this.root.getBoundingClientRect();
    if (!width || (width === this.width && height === this.height)) return;
    Object.assign(this, { width, height });
    this.u = width >= 1500 ? 1.2 : 1;
    const size = Stage.sizeOf(width);
    this.root.dataset.size = size;
    this.size = size;
    this.touch("size", "tree");
  }

  /** Phones stack everything; a narrow column beside another stage keeps its height and shows the proof on demand. */
  static sizeOf(width) {
    if (width < 440 || (width < 640 && matchMedia("(pointer: coarse)").matches)) return "phone";
    if (width < 700) return "compact";
    if (width < 900) return "narrow";
    if (width < 1120) return "middle";
    return width < 1500 ? "wide" : "large";
  }

  destroy() {
    this.player.stop();
    this.sizes.disconnect();
    this.themes.disconnect();
    cancelAnimationFrame(this.frame);
    this.root.remove();
  }
}

// The step tree: draws the current step, lets the reader pan, zoom, open collapsed branches and pick a node.
import { LEGEND } from "../generated.js";
import * as codes from "../kit/codes.js";
import * as coerce from "../kit/coerce.js";
import * as dom from "../kit/dom.js";
import * as labels from "../kit/labels.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import { Tip } from "../kit/tip.js";
import { findNode } from "../run/parseStep.js";
import * as draw from "./draw.js";
import * as layout from "./layout.js";
import { Roving } from "./roving.js";
import * as rules from "./rules.js";
import { Table } from "./table.js";

export class Tree {
  constructor(stage) {
    this.stage = stage;
    this.hatch = dom.id("hatch");
    this.head = dom.h("h3", { class: "sv-card-title" });
    this.legend = dom.h("div", { class: "sv-legend" });
    this.svg = dom.s("svg", { class: "sv-tree", role: "tree" });
    this.scroller = dom.h("div", { class: "sv-scroll" }, this.svg);
    this.table = new Table(stage);
    this.empty = dom.h("div", { class: "sv-empty" });
    this.coming = dom.h("div", { class: "sv-coming", role: "status" });
    stage.root.append(this.coming);
    this.why = dom.h("p", { class: "sv-ending" });
    this.tools = this.buttons();
    this.card = dom.h(
      "div",
      { class: "sv-card sv-tree-card" },
      dom.h("div", { class: "sv-card-head" }, this.head, this.legend),
      this.scroller,
      this.table.box,
      this.empty,
      dom.h("div", { class: "sv-card-foot" }, this.why, this.tools),
    );
    this.roving = new Roving(this);
    pan(this.scroller);
    this.listen();
  }

  buttons() {
    const { stage } = this;
    const zoom = (by) => () => stage.set({ zoom: by ? Math.min(4, Math.max(0.5, stage.zoom * by)) : 1 });
    this.toggle = dom.button("Table", "The same step as a table (T)", () => stage.set({ table: !stage.table }), {
      "aria-pressed": "false",
    });
    return dom.h(
      "div",
      { class: "sv-tools" },
      dom.button("−", "Smaller: more of the tree (−)", zoom(1 / 1.5), { "aria-label": "Zoom out" }),
      dom.button("Fit", "Fit the tree into its frame (0)", zoom(0)),
      dom.button("+", "Larger: more text (+)", zoom(1.5), { "aria-label": "Zoom in" }),
      this.toggle,
      dom.button(dom.icon("full"), "Full screen (F)", () => stage.fullScreen(), { "aria-label": "Full screen" }),
    );
  }

  listen() {
    const { stage } = this;
    this.svg.addEventListener("click", (event) => {
      const group = event.target.closest("[data-id]");
      if (group) this.take(group.dataset.id, true);
    });
    this.scroller.addEventListener(
      "wheel",
      (event) => {
        if (!event.ctrlKey) return;
        event.preventDefault();
        stage.set({ zoom: Math.min(4, Math.max(0.5, stage.zoom * (event.deltaY < 0 ? 1.15 : 1 / 1.15))) });
      },
      { passive: false },
    );
    stage.tip.over(this.svg, (event) => this.describe(event));
    this.svg.addEventListener("pointerleave", () => stage.point(null));
  }

  /** Pick a node, or open the branch a count stands for. */
  take(name, byPointer = false) {
    const { stage } = this;
    if (name.startsWith("chip")) {
      const branch = name.slice(4);
      stage.opened = new Set([...stage.opened, branch === "pruned" ? branch : Number(branch)]);
      stage.touch("tree");
      return;
    }
    if (byPointer && stage.player.playing) stage.player.pause();
    stage.pick(name === "bonus" ? name : Number(name));
  }

  describe(event) {
    const { step } = this.stage;
    const group = event.target.closest ? event.target.closest("[data-id]") : null;
    const over = group ? Number(group.dataset.id) : null;
    this.stage.point(Number.isInteger(over) ? over : null);
    if (!group || !step) return null;
    const name = group.dataset.id;
    if (name.startsWith("chip")) {
      return [Roving.count(this.plan.items.get(name)), "click to see them"];
    }
    return Tip.about(step, findNode(step, name === "bonus" ? name : Number(name)));
  }

  update(changed) {
    const { stage } = this;
    const fresh = stage.step !== this.step;
    this.step = stage.step;
    if (changed.has("size")) this.size = null;
    if (changed.has("run") || changed.has("data")) this.waiting();
    if (fresh || changed.has("tree") || changed.has("size")) this.redraw(fresh);
    else if (changed.has("overlay")) this.repaint();
    else if (changed.has("node")) this.select();
    if (fresh || changed.has("data")) this.words();
  }

  /** What stands in the tree's place before there is a step, and over it while another run is to come. */
  waiting() {
    const { run, end, notice, steps, coming } = this.stage.trace;
    this.empty.hidden = steps.length > 0;
    this.coming.hidden = !coming;
    this.coming.replaceChildren(...Tree.word(coming));
    if (steps.length) return;
    const busy = run ? !end && { message: "The target is reading the prompt (prefill)…" } : notice && !notice.error && notice;
    const idle = end
      ? "The run ended before its first step."
      : notice
        ? "There is nothing to draw yet."
        : "No run yet. Open a recorded run, or choose a method and press Run live.";
    this.empty.replaceChildren(...(busy ? Tree.word(busy) : [dom.h("p", {}, idle)]));
  }

  /** How far a run is that has no step yet. */
  static word(notice) {
    if (!notice) return [];
    const part = typeof notice.fraction === "number" ? Math.max(0, Math.min(1, notice.fraction)) : null;
    const text = coerce.text(notice.message) + (part === null ? "" : ` · ${Math.round(100 * part)} %`);
    const bar = part === null ? [] : [dom.h("progress", { max: 1, value: part, "aria-label": text })];
    return [dom.h("span", { class: "sv-spinner", "aria-hidden": "true" }), dom.h("p", {}, text), ...bar];
  }

  words() {
    const { stage } = this;
    const { step, trace } = stage;
    const statuses = labels.legendStatuses(trace);
    if (statuses.join() !== this.legendKey) {
      this.legendKey = statuses.join();
      this.legend.replaceChildren(
        ...statuses.map((status) => dom.h("span", {}, draw.sample(status, this.hatch), LEGEND[status])),
        dom.h("span", { class: "sv-legend-extra" }, dom.h("i", { class: "sv-swatch sv-q" }), "q drafter"),
        dom.h("span", { class: "sv-legend-extra" }, dom.h("i", { class: "sv-swatch sv-p" }), "p target"),
      );
    }
    this.legend.hidden = !step;
    this.why.replaceChildren(...codes.named(codes.of(trace.run), step ? rules.ending(step) : ""));
    if (!step) {
      this.head.replaceChildren("Step tree");
      return;
    }
    const total = trace.end ? ` of ${trace.steps.length}` : "";
    const rule = step.veiled || step.nodes.length === 1 ? "" : ` · ${rules.of(step).title}`;
    this.head.replaceChildren(dom.h("b", {}, `Step ${stage.cursor + 1}${total}`), ` · ${labels.tally(step)}${rule}`);
  }

  redraw(fresh) {
    const { stage } = this;
    const { step, table } = stage;
    this.toggle.setAttribute("aria-pressed", String(table));
    this.scroller.hidden = table || !step;
    this.table.box.hidden = !table || !step;
    if (!step) return this.svg.replaceChildren();
    if (table) return this.table.draw(step);
    const { width, height } = this.room();
    if (!width) return undefined;
    const room = { width: width * stage.zoom, height: (height - 2) * stage.zoom };
    const measure = (text, size, bold) => dom.measure(text, size, bold);
    this.anchor = !fresh && this.zoom !== stage.zoom ? this.anchored() : null;
    this.zoom = stage.zoom;
    const patched = codes.patched(codes.of(stage.trace.run));
    this.plan = layout.tree(step, { ...room, u: stage.u, measure, opened: stage.opened, patched });
    const focused = this.svg.contains(document.activeElement);
    this.paint(step);
    this.select(focused);
    this.framing = this.framing || fresh;
    return undefined;
  }

  /** The frame's size; asked for anew only when it may have changed, since asking makes the browser lay out the page. */
  room() {
    if (!this.size || !this.size.width)
      this.size = { width: this.scroller.clientWidth, height: this.scroller.clientHeight };
    return this.size;
  }

  /** Draw anew where everything has stayed in its place. */
  repaint() {
    if (!this.step || !this.plan || this.stage.table) return;
    const focused = this.svg.contains(document.activeElement);
    this.paint(this.step);
    this.select(focused);
  }

  paint(step) {
    const { items, edges, width, height } = this.plan;
    const { u } = this.stage;
    const overlay = noteRegistry.overlay(this.stage) || {};
    const marks = (part) => dom.s("g", { class: "sv-tree-overlay", "aria-hidden": "true" }, part ? part(this.plan, u) : []);
    const lines = dom.s("g", { "aria-hidden": "true" }, edges.map(draw.edge));
    // Drawn last, the accepted path lies over the rest.
    for (const edge of [...lines.children].filter((line) => /accepted|relaxed|bonus/.test(line.getAttribute("class"))))
      lines.append(edge);
    const nodes = [...items.values()].map((item) =>
      this.roving.describe(draw.node(item, u, this.hatch), item, step, items),
    );
    if (overlay.dim) nodes.forEach((node, at) => node.classList.toggle("sv-dim", overlay.dim([...items.values()][at])));
    this.svg.setAttribute("width", Math.floor(width));
    this.svg.setAttribute("height", Math.floor(height));
    this.svg.setAttribute("aria-label", `Draft tree. ${labels.sentence(this.stage)}`);
    this.svg.replaceChildren(draw.hatch(this.hatch), marks(overlay.under), lines, ...nodes, marks(overlay.over));
    codes.tint(this.svg, step, codes.of(this.stage.trace.run), items);
  }

  select(focused = false) {
    const { stage } = this;
    if (stage.table) return this.table.select(stage.node);
    for (const old of this.svg.querySelectorAll('[aria-selected="true"]')) old.setAttribute("aria-selected", "false");
    const group = this.svg.querySelector(`[data-id="${stage.node}"]`);
    if (group) group.setAttribute("aria-selected", "true");
    return this.roving.settle(group, focused);
  }

  get measured() {
    return this.scroller;
  }

  settle() {
    if (this.anchor) this.hold(this.anchor);
    else if (this.framing && this.plan && !this.stage.table) this.frame();
    this.framing = false;
    this.anchor = null;
  }

  /** Where in the frame the chosen node stands, or the frame's middle when it is out of sight. */
  anchored() {
    const { width, height } = this.room();
    const item = this.plan && (this.plan.items.get(this.stage.node) || this.plan.items.get(0));
    if (!item) return null;
    const x = item.x + item.w / 2 - this.scroller.scrollLeft,
      y = item.y - this.scroller.scrollTop;
    return x > 0 && x < width && y > 0 && y < height ? { id: item.id, x, y } : { id: item.id, x: width / 2, y: height / 2 };
  }

  /** Zooming goes on around the chosen node. */
  hold({ id, x, y }) {
    const item = this.plan.items.get(id);
    if (item) this.scroller.scrollTo(item.x + item.w / 2 - x, item.y - y);
  }

  /** When the drawing is larger than its frame, begin where the walk ended, with as much before it as fits. */
  frame() {
    const { scroller, plan } = this;
    const { width, height } = this.room();
    if (plan.width <= width + 1 && plan.height <= height + 1) return;
    const end = plan.items.get("bonus") || plan.items.get(this.stage.node) || plan.items.get(0);
    scroller.scrollLeft = Math.max(0, end.x + end.w + 20 - width);
    scroller.scrollTop = Math.max(0, end.y - height / 2);
  }
}

/** Drag the empty parts of a scrolling box to move what is in it. Touch scrolls by itself. */
function pan(box) {
  let from = null;
  box.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "touch" || event.button !== 0 || event.target.closest("[data-id]")) return;
    from = { x: event.clientX + box.scrollLeft, y: event.clientY + box.scrollTop };
    box.setPointerCapture(event.pointerId);
    box.classList.add("sv-panning");
  });
  box.addEventListener("pointermove", (event) => {
    if (from) box.scrollTo(from.x - event.clientX, from.y - event.clientY);
  });
  const stop = () => {
    from = null;
    box.classList.remove("sv-panning");
  };
  box.addEventListener("pointerup", stop);
  box.addEventListener("pointercancel", stop);
}

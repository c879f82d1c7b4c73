// @ts-check
// The step tree: draws the current step, lets the reader pan, zoom, open collapsed branches and pick a node.
import { LEGEND } from "../generated.js";
import * as codes from "../kit/codes.js";
import * as dom from "../kit/dom.js";
import * as labels from "../kit/labels.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import { pan } from "../kit/pan.js";
import { Tip } from "../kit/tip.js";
import { findNode } from "../run/decode.js";
import * as attention from "../stage/attention.js";
import * as draw from "./draw.js";
import * as layout from "./layout.js";
import { Motion } from "./motion.js";
import { Roving } from "./roving.js";
import * as rules from "./rules.js";
import { StepClock } from "./stepClock.js";
import { waiting } from "./waiting.js";

export class Tree {
  /** The drawn plan; unset until a step is drawn. @type {Plan} */
  plan;
  zoom = 1;
  framing = false;
  /** @type {{ id: number | string, x: number, y: number } | null} */
  anchor = null;
  /** @type {{ width: number, height: number } | null} */
  size = null;
  /** @param {Stage} stage */
  constructor(stage) {
    this.stage = stage;
    this.hatch = dom.id("hatch");
    this.head = dom.h("h2", { class: "sv-card-title" });
    this.legend = dom.h("div", { class: "sv-legend" });
    this.svg = dom.s("svg", { class: "sv-tree", role: "tree" });
    this.motion = new Motion();
    this.clock = new StepClock(stage);
    this.scroller = dom.h("div", { class: "sv-scroll" }, this.svg, this.motion.sweep);
    this.sheet = dom.h("div", { class: "sv-table-box", tabindex: "0", role: "region", "aria-label": "Step as a table", hidden: true });
    this.book = dom.h("div", { class: "sv-reading", hidden: true });
    this.read = dom.button("Read", "The text, a chunk a step (E)", () => stage.set({ reading: !attention.reads(stage), table: false }));
    this.empty = dom.h("div", { class: "sv-empty" });
    this.coming = dom.h("div", { class: "sv-coming", role: "status" });
    stage.root.append(this.coming);
    this.why = dom.h("p", { class: "sv-ending" });
    const zoom = (by) => () => stage.set({ zoom: by ? Math.min(4, Math.max(0.5, stage.zoom * by)) : 1 });
    this.toggle = dom.button("Table", "The same step as a table (T)", () => stage.set({ table: !stage.table }), {
      "aria-pressed": "false",
    });
    const tools = dom.toolbar(
      "Tree",
      this.read,
      dom.button("−", "Smaller: more of the tree (−)", zoom(1 / 1.5), { "aria-label": "Zoom out" }),
      dom.button("Fit", "Fit the tree into its frame (0)", zoom(0)),
      dom.button("+", "Larger: more text (+)", zoom(1.5), { "aria-label": "Zoom in" }),
      this.toggle,
      dom.button(dom.icon("projector"), "Projector mode (P)", () => stage.toggleProjector(), { "aria-label": "Projector mode" }),
      dom.button(dom.icon("full"), "Full screen (F)", () => stage.fullScreen(), { "aria-label": "Full screen" }),
    );
    this.card = dom.h(
      "div",
      { class: "sv-card sv-tree-card" },
      dom.h("div", { class: "sv-card-head" }, this.head, this.legend),
      this.scroller,
      this.sheet,
      this.book,
      this.empty,
      dom.h("div", { class: "sv-card-foot" }, this.clock.box, this.why, tools),
    );
    this.roving = new Roving(this);
    pan(this.scroller);
    this.listen();
  }

  listen() {
    const { stage } = this;
    this.svg.addEventListener("click", (event) => {
      const group = dom.closest(event, "[data-id]");
      if (group) this.take(String(group.dataset.id), true);
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

  /** Pick a node, or open the branch that a count stands for. @param {string} name */
  take(name, byPointer = false) {
    const { stage } = this;
    if (name.startsWith("chip")) {
      const branch = name.slice(4);
      const hidden = (this.step?.nodes[Number(branch)]?.children || []).find((id) => !this.plan.items.has(id));
      stage.opened = new Set([...(this.plan.grouped ? [] : stage.opened), branch === "pruned" ? branch : Number(branch)]);
      stage.touch("tree");
      if (this.plan.grouped && hidden !== undefined) stage.pick(hidden);
      return;
    }
    if (byPointer && stage.player.playing) stage.player.pause();
    stage.pick(name === "bonus" ? name : Number(name));
  }

  describe(event) {
    const { shown: step } = this.stage;
    const group = dom.closest(event, "[data-id]");
    const over = group ? Number(group.dataset.id) : null;
    this.stage.point(Number.isInteger(over) ? over : null);
    if (!group || !step) return null;
    const name = String(group.dataset.id);
    const item = this.plan.items.get(name);
    if (item && item.kind === "chip") return [Roving.count(item), "click to see them"];
    const node = findNode(step, name === "bonus" ? name : Number(name));
    return node && node.status !== "coming" ? Tip.about(step, node) : null;
  }

  /** @param {Set<string>} changed */
  update(changed) {
    const { stage } = this;
    const fresh = stage.step !== this.step;
    this.step = stage.step;
    if (changed.has("size")) this.size = null;
    if (changed.has("run") || changed.has("data")) waiting(stage.trace, this.empty, this.coming);
    const moves = stage.within < 1;
    // A finished step is not redrawn while the run plays on, since the next one replaces it.
    const other = this.motion.on ? !moves && !stage.player.playing : moves;
    if (fresh || changed.has("tree") || changed.has("size")) this.redraw(fresh);
    else if (changed.has("overlay") || other) this.repaint();
    else if (changed.has("node") && stage.picked && this.crowded()) this.redraw(false);
    else if (changed.has("node")) this.select();
    if (this.motion.on) this.motion.apply(stage.within);
    if (this.motion.on && changed.has("moment")) {
      this.rename();
      this.framing = this.framing || stage.node !== null;
    }
    this.clock.update(changed);
    if (fresh || ["data", "moment", "node"].some((topic) => changed.has(topic))) this.words();
  }

  words() {
    const { stage } = this;
    const { step, trace } = stage;
    const statuses = labels.legendStatuses(trace);
    if (statuses.join() !== this.legendKey) {
      this.legendKey = statuses.join();
      this.legend.replaceChildren(
        ...statuses.map((status) => dom.h("span", {}, draw.sample(status, this.hatch), LEGEND[status])),
        // In one piece: “p target” alone on a second line would make no sense.
        dom.h("span", { class: "sv-legend-extra" }, dom.h("i", { class: "sv-swatch sv-q" }), "q drafter", dom.h("i", { class: "sv-swatch sv-p" }), "p target"),
      );
    }
    this.legend.hidden = !step;
    this.why.hidden = stage.within < 1 && !stage.projector;
    this.why.replaceChildren(...codes.named(codes.of(trace.run), step ? this.sentence(step) : ""));
    if (!step) return this.head.replaceChildren("Step tree");
    const total = (trace.end ? ` of ${trace.steps.length}` : "") + (stage.projector && trace.run ? ` · ${trace.run.title || trace.run.method}, ${trace.mode}` : "");
    const rule = step.veiled || step.nodes.length === 1 ? "" : ` · ${rules.of(step).title}`;
    // Never longer than for a finished step, so that the head keeps its height while the step moves.
    const judged = stage.moment === null || !stage.shown.veiled;
    const facts = judged ? ` · ${labels.tally(step)}${rule}` : stage.size === "phone" ? ` · ${stage.phase}` : rule;
    this.head.replaceChildren(dom.h("b", {}, `Step ${stage.cursor + 1}${total}`), facts);
    return undefined;
  }

  /** Why the step ended; in projector mode, the verdict just reached or picked. @param {Step} step */
  sentence(step) {
    const { selected, moment, shown, picked, projector } = this.stage;
    const judging = moment !== null && shown.veiled;
    if (!projector || !(judging || picked)) return rules.ending(step);
    return selected && !["coming", "drafted"].includes(selected.status) ? rules.explain(step, selected) : "";
  }

  redraw(fresh) {
    const { stage } = this;
    const { step, table } = stage;
    this.toggle.setAttribute("aria-pressed", String(table));
    const reads = attention.reads(stage);
    dom.say(this.read, reads ? "Tree" : "Read");
    this.read.hidden = !stage.trace.run || stage.trace.run.modality === "image";
    stage.root.toggleAttribute("data-reading", reads && step !== null);
    this.book.hidden = !reads || !step;
    this.scroller.hidden = table || (reads && stage.size !== "phone") || !step;
    this.sheet.hidden = !table || !step;
    if (!step) return this.svg.replaceChildren();
    if (reads || table) this.views(table);
    if (this.scroller.hidden) return undefined;
    const { width, height } = this.room();
    if (!width) return undefined;
    const room = { width: width * stage.zoom, height: (height - 2) * stage.zoom };
    const measure = (text, size, bold) => dom.measure(text, size, bold);
    this.anchor = !fresh && this.zoom !== stage.zoom ? this.anchored() : null;
    this.zoom = stage.zoom;
    const patched = codes.patched(codes.of(stage.trace.run));
    const focus = stage.picked ? stage.node : attention.nodeToExplain(step);
    this.plan = layout.tree(step, { ...room, u: stage.u, measure, opened: stage.opened, patched, focus, whole: stage.zoom < 1 });
    const focused = this.svg.contains(document.activeElement);
    this.paint(step);
    this.select(focused);
    this.framing = this.framing || fresh;
    return undefined;
  }

  /** Whether siblings of the chosen node are hidden in a grouped tree. */
  crowded() {
    const node = this.step && this.stage.node !== null && findNode(this.step, this.stage.node);
    return node && this.plan && this.plan.grouped && this.plan.items.has(`chip${node.parent}`);
  }

  /** The reading view or the table; their script is fetched first if the page does not have it. */
  views(table) {
    this.motion.stop();
    const { stage } = this;
    const { read, Table } = globalThis.SpecvizViewer;
    if (!read) stage.root.dispatchEvent(new CustomEvent("specviz:read", { bubbles: true }));
    else if (!this.table) {
      this.table = new Table(stage, this.sheet);
      stage.panels.push(read(stage, this.book));
    }
    if (table && this.table) this.table.draw(this.step);
  }

  /** The frame's size; measured again only when it may have changed, since measuring makes the browser lay out the page. */
  room() {
    if (!this.size?.width) this.size = { width: this.scroller.clientWidth, height: this.scroller.clientHeight };
    return this.size;
  }

  /** Redraw a tree whose layout has not changed. */
  repaint() {
    if (!this.step || !this.plan || this.scroller.hidden) return;
    const focused = this.svg.contains(document.activeElement);
    this.paint(this.step);
    this.select(focused);
  }

  /** @param {Step} step */
  paint(step) {
    const { items, width, height } = this.plan;
    const { u } = this.stage;
    const moves = this.stage.within < 1;
    // A note's additions to the tree may reveal its verdicts.
    const overlay = (!moves && noteRegistry.overlay(this.stage)) || {};
    const marks = (part) => dom.s("g", { class: "sv-tree-overlay", "aria-hidden": "true" }, part ? part(this.plan, u) : []);
    const { edges, nodes } = moves ? this.motion.draw(step, this.plan, this.hatch) : this.still();
    // Drawn last, the accepted path lies over the rest.
    const above = (line) => Number(/accepted|relaxed|bonus/.test(line.getAttribute("class")));
    const lines = dom.s("g", { "aria-hidden": "true" }, edges.sort((a, b) => above(a) - above(b)));
    [...items.values()].forEach((item, at) => {
      this.roving.describe(nodes[at], item, this.stage.shown, items);
      if (overlay.dim) nodes[at].classList.toggle("sv-dim", overlay.dim(item));
    });
    this.svg.setAttribute("width", String(Math.floor(width)));
    this.svg.setAttribute("height", String(Math.floor(height)));
    this.svg.setAttribute("aria-label", `Draft tree. ${labels.sentence(this.stage)}`);
    this.svg.replaceChildren(draw.hatch(this.hatch), marks(overlay.under), lines, ...nodes, marks(overlay.over));
    codes.tint(this.svg, step, codes.of(this.stage.trace.run), items);
  }

  /** Edges and nodes of a step that does not move. */
  still() {
    this.motion.stop();
    const nodes = [...this.plan.items.values()].map((item) => draw.node(item, this.hatch));
    return { edges: this.plan.edges.map((link) => draw.edge(link)), nodes };
  }

  /** Name the nodes for screen readers, revealing no more than what can be seen. */
  rename() {
    for (const group of this.svg.querySelectorAll("[data-id]")) this.roving.name(group, this.roving.item(group, this.plan), this.stage.shown);
    this.svg.setAttribute("aria-label", `Draft tree. ${labels.sentence(this.stage)}`);
  }

  select(focused = false) {
    const { stage } = this;
    if (stage.table) return this.table?.select(stage.node);
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
    const item = this.plan && this.item();
    if (!item) return null;
    const x = item.x + item.w / 2 - this.scroller.scrollLeft,
      y = item.y - this.scroller.scrollTop;
    return x > 0 && x < width && y > 0 && y < height ? { id: item.id, x, y } : { id: item.id, x: width / 2, y: height / 2 };
  }

  /** The item of the chosen node, else the root's. */
  item() {
    return this.plan.items.get(this.stage.node ?? 0) || this.plan.items.get(0);
  }

  /** Zoom around the chosen node. */
  hold({ id, x, y }) {
    const item = this.plan.items.get(id);
    if (item) this.scroller.scrollTo(item.x + item.w / 2 - x, item.y - y);
  }

  /** When the drawing is larger than its frame, scroll to where the walk ended, with as much before it as fits. */
  frame() {
    const { scroller, plan } = this;
    const { width, height } = this.room();
    if (plan.width <= width + 1 && plan.height <= height + 1) return;
    const moves = this.stage.within < 1 && this.stage.shown.veiled;
    const end = (!moves && plan.items.get("bonus")) || this.item();
    if (!end) return;
    scroller.scrollLeft = Math.max(0, end.x + end.w + 20 - width);
    scroller.scrollTop = Math.max(0, end.y - height / 2);
  }
}

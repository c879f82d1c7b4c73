// @ts-check
// The drawn tree of a moving step: its parts fade in and out by the step's clock. Only opacity and the sweep's position change.
import * as dom from "../kit/dom.js";
import * as motion from "../run/motion.js";
import * as draw from "./draw.js";

const WIDE = 90; // pixels of the tail behind the sweep

/** @typedef {{ from: number, to: number }} Span */

export class Motion {
  on = false;
  /** @type {{ element: ElementCSSInlineStyle, from: number, to: number, leaves: boolean, value: number | null }[]} */
  ramps = [];

  constructor() {
    this.sweep = dom.h("div", { class: "sv-sweep", "aria-hidden": "true", hidden: true });
    this.stop();
  }

  stop() {
    Object.assign(this, { on: false, ramps: [] });
    this.sweep.hidden = true;
  }

  /** `element` appears or disappears during a span of the clock. @param {SVGElement | null} element */
  ramp(element, span, leaves = false) {
    if (element && span) this.ramps.push({ element, ...span, leaves, value: null });
  }

  /** Draw a laid-out step in layers. Returns its edges and nodes, in the order of the static drawing. @param {Step} step */
  draw(step, plan, hatch) {
    this.stop();
    this.on = true;
    this.plan = plan;
    this.of = motion.of(step);
    const edges = plan.edges.map((link) => this.edge(link));
    const nodes = [...plan.items.values()].map((item) => this.node(item, hatch));
    this.sweep.style.height = `${Math.floor(plan.height) - 2}px`;
    return { edges: edges.flat(), nodes };
  }

  /** When an item appears: a node with its level, the bonus with the commit, a count of hidden nodes when they are drafted or pruned. */
  born({ kind, id, parent, node }) {
    const { born, bonus, pruning } = this.of;
    if (kind === "bonus") return bonus;
    if (kind === "node") return born.get(id);
    if (id === "chippruned") return pruning;
    const first = this.plan.items.get(node.parent ?? parent).node.children.find((child) => !this.plan.items.has(child));
    return born.get(first);
  }

  /** @param {Item} item */
  node(item, hatch) {
    const { group, drafted, judged, scored } = draw.layers(item, hatch);
    this.ramp(group, this.born(item));
    if (drafted) this.verdict(item, drafted, judged);
    this.ramp(scored, this.passed(item));
    return group;
  }

  edge(link) {
    const born = this.born(link.item);
    const judged = draw.edge(link);
    if (link.item.kind !== "node") {
      this.ramp(judged, born);
      return [judged];
    }
    const drafted = dom.s("g", {}, draw.edge(link, "drafted"));
    this.ramp(drafted, born);
    this.verdict(link.item, drafted.firstChild, judged);
    return [drafted, judged];
  }

  /** @param {Item} item */
  verdict(item, drafted, judged) {
    const span = this.of.judged.get(item.id) || { from: 1, to: 1 };
    this.ramp(judged, span);
    this.ramp(drafted, span, true);
  }

  /** When the sweep has passed an item. @param {Item} item */
  passed(item) {
    const { from, to } = this.of.verify;
    const at = from + (to - from) * ((item.x + item.w + WIDE) / (this.plan.width + WIDE));
    return { from: Math.min(at, to - 0.004), to: Math.min(at + 0.02, to) };
  }

  /** Show the step at a time of its clock. */
  apply(t) {
    for (const ramp of this.ramps) {
      const { from, to, leaves } = ramp;
      const come = t >= to ? 1 : t < from ? 0 : (t - from) / (to - from);
      const value = leaves ? 1 - come : come;
      if (value === ramp.value) continue;
      ramp.value = value;
      ramp.element.style.opacity = String(value);
    }
    this.move(t);
  }

  move(t) {
    const { from, to } = this.of.verify;
    const under = t >= from && t < to;
    if (this.sweep.hidden === under) this.sweep.hidden = !under;
    if (!under) return;
    const x = ((t - from) / (to - from)) * (this.plan.width + WIDE) - WIDE;
    this.sweep.style.transform = `translateX(${x.toFixed(1)}px)`;
  }
}

// @ts-check
// The tokens of a step on their way from the tree into the output strip, while its motion commits them.
import * as dom from "../kit/dom.js";
import * as motion from "../run/motion.js";

const MOST = 40;
/** @param {number} x */
const ease = (x) => (x < 0.5 ? 4 * x ** 3 : 1 - (2 - 2 * x) ** 3 / 2);

/** @typedef {{ x: number, y: number }} Point */

export class Flight {
  /** @type {{ token: HTMLElement, chip: HTMLElement, start: Point, end: Point, at: number, to: number, part: number }[]} */
  flights = [];
  /** @type {Step | null} */
  key = null;
  stale = false;

  /** @param {Stage} stage */
  /** @param {Stage} stage @param {import("./strip.js").Strip} strip @param {import("../tree/tree.js").Tree} tree */
  constructor(stage, strip, tree) {
    this.stage = stage;
    this.strip = strip;
    this.tree = tree;
    this.layer = dom.h("div", { class: "sv-flights", "aria-hidden": "true" });
    stage.root.append(this.layer);
  }

  get due() {
    const { stage } = this;
    return stage.moment !== null && stage.written === stage.cursor;
  }

  /** @param {Set<string>} changed */
  update(changed) {
    const { stage } = this;
    if (!this.due) {
      if (this.flights.length) this.clear();
      this.key = null;
      return;
    }
    if (this.key !== stage.step || changed.has("size")) this.stale = true;
    if (!this.stale && changed.has("clock")) this.move();
  }

  /** The tokens' start and end positions need the finished layout. */
  settle() {
    if (!this.due || !this.stale) return;
    this.stale = false;
    this.clear();
    this.key = this.stage.step;
    this.plan();
    this.move();
  }

  clear() {
    for (const { token } of this.flights) {
      token.style.visibility = "";
      token.closest(".sv-step-tokens")?.classList.remove("sv-landing");
    }
    this.flights = [];
    this.layer.replaceChildren();
  }

  plan() {
    const { stage, strip, tree } = this;
    const { step } = stage;
    const corner = stage.root.getBoundingClientRect();
    const [from, until] = [strip.text, tree.scroller].map((box) => box.getBoundingClientRect());
    if (!from.width) return;
    const hold = (y, box) => Math.min(Math.max(y, box.top), box.bottom) - corner.top;
    const tokens = strip.tokens(stage.cursor).filter((token) => step.origins[Number(token.dataset.place)]);
    const starts = tokens.slice(0, MOST).map((token) => {
      const group = tree.svg.querySelector(`[data-id="${step.origins[Number(token.dataset.place)].id}"]`);
      const rects = [token.getClientRects()[0], (group || tree.svg).getBoundingClientRect()];
      return { token, rects };
    });
    const { from: begin, to } = motion.of(step).commit;
    const { landed } = motion.of(step);
    const first = begin + 0.12 * (to - begin);
    const long = (landed - first) / (1 + 0.15 * Math.max(0, starts.length - 1));
    this.flights = starts
      .filter(({ rects }) => rects[0])
      .map(({ token, rects: [end, node] }, place) => {
        const chip = dom.h("span", { class: `${token.className} sv-flight` }, token.textContent);
        const start = { x: Math.min(Math.max(node.left, until.left), until.right - 30) - corner.left, y: hold(node.top, until) };
        const at = first + 0.15 * long * place;
        return { token, chip, start, end: { x: end.left - corner.left, y: hold(end.top, from) }, at, to: at + long, part: -1 };
      });
    this.layer.replaceChildren(...this.flights.map(({ chip }) => chip));
  }

  move() {
    const t = this.stage.within;
    for (const flight of this.flights) {
      const { token, chip, start, end, at, to } = flight;
      const part = Math.min(1, Math.max(0, (t - at) / (to - at)));
      if (part === flight.part) continue;
      flight.part = part;
      const on = ease(part);
      chip.style.opacity = part > 0 && part < 1 ? "1" : "0";
      chip.style.transform = `translate(${start.x + (end.x - start.x) * on}px, ${start.y + (end.y - start.y) * on}px)`;
      token.style.visibility = part < 1 ? "hidden" : "visible";
    }
    const [first] = this.flights;
    if (first) first.token.closest(".sv-step-tokens")?.classList.toggle("sv-landing", this.flights.some((flight) => flight.part < 1));
  }
}

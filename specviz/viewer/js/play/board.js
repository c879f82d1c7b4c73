// @ts-check
// The figure of p and q: bars to drag, the areas between them, coins that fall under q, and the piles of what comes out.
import * as dom from "../kit/dom.js";
import { Drawing, clamp, draggable, handle, mark, place, set, two } from "./dials.js";

/** @typedef {{ p: number[], q: number[], pooled?: number[] | null, fixed: { p: boolean[], q: boolean[] }, tally?: Tally }} Shown */
/** @typedef {{ kept: number[], fresh: number[], count: number }} Tally What came out: drafted tokens that were kept, and replacements. */
/** @typedef {"p" | "q"} Side */

/** @param {number} many @returns {Tally} */
export const emptyTally = (many) => ({ kept: Array(many).fill(0), fresh: Array(many).fill(0), count: 0 });

const WORDS = { shared: "accepted", rest: "rest of p", over: "rejected", extra: "beyond p" };
const [MOST_DOTS, HEAD] = [1500, 15];
const SCALES = [0.26, 0.34, 0.46, 0.62, 0.84];

export class Board {
  /** @type {Shown} */
  now;
  top = 0.6;
  heap = 1;
  at = { p: 0, q: 0 };

  /** @param {{ names: string[], spoken: string, tones?: number[] | null, small?: boolean, drag: (side: Side, at: number, value: number) => void }} how */
  constructor({ names, spoken, tones = null, small = false, drag }) {
    this.tones = tones;
    this.small = small;
    this.drag = drag;
    this.drawing = new Drawing(small ? "svp-small" : "svp-board", spoken, (now) => this.paint(now));
    this.host = this.drawing.host;
    this.columns = names.map((name, at) => this.column(name, at));
    this.dots = mark("g", "svp-dots");
    this.labels = Object.keys(WORDS).map((kind) => mark("text", `svp-direct svp-on-${kind}`));
    this.floor = mark("path", "svp-floor");
    this.caption = mark("text", "svp-caption");
    this.drawing.svg.append(
      this.floor,
      ...this.columns.flatMap(({ areas, piles, words }) => [...Object.values(areas), ...Object.values(piles), ...words]),
      this.dots, ...this.labels, this.caption,
      ...this.columns.flatMap(({ sides }) => [sides.p.line, sides.q.line]),
      ...this.columns.flatMap(({ sides }) => [sides.p.zone, sides.q.zone]),
      ...["p", "q"].flatMap((side) => this.columns.map(({ sides }) => sides[side].knob)),
    );
  }

  column(name, at) {
    const areas = { shared: mark("rect", "svp-shared"), extra: mark("rect", "svp-extra"), rest: mark("rect", "svp-rest"), over: mark("rect", "svp-over") };
    const piles = { kept: mark("rect", "svp-pile-kept"), fresh: mark("rect", "svp-pile-fresh"), goal: mark("path", "svp-goal"), share: mark("text", "svp-number") };
    const label = this.tones ? mark("circle", "svp-tone") : mark("text", "svp-token", name);
    if (this.tones) label.setAttribute("style", `fill:color-mix(in srgb, var(--sv-ink) ${Math.round(100 * this.tones[at])}%, var(--sv-card))`);
    const words = this.small ? [label] : [label, mark("text", "svp-number svp-ink-p"), mark("text", "svp-number svp-ink-q")];
    return { areas, piles: this.small ? {} : piles, words, sides: { p: this.side("p", name, at), q: this.side("q", name, at) } };
  }

  side(side, name, at) {
    const zone = mark("rect", "svp-zone");
    const { ring, knob } = handle(`${side} of ${name.trim()}`, side);
    const letter = mark("text", "svp-letter", this.small ? "" : side);
    knob.append(letter);
    draggable(zone, knob, {
      to: (event) => this.drag(side, at, clamp(((this.base + this.drawing.svg.getBoundingClientRect().top - event.clientY) / (this.base - HEAD)) * this.top, 0, 1)),
      move: (steps) => this.drag(side, at, clamp(Math.round(100 * this.now[side][at] + steps) / 100, 0, 1)),
      end: () => this.fit(),
      side: (steps) => this.walk(side, at + Math.sign(steps)),
    });
    knob.addEventListener("focus", () => this.walk(side, at, false));
    return { zone, knob, ring, letter, line: mark("path", `svp-line svp-line-${side}`) };
  }

  /** Let the Tab key stop at one handle of p and one of q; the arrows walk between them. @param {Side} side @param {number} to */
  walk(side, to, focus = true) {
    this.at[side] = (to + this.columns.length) % this.columns.length;
    this.columns.forEach(({ sides }, at) => set(sides[side].knob, { tabindex: at === this.at[side] ? "0" : "-1" }));
    if (focus) /** @type {any} */ (this.columns[this.at[side]].sides[side].knob).focus();
  }

  /** Choose the scale so that the highest bar fits and none looks lost. */
  fit() {
    const most = Math.max(...this.now.p, ...this.now.q);
    const top = SCALES.find((one) => one > most * 1.06) || 1.06;
    if (top === this.top) return;
    this.top = top;
    this.clear();
    this.show(this.now);
  }

  get base() {
    const { height } = this.drawing;
    return this.small ? height - 24 : Math.round(height * (height < 420 ? 0.56 : 0.6));
  }

  y(value) {
    return this.base - (value / this.top) * (this.base - HEAD);
  }

  /** Centre and width of a column's bar. @param {number} at */
  bar(at) {
    const pitch = this.drawing.width / this.columns.length;
    const wide = Math.min(pitch * 0.8, 116);
    return { pitch, wide, x: pitch * (at + 0.5) };
  }

  /** Top of the pile of a token, for a share of what came out. @param {number} share */
  pile(share) {
    const floor = this.drawing.height - 22;
    return floor - (share / this.heap) * (floor - this.base - 74);
  }

  show(shown) {
    this.now = shown;
    this.drawing.show(shown);
  }

  /** @param {Shown} shown */
  paint(shown) {
    const { p, q, pooled = null, fixed } = shown;
    const large = { shared: [0, 0, 0], extra: [0, 0, 0], rest: [0, 0, 0], over: [0, 0, 0] };
    this.columns.forEach(({ areas, sides, words }, at) => {
      const { x, wide, pitch } = this.bar(at);
      const both = Math.min(p[at], q[at]);
      const taken = pooled ? Math.min(pooled[at], q[at]) : both;
      const spans = { shared: [0, both], extra: [both, taken], rest: [both, p[at]], over: [taken, q[at]] };
      for (const [kind, [low, high]] of Object.entries(spans)) {
        const tall = Math.max(0, this.y(low) - this.y(high));
        set(areas[kind], { x: x - wide / 2, y: this.y(high), width: wide, height: tall < 0.5 ? 0 : tall });
        if (tall * wide > large[kind][0]) large[kind] = [tall * wide, x, (this.y(low) + this.y(high)) / 2, tall];
      }
      for (const side of /** @type {Side[]} */ (["p", "q"])) {
        const { zone, knob, ring, letter, line } = sides[side];
        const y = this.y(shown[side][at]);
        const [hand, away] = [x + (side === "p" ? -1 : 1) * wide * 0.29, side === "p" ? -pitch / 2 : 0];
        set(zone, { x: x + away, y: 0, width: pitch / 2, height: this.base + 4 });
        set(line, { d: `M${x - wide / 2} ${y.toFixed(2)}h${wide}` });
        set(ring, { cx: hand, cy: y, r: this.small ? 6 : 9 });
        set(letter, { x: hand, y: y + 3.6 });
        set(knob, { "aria-valuenow": two(shown[side][at]), "aria-valuetext": two(shown[side][at]), "aria-disabled": fixed[side][at] ? "true" : null, tabindex: at === this.at[side] ? "0" : "-1" });
        zone.classList.toggle("svp-fixed", fixed[side][at]);
      }
      if (this.tones) set(words[0], { cx: x, cy: this.base + 13, r: 8 });
      else set(words[0], { x, y: this.base + 17 });
      if (!this.small) {
        const narrow = pitch < 84;
        place(words[1], x - (narrow ? 0 : 24), this.base + 34, `p ${two(p[at])}`);
        place(words[2], x + (narrow ? 0 : 24), this.base + (narrow ? 47 : 34), `q ${two(q[at])}`);
      }
    });
    set(this.floor, { d: `M0 ${this.base + 0.5}H${this.drawing.width}` });
    if (this.small) return;
    Object.entries(WORDS).forEach(([kind, word], place_) => {
      const [, x, y, tall] = large[kind];
      place(this.labels[place_], x, y + 4, tall > 20 && this.bar(0).wide > 56 ? word : "");
    });
    this.showPiles();
  }

  showPiles() {
    const { tally, p } = this.now;
    const floor = this.drawing.height - 22;
    place(this.caption, 0, this.base + 66, `What comes out${tally && tally.count ? ` of ${tally.count}` : ""}; the lines are p`);
    const shares = p.map((_, at) => (tally && tally.count ? [tally.kept[at] / tally.count, tally.fresh[at] / tally.count] : [0, 0]));
    this.heap = Math.max(this.top, ...shares.map(([kept, fresh]) => kept + fresh));
    this.columns.forEach(({ piles }, at) => {
      const { x, wide } = this.bar(at);
      const [kept, fresh] = shares[at];
      const [first, last] = [this.pile(kept), this.pile(kept + fresh)];
      set(piles.kept, { x: x - wide / 2, y: first, width: wide, height: floor - first });
      set(piles.fresh, { x: x - wide / 2, y: last, width: wide, height: first - last });
      set(piles.goal, { d: `M${x - wide / 2 - 3} ${this.pile(p[at]).toFixed(2)}h${wide + 6}` });
      place(piles.share, x, floor + 16, tally && tally.count ? two(kept + fresh) : "–");
    });
  }

  clear() {
    this.dots.replaceChildren();
  }

  /** Where a coin lands: under q at its own height; a replacement, in what is left of p. @param {number} token @param {number} height */
  spot(token, height) {
    const { x, wide } = this.bar(token);
    return [x + (Math.random() - 0.5) * (wide - 6), this.y(height)];
  }

  /** @param {string} kind @param {number[]} spot */
  dot(kind, [x, y]) {
    if (this.dots.childElementCount < MOST_DOTS) this.dots.append(dom.s("circle", { class: `svp-dot svp-dot-${kind}`, cx: x.toFixed(1), cy: y.toFixed(1), r: 1.7 }));
  }

  /** Height at which a replacement lies. @param {number} token */
  left(token) {
    const { p, q } = this.now;
    return q[token] + Math.random() * Math.max(0, p[token] - q[token]);
  }

  /** Let one coin fall, slowly: to its height under q, if need be over to what is left of p, then onto its pile. @param {{ trials: import("./chance.js").Trial[], token: number }} throw_ */
  async drop({ trials, token }) {
    const [{ token: drafted, share, coin, kept, limit }] = trials;
    const strict = coin * share < this.now.p[drafted];
    const first = this.spot(drafted, coin * share);
    const last = kept ? first : this.spot(token, this.left(token));
    const kind = kept ? (strict ? "kept" : "extra") : "fresh";
    if (!dom.calm()) {
      const moving = mark("g", "svp-coin", dom.s("circle", { r: 8 }));
      this.drawing.svg.append(moving);
      const go = (from, to, duration, easing = "ease-in") =>
        moving.animate([from, to].map(([x, y]) => ({ transform: `translate(${x}px, ${y}px)` })), { duration, easing, fill: "forwards" }).finished;
      const wait = (long) => new Promise((done) => setTimeout(done, long));
      await go([first[0], -10], first, 520);
      moving.classList.add(kept ? `svp-is-${kind}` : "svp-is-over");
      await wait(limit < 1 ? 420 : 220);
      if (!kept) {
        await go(first, last, 520, "ease-in-out");
        moving.classList.replace("svp-is-over", "svp-is-fresh");
        await wait(240);
      }
      await go(last, [last[0], this.pile(0)], 420);
      moving.remove();
    }
    this.dot(kind, last);
  }
}

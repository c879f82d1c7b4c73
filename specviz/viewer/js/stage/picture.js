// @ts-check
// The picture of an image run: it grows with the steps, each cell marked with how it came to be; a click leads to its step.
import * as codes from "../kit/codes.js";
import * as dom from "../kit/dom.js";
import { Tip } from "../kit/tip.js";
import * as distortion from "../run/distortion.js";
import { findNode, noteOf } from "../run/decode.js";

/** @typedef {{ index: number, id: number | "bonus", kind: string, token: number }} Cell */

export class Picture {
  /** @type {boolean | null} */
  choice = null;
  /** @type {Step[]} */
  steps = [];
  /** @type {Cell[]} */
  cells = [];
  /** @type {number[]} */
  upto = [];
  /** @type {Map<number, { row: number, rows: number, image: HTMLImageElement }>} */
  bands = new Map();
  /** @type {HTMLImageElement | null} */
  whole = null;
  rows = 0;
  columns = 0;
  read = 0;
  /** @param {Stage} stage */
  constructor(stage) {
    this.stage = stage;
    this.head = dom.h("h2", { class: "sv-card-title" });
    this.toggle = dom.button("", "Verdicts on or off (V)", () => this.flip(), { class: "sv-verdict-toggle" });
    this.canvas = dom.h("canvas", { class: "sv-pixels", "aria-hidden": "true" });
    this.coarse = dom.h("canvas", { class: "sv-pixels" });
    this.draft = dom.h("div", { class: "sv-coarse-draft", "aria-hidden": "true", hidden: true }, this.coarse, dom.h("b", {}, "coarse draft"));
    this.marks = dom.s("svg", { class: "sv-picture-marks", role: "img", preserveAspectRatio: "none" });
    const box = dom.h("div", { class: "sv-picture-box" }, this.canvas, this.draft, this.marks);
    this.frame = dom.h("div", { class: "sv-picture-frame" }, box);
    this.foot = dom.h("p", { class: "sv-legend sv-picture-summary" });
    const head = dom.h("div", { class: "sv-card-head" }, this.head, this.toggle);
    this.card = dom.h("div", { class: "sv-card sv-picture", hidden: true }, head, this.frame, this.foot);
    this.marks.addEventListener("click", (event) => this.click(event));
    stage.tip.over(this.marks, (event) => this.describe(event));
    stage.flipPicture = () => this.flip();
  }

  /** Whether the marks are hidden: as the reader chose, else at the last step of a finished picture with no node picked. */
  get plain() {
    const { trace, cursor, last, picked } = this.stage;
    return this.choice ?? Boolean(trace.end && this.whole && cursor === last && !picked);
  }

  flip() {
    this.choice = !this.plain;
    this.paint();
  }

  /** @param {Set<string>} changed */
  update(changed) {
    const { run, steps } = this.stage.trace;
    const grid = run && run.grid;
    if (changed.has("run")) {
      this.card.hidden = !grid;
      this.stage.root.toggleAttribute("data-image", Boolean(grid));
      // Codes have no text, so the map of latent codes says more at first sight than a verdict's numbers.
      if (grid && run !== this.run) this.stage.tab = "method";
      this.run = run;
    }
    if (!grid) return;
    if (this.steps !== steps) this.clear(steps, grid);
    while (this.read < steps.length) this.take(steps[this.read]);
    const { end } = this.stage.trace;
    if (end && end.picture && !this.whole) this.whole = this.load(end.picture);
    if (["run", "data", "cursor", "ui", "theme", "node"].some((topic) => changed.has(topic))) this.paint();
    if (this.faded !== this.stage.written) this.fade();
  }

  /** @param {Step[]} steps @param {[number, number]} grid */
  clear(steps, [rows, columns]) {
    Object.assign(this, { steps, rows, columns, read: 0, cells: [], upto: [], bands: new Map(), whole: null });
    this.draft.hidden = true;
  }

  /** Record where each token of a step went; a bonus in place of failed guesses is a resampled cell. @param {Step} step */
  take(step) {
    step.origins.forEach((origin, place) => {
      const node = findNode(step, origin.id);
      if (!node || !node.grid || !this.holds(node.grid)) return;
      const kind = Picture.kind(step, origin);
      this.cells[node.grid[0] * this.columns + node.grid[1]] = {
        index: this.read,
        id: origin.id,
        kind,
        token: step.emitted[place],
      };
    });
    const note = noteOf(step, "canvas");
    if (note) this.bands.set(this.read, { row: note.row, image: this.load(note.png), rows: note.rows });
    this.upto.push(this.cells.length);
    this.read += 1;
  }

  /** Whether a position lies in the picture. @param {number[]} place */
  holds([row, column]) {
    return row >= 0 && row < this.rows && column >= 0 && column < this.columns;
  }

  /** How a cell came to be: as its token did, but a bonus that overruled the draft is resampled. @param {Step} step */
  static kind(step, origin) {
    return origin.kind === "bonus" && step.overruled ? "resampled" : origin.kind;
  }

  load(png) {
    const image = new Image();
    image.addEventListener("load", () => this.pixels());
    image.src = `data:image/png;base64,${png}`;
    return image;
  }

  /** @param {HTMLImageElement} image */
  static done = (image) => image.complete && image.naturalWidth > 0;

  get drawn() {
    return this.upto[this.stage.written] || 0;
  }

  paint() {
    if (!this.rows) return;
    const total = this.rows * this.columns;
    const painted = this.whole || this.bands.size || this.drawn < 2 * this.columns;
    const until = painted ? "" : ", each by itself until the picture is decoded";
    this.head.replaceChildren(dom.h("b", {}, "Picture"), ` · code ${this.drawn} of ${total}${until}`);
    this.toggle.replaceChildren(
      dom.h(this.plain ? "span" : "b", {}, "verdicts"),
      " / ",
      dom.h(this.plain ? "b" : "span", {}, "plain"),
    );
    this.toggle.setAttribute("aria-pressed", String(this.plain));
    this.pixels();
    this.tell();
    this.mark();
  }

  /** The pixels so far: of the finished picture if there is one, else of the bands received so far. */
  pixels() {
    if (!this.rows) return;
    const whole = this.whole && Picture.done(this.whole) ? this.whole : null;
    const side = whole ? whole.naturalWidth / this.columns : 4;
    const width = Math.round(side * this.columns),
      height = Math.round(side * this.rows);
    if (this.canvas.width !== width || this.canvas.height !== height) Object.assign(this.canvas, { width, height });
    this.frame.style.setProperty("--sv-shape", `${this.columns} / ${this.rows}`);
    const pen = dom.pen(this.canvas);
    pen.clearRect(0, 0, width, height);
    pen.save();
    this.mask(pen, side);
    if (whole) pen.drawImage(whole, 0, 0, width, height);
    else this.sketch(pen, side);
    pen.restore();
  }

  /** @param {CanvasRenderingContext2D} pen @param {number} side */
  mask(pen, side) {
    const full = Math.floor(this.drawn / this.columns);
    pen.beginPath();
    pen.rect(0, 0, this.columns * side, full * side);
    pen.rect(0, full * side, (this.drawn % this.columns) * side, side);
    pen.clip();
  }

  /** @param {CanvasRenderingContext2D} pen @param {number} side */
  sketch(pen, side) {
    const book = codes.of(this.stage.trace.run);
    for (let at = 0; at < this.drawn; at += 1) {
      const cell = this.cells[at];
      codes.paint(pen, book, cell ? cell.token : -1, (at % this.columns) * side, Math.floor(at / this.columns) * side, side);
    }
    for (const [index, band] of this.bands) {
      if (index > this.stage.cursor || !Picture.done(band.image)) continue;
      pen.drawImage(band.image, 0, band.row * side, this.columns * side, band.rows * side);
    }
  }

  /**
   * Coarsely drafted rows appear as they were drafted and dissolve into their final codes; with the finished picture, the
   * whole draft does.
   */
  fade() {
    const { written, trace } = this.stage;
    const step = trace.steps[written];
    const finished = trace.end && this.plain && written === this.stage.last;
    this.faded = written;
    const steps = finished ? trace.steps : step ? [step] : [];
    const book = codes.of(trace.run);
    this.draft.hidden = true;
    if (!book) return;
    const side = 4;
    Object.assign(this.coarse, { width: side * this.columns, height: side * this.rows });
    const pen = dom.pen(this.coarse);
    for (const drafted of steps) {
      const note = noteOf(drafted, "coarse_codes");
      const first = drafted.nodes.find((node) => node.id && node.grid);
      if (!note || !first || !first.grid) continue;
      const [row] = first.grid;
      note.codes.forEach((code, at) => {
        const [down, across] = [Math.floor((2 * at) / this.columns), (2 * at) % this.columns];
        codes.paint(pen, book, code, across * side, (row + 2 * down) * side, 2 * side);
      });
      this.draft.hidden = false;
    }
    for (const motion of this.draft.getAnimations()) motion.currentTime = 0;
  }

  /** The outline of a cell's mark at (x, y), ten units wide: strict underlined, relaxed framed twice, resampled dashed, bonus a corner. @param {string} kind @param {number} x @param {number} y */
  static outline(kind, x, y) {
    if (kind === "accepted") return `M${x + 1} ${y + 9}H${x + 9}`;
    if (kind === "bonus") return `M${x + 6} ${y + 0.8}H${x + 9.2}V${y + 4}Z`;
    if (kind === "resampled") return `M${x + 1.2} ${y + 1.2}h7.6v7.6h-7.6Z`;
    if (kind === "relaxed") return `M${x + 1} ${y + 1}h8v8h-8ZM${x + 2.6} ${y + 2.6}h4.8v4.8h-4.8Z`;
    return "";
  }

  /** A mark on the picture, over a light edge of its own, so that it is visible on any colour. */
  static mark = (d, name) => [`sv-mark-edge${/ sv-earlier/.test(name) ? " sv-earlier" : ""}`, name].map((kind) => dom.s("path", { d, class: kind }));

  /** One element for all marks of a kind: one per cell would slow a live run down. */
  signs() {
    const { cursor } = this.stage;
    const kinds = {};
    const add = (name, outline) => void (kinds[name] = (kinds[name] || "") + outline);
    for (let at = 0; at < this.drawn; at += 1) {
      const cell = this.cells[at];
      if (!cell) continue;
      const [x, y] = this.corner(at);
      add(`sv-cell-mark sv-is-${cell.kind}${cell.index === cursor ? "" : " sv-earlier"}`, Picture.outline(cell.kind, x, y));
      if (cell.index === cursor) add("sv-current-cell", `M${x} ${y}h10v10h-10Z`);
    }
    return Object.keys(kinds).flatMap((name) => Picture.mark(kinds[name], name));
  }

  corner(at) {
    return [(at % this.columns) * 10, Math.floor(at / this.columns) * 10];
  }

  mesh() {
    const lines = [];
    for (let row = 0; row <= this.rows; row += 1) lines.push(`M0 ${row * 10}H${this.columns * 10}`);
    for (let column = 0; column <= this.columns; column += 1) lines.push(`M${column * 10} 0V${this.rows * 10}`);
    return dom.s("path", { d: lines.join(""), class: `sv-picture-grid${this.plain ? " sv-transparent" : ""}` });
  }

  mark() {
    this.marks.setAttribute("viewBox", `0 0 ${this.columns * 10} ${this.rows * 10}`);
    const over = this.plain ? [] : [...this.signs(), ...this.chosen(), ...this.pointed()];
    this.marks.replaceChildren(this.mesh(), ...over);
    this.marks.setAttribute("aria-label", `Picture, ${this.drawn} of ${this.rows * this.columns} codes. ${this.spoken}`);
  }

  /** The cell of the chosen node, framed. */
  chosen() {
    const { cursor, node } = this.stage;
    const at = this.cells.findIndex((cell, place) => place < this.drawn && cell && cell.index === cursor && cell.id === node);
    const [x, y] = this.corner(at);
    return at < 0 ? [] : Picture.mark(`M${x - 0.5} ${y - 0.5}h11v11h-11Z`, "sv-chosen-cell");
  }

  /** Where a drafted code that was not kept would have gone. */
  pointed() {
    const { selected } = this.stage;
    if (!selected || !selected.grid) return [];
    const [row, column] = selected.grid;
    const cell = this.cells[row * this.columns + column];
    if (cell && cell.index === this.stage.cursor && cell.id === selected.id) return [];
    const fill = codes.colour(codes.of(this.stage.trace.run), selected.token);
    return [dom.s("rect", { x: column * 10 + 1.5, y: row * 10 + 1.5, width: 7, height: 7, fill, class: "sv-rejected-cell" })];
  }

  static NAMES = [["accepted", "strict"], ["relaxed", "relaxed"], ["resampled", "resampled"], ["bonus", "bonus"]];

  /** How many cells of each kind there are so far, and what relaxation has cost. */
  tell() {
    const counts = { accepted: 0, relaxed: 0, resampled: 0, bonus: 0 };
    for (const cell of this.cells.slice(0, this.drawn)) if (cell && cell.kind in counts) counts[cell.kind] += 1;
    const sign = (kind) =>
      dom.s("svg", { width: 15, height: 15, viewBox: "0 0 10 10", "aria-hidden": "true" }, Picture.mark(Picture.outline(kind, 0, 0), `sv-cell-mark sv-is-${kind}`));
    const parts = Picture.NAMES.filter(([kind]) => counts[kind]).map(([kind, name]) => dom.h("span", {}, sign(kind), `${counts[kind]} ${name}`));
    const spent = distortion.until(this.stage.trace, this.stage.cursor);
    const words = spent && distortion.sentence(spent);
    this.foot.title = words || "";
    this.spoken = [...parts.map((part) => part.textContent), words].filter(Boolean).join(", ");
    this.foot.replaceChildren(...parts, words ? dom.h("span", { class: "sv-distortion" }, words) : "");
  }

  at(event) {
    const box = this.marks.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left) / box.width) * this.columns);
    const row = Math.floor(((event.clientY - box.top) / box.height) * this.rows);
    const place = row * this.columns + column;
    return column >= 0 && column < this.columns && row >= 0 && row < this.rows ? place : -1;
  }

  click(event) {
    const cell = this.cells[this.at(event)];
    if (cell) this.stage.go(cell.index, cell.id);
  }

  describe(event) {
    const place = this.at(event);
    const cell = this.cells[place];
    if (!cell || place >= this.drawn) return null;
    const step = this.steps[cell.index];
    const where = `row ${Math.floor(place / this.columns) + 1}, column ${(place % this.columns) + 1}, step ${cell.index + 1}`;
    const node = findNode(step, cell.id);
    return node && [...Tip.about(step, node), where];
  }
}

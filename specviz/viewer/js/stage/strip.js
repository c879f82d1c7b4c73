// @ts-check
// The output strip: the emitted text, each token coloured by how it came to be; the current step framed, the future pale.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as promptImage from "../kit/promptImage.js";
import { Tip } from "../kit/tip.js";
import { findNode } from "../run/decode.js";

const MOST_PIECES = 8000; // tokens, and letters, of the strip: a browser takes seconds to break longer text into lines
const MOST_LETTERS = 200000;
const MOST_LINES = 6; // a step of more lines takes no room from the tree

export class Strip {
  /** @type {HTMLElement[]} */
  groups = [];
  /** @type {Step[] | null} */
  steps = null;
  /** @type {HTMLElement | null} */
  rest = null;
  /** @type {HTMLElement | null} */
  expected = null;
  at = -1;
  pieces = 0;
  letters = 0;
  counted = 0;
  lines = 0;
  width = 0;
  thumb = false;
  moved = false;

  /** @param {Stage} stage */
  /** @param {Stage} stage */
  constructor(stage) {
    this.stage = stage;
    this.text = dom.h("div", { class: "sv-strip", role: "region", tabindex: "0", "aria-label": "Output text" });
    stage.root.append(this.text);
    this.text.addEventListener("click", (event) => this.click(event));
    stage.tip.over(this.text, (event) => this.describe(event));
  }

  /** @param {Set<string>} changed */
  update(changed) {
    const { trace } = this.stage;
    if (this.steps !== trace.steps) this.clear(trace);
    if (!this.thumb) this.picture();
    while (this.groups.length < trace.steps.length) this.add(trace.steps[this.groups.length]);
    if (changed.has("cursor") || changed.has("data")) this.mark();
    if (changed.has("moment") || changed.has("cursor")) this.expect();
    this.moved = this.moved || changed.has("size");
  }

  /** Scrolling needs the finished layout, so it comes after every panel has drawn. */
  settle() {
    if (this.moved || this.counted < this.groups.length) this.grow();
    if (this.moved) this.reveal();
    this.moved = false;
  }

  /** @param {Recording} trace */
  clear(trace) {
    this.steps = trace.steps;
    this.groups = [];
    this.at = -1;
    Object.assign(this, { pieces: 0, letters: 0, rest: null, counted: 0, lines: 0 });
    this.thumb = false;
    this.text.style.removeProperty("--sv-step-lines");
    this.text.classList.remove("sv-pictured");
    for (const name of ["backgroundImage", "backgroundSize", "paddingLeft", "minHeight"]) this.text.style[name] = "";
    this.text.replaceChildren();
  }

  /** Show the picture of a run that has one: beside the text, where it stays when the text scrolls. */
  picture() {
    const picture = promptImage.of(this.stage);
    if (!picture) return;
    const side = 74 * this.stage.u;
    const [wide, high] = promptImage.fit(picture, side);
    this.thumb = true;
    this.text.classList.add("sv-pictured");
    // The address holds nothing but base64.
    this.text.style.backgroundImage = `url("${picture.address}")`;
    this.text.style.backgroundSize = `${wide}px ${high}px`;
    this.text.style.paddingLeft = `${wide + 14}px`;
    this.text.style.minHeight = `${high + 6}px`;
    this.moved = true;
  }

  /** @param {Step} step */
  add(step) {
    const index = this.groups.length;
    const group = dom.h("span", { class: "sv-step-tokens sv-future", "data-step": index });
    step.origins.forEach((origin, place) => {
      const piece = format.plain(step.pieces[place] || "");
      this.pieces += 1;
      this.letters += piece.length;
      const mark = /^\n+$/.test(piece) ? " sv-line-end" : "";
      if (piece && !this.full()) group.append(dom.h("span", { class: `sv-token sv-is-${origin.kind}${mark}`, "data-place": place }, piece));
    });
    this.groups.push(group);
    if (this.full() && !this.rest) this.text.append((this.rest = dom.h("p", { class: "sv-strip-overflow" })));
    if (this.rest) this.rest.textContent = `The text goes on; ${format.count(this.pieces, "token")} are more than this strip can show.`;
    else this.text.append(group);
  }

  full() {
    return this.pieces > MOST_PIECES || this.letters > MOST_LETTERS;
  }

  /** Move the frame, and the border between past and future, touching only the steps in between. */
  mark() {
    const now = this.stage.cursor;
    if (this.at >= 0 && this.groups[this.at]) this.groups[this.at].classList.remove("sv-current-step");
    for (let index = Math.min(this.at, now) + 1; index <= Math.max(this.at, now); index += 1) {
      if (this.groups[index]) this.groups[index].classList.toggle("sv-future", index > now);
    }
    if (this.groups[now]) this.groups[now].classList.add("sv-current-step");
    this.moved = this.moved || this.at !== now;
    this.at = now;
  }

  /** The tokens of a moving step are absent before its commit; then flight.js brings them. */
  expect() {
    const { written, cursor } = this.stage;
    const group = written < cursor ? this.groups[cursor] : null;
    if (group === this.expected) return;
    if (this.expected) this.expected.classList.remove("sv-expected");
    if (group) group.classList.add("sv-expected");
    this.expected = group;
  }

  /** The elements of a step's tokens. @param {number} index @returns {HTMLElement[]} */
  tokens(index) {
    return this.groups[index] ? [...this.groups[index].querySelectorAll("span")] : [];
  }

  get line() {
    return 14.5 * 1.85 * this.stage.u;
  }

  /** Make the strip as high as the step with the most lines, so that none is cut; a new width measures all steps again. */
  grow() {
    const { width } = this.stage;
    if (this.width !== width) Object.assign(this, { width, counted: 0, lines: 0 });
    const high = this.groups.slice(this.counted).map((group) => Math.ceil((group.getBoundingClientRect().height - 2) / this.line));
    this.counted = this.groups.length;
    const lines = Math.min(MOST_LINES, Math.max(this.lines, ...high));
    if (lines === this.lines) return;
    this.lines = lines;
    this.text.style.setProperty("--sv-step-lines", String(lines));
  }

  /** Scroll the strip itself, never the page, by whole lines. */
  reveal() {
    const group = this.groups[this.stage.cursor];
    const { scrollTop, clientHeight, scrollHeight } = this.text;
    if (!group || !group.isConnected || scrollHeight <= clientHeight) return;
    const { line } = this;
    const box = group.getBoundingClientRect();
    const top = box.top - this.text.getBoundingClientRect().top + scrollTop,
      bottom = top + box.height;
    const first = Math.floor(top / line),
      before = box.height + line <= clientHeight ? 1 : 0;
    if (top < scrollTop) this.text.scrollTop = line * Math.max(0, first - before);
    else if (box.height > clientHeight) this.text.scrollTop = line * first;
    else if (bottom > scrollTop + clientHeight + 1)
      this.text.scrollTop = line * Math.ceil((bottom - clientHeight - 2) / line);
  }

  find(event) {
    const token = dom.closest(event, "[data-place]");
    if (!token || !token.parentElement || !this.text.contains(token)) return null;
    const index = Number(token.parentElement.dataset.step);
    const step = this.stage.trace.steps[index];
    return { index, step, node: findNode(step, step.origins[Number(token.dataset.place)].id) };
  }

  click(event) {
    const hit = this.find(event);
    if (hit) this.stage.go(hit.index, hit.node ? hit.node.id : null);
  }

  describe(event) {
    const hit = this.find(event);
    if (!hit || !hit.node) return null;
    const [token, ...rest] = Tip.about(hit.step, hit.node);
    return [token, `step ${hit.index + 1}`, ...rest];
  }
}

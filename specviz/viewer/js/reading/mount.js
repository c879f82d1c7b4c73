// @ts-check
// The reading view: the text in chunks, one a step; a chunk opens the draft of its step in place, and the method's code.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as labels from "../kit/labels.js";
import { FAILED, sentChildren } from "../run/decode.js";
import * as rules from "../tree/rules.js";
import { CSS } from "./style.js";
import { Table } from "./table.js";

const MOST = 8000; // tokens, as on the strip
const SOME = 8; // guesses of one position that are shown before the others are asked for
const PATHS = 12; // paths that were not verified

/** @typedef {{ phase: string, name: string, file: string, line: number, text: string }} Source */
const PHASES = {
  loop: "The step, part by part",
  draft: "Draft: the drafter's guesses become a tree",
  judge: "Judge: which guesses stand",
  commit: "Commit: what stands is kept, and the drafter learns",
};

class Reader {
  /** @type {Step[] | null} */
  steps = null;
  /** @type {HTMLElement[]} */
  chunks = [];
  /** @type {Source[] | null} */
  sources = null;
  closed = false;
  pieces = 0;
  at = -1;
  /** @type {number | null} */
  whole = null;
  coding = false;
  listing = false;

  /** @param {Stage} stage @param {HTMLElement} box */
  constructor(stage, box) {
    this.stage = stage;
    this.box = box;
    this.text = dom.h("div", { class: "sv-read-text", role: "region", "aria-label": "Output text, one chunk a step" });
    this.draft = dom.h("div", { class: "sv-read-draft", role: "group" });
    this.over = dom.h("p", { class: "sv-mute", hidden: true }, "The text goes on; the tree and the slider show its other steps.");
    box.append(this.text, this.over);
    this.text.addEventListener("click", (event) => this.press(dom.closest(event, ".sv-chunk")));
    this.text.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.target !== dom.closest(event, ".sv-chunk")) return;
      event.preventDefault();
      this.press(dom.closest(event, ".sv-chunk"));
    });
    this.update(new Set(["run", "cursor"]));
  }

  /** Go to a chunk's step and open its draft; the open one closes. @param {HTMLElement | null} chunk */
  press(chunk) {
    if (!chunk) return;
    const at = Number(chunk.dataset.step);
    this.closed = at === this.at && this.isOpen && !this.closed;
    this.stage.go(at);
    this.stage.touch("ui");
  }

  /** The draft shows no verdict before it was reached, and nothing opens while the run plays. */
  get isOpen() {
    const { player, moment, running, follow } = this.stage;
    return !player.playing && moment === null && !(running && follow);
  }

  /** @param {Set<string>} changed */
  update(changed) {
    if (this.box.hidden) return;
    const { trace, cursor } = this.stage;
    if (this.steps !== trace.steps) {
      Object.assign(this, { steps: trace.steps, chunks: [], pieces: 0, at: -1, sources: null, coding: false, closed: false });
      this.text.replaceChildren();
      this.over.hidden = true;
    }
    while (this.chunks.length < trace.steps.length && this.pieces < MOST) this.add(trace.steps[this.chunks.length]);
    this.over.hidden = this.chunks.length === trace.steps.length;
    if (cursor !== this.at) Object.assign(this, { closed: this.closed && this.at === cursor, whole: null, listing: false });
    this.chunks.forEach((chunk, at) => {
      chunk.classList.toggle("sv-future", at > this.stage.written);
      chunk.tabIndex = at === cursor ? 0 : -1;
      chunk.toggleAttribute("aria-current", at === cursor);
    });
    this.open(this.chunks[cursor], cursor !== this.at || changed.has("size"));
    this.at = cursor;
  }

  /** @param {Step} step */
  add(step) {
    const at = this.chunks.length;
    const tokens = step.origins.map((origin, place) => dom.h("span", { class: `sv-token sv-is-${origin.kind}` }, format.plain(step.pieces[place] || "")));
    this.pieces += tokens.length;
    const chunk = dom.h("span", { class: "sv-chunk", role: "button", "data-step": at, "aria-expanded": "false", title: `Step ${at + 1}` }, tokens);
    this.chunks.push(chunk);
    this.text.append(chunk);
  }

  /** @param {HTMLElement | undefined} chunk */
  open(chunk, moved) {
    const open = Boolean(chunk) && this.isOpen && !this.closed;
    for (const one of this.text.querySelectorAll('[aria-expanded="true"]')) one.setAttribute("aria-expanded", "false");
    if (!chunk || !open) {
      this.draft.remove();
      if (chunk && moved) chunk.scrollIntoView({ block: "nearest" });
      return;
    }
    chunk.setAttribute("aria-expanded", "true");
    const focus = this.draft.contains(document.activeElement) ? document.activeElement?.getAttribute("data-key") : null;
    if (chunk.nextSibling !== this.draft) chunk.after(this.draft);
    this.fill();
    if (focus) /** @type {HTMLElement | null} */ (this.draft.querySelector(`[data-key="${focus}"]`))?.focus();
    if (moved) this.reveal(chunk);
  }

  /** Scroll the view itself, never the page, so that chunk and draft are in sight. @param {HTMLElement} chunk */
  reveal(chunk) {
    const [frame, first, last] = [this.box, chunk, this.draft].map((one) => one.getBoundingClientRect());
    const below = last.bottom - frame.bottom,
      above = first.top - frame.top - 8;
    if (above < 0 || below > 0) this.box.scrollTop += above < 0 ? above : Math.min(below + 8, above);
  }

  fill() {
    const { stage } = this;
    const { step } = stage;
    if (!step) return;
    const total = stage.trace.end ? ` of ${stage.trace.steps.length}` : "";
    const title = dom.h("h3", {}, `Step ${stage.cursor + 1}${total}: ${labels.tally(step)}`);
    this.draft.setAttribute("aria-label", `Draft of step ${stage.cursor + 1}`);
    const walk = [0, ...step.path];
    const rows = walk.map((id) => this.row(step, step.nodes[id])).filter((row) => row !== null);
    const drafted = dom.h("div", { role: "toolbar", "aria-label": "Guesses" }, rows);
    dom.rove(drafted, [...drafted.querySelectorAll("button")]);
    this.draft.replaceChildren(title, drafted, dom.h("p", {}, rules.ending(step)), ...this.unread(step), this.code(step));
  }

  /** The guesses after one token of the walk, best first, and why the chosen one stands or falls. @param {Step} step @param {TreeNode} node */
  row(step, node) {
    const guesses = sentChildren(step, node).map((id) => /** @type {AnyNode} */ (step.nodes[id]));
    if (step.bonus && step.bonus.parent === node.id) guesses.push(step.bonus);
    if (!guesses.length) return null;
    const all = this.whole === node.id || guesses.length <= SOME + 1;
    const kept = (guess) => !FAILED.has(guess.status) && guess.status !== "skipped";
    const shown = all ? guesses : guesses.filter((guess, at) => at < SOME || kept(guess) || guess.id === this.stage.node);
    const more = guesses.length - shown.length;
    const rest = more ? dom.button(`+${more} more`, "", () => this.set({ whole: node.id }), { class: "sv-more", "data-key": `more${node.id}` }) : null;
    const chosen = guesses.find((guess) => guess.id === this.stage.node);
    return dom.h(
      "div",
      { class: "sv-read-row" },
      dom.h("p", { class: "sv-mute" }, `Guesses after ${format.quote(node.text)}`),
      dom.h("div", { class: "sv-guesses" }, shown.map((guess) => this.guess(guess)), rest),
      chosen ? this.why(step, chosen) : null,
    );
  }

  /** @param {AnyNode} guess */
  guess(guess) {
    const { stage } = this;
    // On a phone the sheet would cover the draft, which gives the reason itself.
    const choose = () => {
      if (stage.size !== "phone") return stage.pick(guess.id);
      stage.node = guess.id;
      return stage.touch("node");
    };
    const mark = guess.status === "bonus" ? "◆ " : FAILED.has(guess.status) ? "✕ " : "";
    const attributes = { class: `sv-guess sv-is-${guess.status}`, "aria-pressed": String(guess.id === stage.node), "data-key": guess.id };
    return dom.button(mark + format.token(guess.text), labels.of(guess.status), choose, attributes);
  }

  /** @param {Step} step @param {AnyNode} node */
  why(step, node) {
    const numbers = [["target p", node.p], ["drafter q", node.q]].filter(([, value]) => value !== null && value !== undefined);
    const told = numbers.map(([name, value]) => `${name} ${format.probability(/** @type {number} */ (value))}`).join(" · ");
    const words = `${format.token(node.text)}, ${labels.of(node.status)}${told ? ` (${told})` : ""}. ${rules.explain(step, node)}`;
    return dom.h("p", { class: "sv-read-why", role: "status" }, words);
  }

  /** What was drafted beside the walk: paths that were not verified, and what was pruned. @param {Step} step */
  unread(step) {
    const beside = step.nodes.filter((node) => node.status === "skipped");
    const parts = [];
    if (step.counts.cut) parts.push(dom.h("p", { class: "sv-mute" }, `${labels.pruned(step)} before the pass.`));
    if (!beside.length) return parts;
    const ends = beside.filter((node) => !sentChildren(step, node).length);
    const path = (node) => {
      const words = [];
      for (let at = node; at && at.id > 0; at = step.nodes[at.parent]) words.unshift(format.token(at.text, 14));
      return words.join(" → ");
    };
    const list = dom.h("ul", {}, ends.slice(0, PATHS).map((node) => dom.h("li", {}, path(node))), ends.length > PATHS ? dom.h("li", {}, `and ${ends.length - PATHS} more`) : null);
    const sum = `${format.count(beside.length, "token")} beside the path, not verified`;
    const fold = dom.h("details", { open: this.listing }, dom.h("summary", { "data-key": "beside" }, sum), list);
    fold.addEventListener("toggle", () => (this.listing = fold.open));
    return [...parts, fold];
  }

  /** The drawer with the method's code. @param {Step} step */
  code(step) {
    const body = dom.h("div", { class: "sv-read-code" });
    const fold = dom.h("details", { open: this.coding }, dom.h("summary", { "data-key": "code" }, "The method's code: draft, judge, commit"), body);
    const draw = () => body.replaceChildren(...(this.sources ? Reader.listing(this.sources, step.rule) : [dom.h("p", {}, "One moment …")]));
    const ask = () => {
      const { stage, steps } = this;
      const take = (sources, problem) => {
        if (steps !== this.steps) return;
        if (problem) body.replaceChildren(dom.h("p", { role: "status" }, problem));
        else this.sources = sources;
        if (!problem) draw();
      };
      const asked = new CustomEvent("specviz:source", { bubbles: true, cancelable: true, detail: { stage, take } });
      if (stage.root.dispatchEvent(asked)) take([], "This page holds the run alone. The app shows the code beside a recorded or a live run.");
    };
    fold.addEventListener("toggle", () => {
      this.coding = fold.open;
      if (!fold.open) return;
      draw();
      if (!this.sources) ask();
    });
    if (this.coding && this.sources) draw();
    return fold;
  }

  /** The functions by phase, and what they are; of several rules, the one that names itself as the step does. @param {Source[]} sources @param {string} rule */
  static listing(sources, rule) {
    const own = sources.filter(({ phase, text }) => phase === "judge" && text.includes(`"${rule}"`));
    const taken = sources.filter((one) => one.phase !== "judge" || !own.length || own.includes(one));
    const note = dom.h("p", { class: "sv-mute" }, "Whole functions of the components that the method may use; the run's parameters decide which take part.");
    const sections = Object.entries(PHASES).flatMap(([phase, title]) => {
      const of = taken.filter((one) => one.phase === phase);
      const lines = (text) => text.replace(/\n$/, "").split("\n").map((line) => dom.h("code", {}, line || " "));
      const functions = of.map(({ name, file, line, text }) => [
        dom.h("p", {}, dom.h("b", {}, name), dom.h("span", { class: "sv-mute" }, ` ${file}:${line}`)),
        dom.h("pre", { tabindex: "0", role: "region", "aria-label": name, style: `counter-reset: line ${line - 1}` }, lines(text)),
      ]);
      return of.length ? [dom.h("section", { class: `sv-code-${phase}` }, dom.h("h4", {}, title), functions)] : [];
    });
    return [note, ...sections];
  }

  set(patch) {
    Object.assign(this, patch);
    this.fill();
  }
}

/** The reading view of a stage, as one of its panels. @param {Stage} stage @param {HTMLElement} box */
function read(stage, box) {
  if (!document.getElementById("specviz-reading-style")) document.head.append(dom.h("style", { id: "specviz-reading-style" }, CSS));
  return new Reader(stage, box);
}

Object.assign(globalThis.SpecvizViewer || {}, { read, Table });

// @ts-check
// The figures of the story: the stage at a phase of one step, lanes of the race, the odds of a pass, and what passes cost.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as motion from "../run/motion.js";
import { Lane } from "../run/raceLane.js";
import { lineUp } from "../run/raceLanes.js";
import { megabytes, rate } from "./chapters.js";
import { STEP } from "./numbers.js";

/** A figure: its element, what it says under itself, how long it moves in ms, and how it looks when `done` goes from 0 to 1. */
/** @typedef {{ element: HTMLElement, caption: string, lasts: number, draw: (done: number) => void }} Figure */

const SLOW = 150; // how much slower than recorded the weights travel on screen
const { time } = format;

/** A bar of parts on a clock of `whole` nanoseconds; it shows itself up to `clock`. @param {string} words @param {[string, number][]} parts @param {number} whole */
function bar(words, parts, whole) {
  const ns = parts.reduce((sum, [, part]) => sum + part, 0);
  const fill = dom.h("span", { class: "sst-parts" }, parts.map(([kind, part]) => dom.h("i", { class: kind, style: `flex:${part}` })));
  const label = dom.h("b", {}, time(ns));
  const element = dom.h("p", { class: "sst-bar" }, dom.h("span", {}, words), dom.h("span", { class: "sst-track" }, fill, label));
  return { element, show: (/** @type {number} */ clock) => {
    fill.style.width = `${(82 * Math.min(clock, ns)) / whole}%`;
    dom.say(label, time(Math.max(0, Math.min(clock, ns))));
  } };
}

/** @param {import("../stage/stage.js").Stage} stage @param {HTMLElement} element @param {import("./chapters.js").Facts} n @returns {Record<string, Figure>} */
export function figures(stage, element, n) {
  const { trace } = stage;
  const lanes = lineUp([trace]).map((lane, at) => new Lane(lane, at + 1));
  const [alone] = lineUp([trace]).filter(({ kind }) => kind === "baseline").map((lane) => new Lane(lane, null));
  const total = alone.lane.total;

  /** The stage within one phase of the step that is told. @param {string} first @param {string} last @param {number} lasts @param {string} caption */
  function phase(first, last, lasts, caption) {
    const { phases } = motion.of(trace.steps[STEP]);
    const from = phases.find(({ name }) => name === first).from;
    const to = phases.find(({ name }) => name === last).to - 1e-6;
    const draw = (/** @type {number} */ done) => (last === "commit" && done === 1 ? stage.seek(STEP, 1) : stage.seek(STEP, from + (to - from) * done));
    return { element, caption, lasts, draw };
  }

  /** Weights travelling past the rows of one pass, and bars of what passes cost. @param {boolean} many @returns {Figure} */
  function journey(many) {
    const nodes = trace.steps[STEP].nodes.slice(0, many ? n.rows : 1);
    const pass = many ? n.pass : n.alone;
    const [pipe, sent] = [dom.h("i"), dom.h("b")];
    const bars = [bar("one token", [["sst-plain", n.alone]], n.separate)];
    if (many) bars.push(bar(`${n.rows} tokens, one pass`, [["sst-pass", n.pass]], n.separate), bar(`${n.rows} tokens, ${n.rows} passes`, Array(n.rows).fill(["sst-plain", n.alone]), n.separate));
    const box = dom.h("div", { class: "sst-journey" },
      dom.h("div", { class: "sst-memory" }, dom.h("b", {}, megabytes(n.bytes)), "of weights in memory"),
      dom.h("div", { class: "sst-pipe" }, pipe, dom.h("span", {}, sent, " fetched")),
      dom.h("div", { class: "sst-cores" }, dom.h("p", {}, nodes.map(({ text }) => dom.h("code", {}, format.token(text, 10)))), many ? `${n.rows} tokens in the pass` : "one token in the pass"),
      dom.h("div", { class: "sst-bars" }, bars.map((one) => one.element)));
    return {
      element: box, caption: `Recorded times, ${SLOW} times slower. ${rate(n.rate)} is what a pass for one token comes to.`, lasts: (SLOW * pass) / 1e6,
      draw(done) {
        pipe.style.transform = `scaleX(${done})`;
        dom.say(sent, megabytes(done * n.bytes));
        bars.forEach((one, at) => one.show(at === 0 && many ? Infinity : at < 2 ? done * pass : done === 1 ? Infinity : 0));
      },
    };
  }

  const rows = [...n.odds.map(({ text, p }) => ({ words: format.token(text), p: p || 0 })), { words: "all others", p: n.others }];
  const odds = dom.h("div", { class: "sst-odds" }, dom.h("p", { class: "sst-before" }, "… ", n.before, dom.h("b", {}, " ?")),
    rows.map(({ words, p }, at) => dom.h("p", { class: "sst-bar" }, dom.h("code", {}, words), dom.h("span", { class: "sst-track" }, dom.h("span", { class: "sst-parts", style: `width:${82 * p}%` }, dom.h("i", { class: at ? "sst-plain" : "sst-pass", style: "flex:1" })), dom.h("b", {}, format.probability(p))))));

  const one = n.tau * n.alone;
  const bill = [bar("a step", [["sst-guess", n.draft], ["sst-pass", n.pass], ["sst-rest", n.rest]], one), bar(`its ${n.tau.toFixed(2)} tokens one at a time`, [["sst-plain", one]], one)];
  const key = [["sst-guess", "draft"], ["sst-pass", "pass"], ["sst-rest", "judge, commit, host"]].map(([kind, words]) => dom.h("span", {}, dom.h("i", { class: kind }), words));
  const race = dom.h("div", { class: "sst-race" }, lanes.map((lane) => lane.element), dom.h("div", { class: "sst-bars" }, bill.map((each) => each.element), dom.h("p", { class: "sst-key" }, key)));

  return {
    lane: { element: dom.h("div", { class: "sst-race" }, alone.element), caption: "Recorded, four times slower than it was.", lasts: (4 * total) / 1e6, draw: (done) => alone.draw(done * total, done === 1) },
    odds: { element: odds, caption: "What the model answered in this run, after the words above.", lasts: 0, draw() {} },
    journey: journey(false),
    wide: journey(true),
    draft: phase("draft", "draft", 3600, "The drafter’s tree grows."),
    verify: phase("verify", "verify", 2400, "Below a guess: amber the drafter’s probability, blue the model’s where it was recorded."),
    judge: phase("judge", "judge", 4200, "Blue is kept, a cross is refused, dots were never judged."),
    commit: phase("commit", "commit", 2600, "The tokens join the text."),
    bill: { element: race, caption: "The whole run in real time; below, its average step.", lasts: total / 1e6, draw(done) {
      for (const lane of lanes) lane.draw(done * total, done === 1);
      for (const each of bill) each.show(Infinity);
    } },
  };
}

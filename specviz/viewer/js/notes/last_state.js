// @ts-check
// Drafts from the last token's state: tokens per pass against the length of the text, and which half drafted each step.
import * as curves from "../kit/curves.js";
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as svgKit from "../kit/svgKit.js";
import { disc, line, rhombus, text } from "../kit/svgKit.js";
import { noteOf } from "../run/decode.js";

const MOST = 600,
  AROUND = 12;
/** @param {number} value */
const size = (value) => Math.min(1e9, Math.max(0, value));
const HALF = { tree: "the network's tree", suffix: "copied from memory" };

/** @param {Trace.LastStateNote} note */
function reach(note) {
  const length = format.count(size(note.length), "token");
  const probe = note.with_probe ? " and the state of a [SPEC] token after it, which nothing else reads" : "";
  return `Of ${length} of text the network sees only the last one's state${probe}: a longer text costs no more.`;
}

/** Why this half drafts; empty where there is no choice. @param {Trace.LastStateNote} note */
function choice(note) {
  const { score, threshold } = note;
  if (threshold === null) return "";
  if (score === null) return `Drafted by: ${HALF[note.half]}.`;
  const bar = format.probability(threshold);
  if (note.half === "suffix")
    return `The memories expect ${format.probability(score)} right tokens, at least ${bar}, so they draft and the network does not.`;
  if (score >= threshold) return "The memories have nothing to draft here, so the network drafts.";
  return `The memories expect only ${format.probability(score)} right tokens, less than ${bar}, so the network drafts.`;
}

/** (length, tokens, half) of every step that records them. @param {Stage} stage @param {Trace.LastStateNote} note @param {Step} step */
function points(stage, note, step) {
  const { steps } = stage.trace;
  const from = Math.max(0, Math.min(stage.cursor - MOST / 2, steps.length - MOST));
  const series = steps.slice(from, from + MOST).flatMap((round, at) => {
    const row = noteOf(round, "last_state");
    return row && !round.cut && !round.veiled ? [{ at: from + at, length: size(row.length), tokens: round.emitted.length, half: row.half }] : [];
  });
  return series.length ? series : [{ at: 0, length: size(note.length), tokens: step.emitted.length, half: note.half }];
}

/** @param {Trace.LastStateNote} note @param {Step} step @param {Stage} stage */
function chart(note, step, stage) {
  const { u } = stage;
  const series = points(stage, note, step);
  const first = series[0].length,
    last = Math.max(first + 1, series[series.length - 1].length);
  const most = Math.max(3, ...series.map((point) => point.tokens));
  const left = 26 * u,
    top = 20 * u,
    high = Math.max(90 * u, Math.min(240 * u, stage.tall - 200 * u)),
    wide = stage.column - left - 10 * u;
  const x = (length) => left + (wide * (length - first)) / (last - first);
  const y = (tokens) => top + high * (1 - tokens / most);
  const mean = series.map((point, at) => {
    const near = series.slice(Math.max(0, at - AROUND), at + AROUND + 1);
    return [x(point.length), y(near.reduce((sum, other) => sum + other.tokens, 0) / near.length)];
  });
  const ticks = [1, Math.round(most / 2), most].filter((tick, at, every) => every.indexOf(tick) === at);
  const grid = ticks.map((tick) => [
    line(left, y(tick), left + wide, y(tick), "sv-grid"),
    text(stage, left - 6 * u, y(tick) + 4 * u, String(tick), { anchor: "end", kind: "sv-mute" }),
  ]);
  const marks = series.map((point) => {
    const mark = point.half === "suffix" ? rhombus(x(point.length), y(point.tokens), 4.5 * u, "sv-candidate-mark") : disc(x(point.length), y(point.tokens), 3.2 * u, "sv-accepted-mark");
    mark.setAttribute("data-step", String(point.at));
    return mark;
  });
  const path = mean.map(([a, b], at) => `${at ? "L" : "M"}${svgKit.round(a)} ${svgKit.round(b)}`).join("");
  const current = series.findLast((point) => point.at <= stage.cursor) || series[0];
  const parts = [
    text(stage, left, 11 * u, "tokens per pass, by length of the text", { kind: "sv-mute" }),
    grid,
    marks,
    dom.s("path", { d: path, class: "sv-mean-line" }),
    disc(x(current.length), y(current.tokens), 8 * u, "sv-cursor"),
    text(stage, left, top + high + 15 * u, `${first} tokens`, { kind: "sv-mute" }),
    text(stage, left + wide, top + high + 15 * u, String(last), { anchor: "end", kind: "sv-mute" }),
  ];
  const spoken = `Tokens per pass from a text of ${first} to one of ${last} tokens; this step wrote ${step.emitted.length}`;
  const figure = svgKit.frame(stage.column, top + high + 22 * u, spoken, parts);
  figure.addEventListener("click", (event) => {
    const mark = dom.closest(event, "[data-step]");
    if (mark) stage.go(Number(mark.dataset.step));
  });
  const at = Math.max(0, series.indexOf(current));
  const near = series.slice(Math.max(0, at - AROUND), at + AROUND + 1);
  return { figure, series, current: { length: current.length, tokens: near.reduce((sum, point) => sum + point.tokens, 0) / near.length } };
}

/** @param {Trace.LastStateNote} note @param {Step} step @param {Stage} stage */
function draw(note, step, stage) {
  const { figure, series, current } = chart(note, step, stage);
  const badge = dom.h("b", { class: `sv-badge sv-half-${note.half}` }, HALF[note.half]);
  const counts = Object.keys(HALF)
    .map((half) => ({ half, rows: series.filter((point) => point.half === half) }))
    .filter(({ rows }) => rows.length);
  const summary = counts.map(({ half, rows }) => {
    const mean = rows.reduce((sum, point) => sum + point.tokens, 0) / rows.length;
    return `${HALF[half]}: ${format.count(rows.length, "step")}, ${format.probability(mean)} tokens per pass`;
  });
  const key = svgKit.key(
    [disc(0, 0, 5, "sv-accepted-mark"), "network"],
    ...(counts.some(({ half }) => half === "suffix") ? [[rhombus(0, 0, 6, "sv-candidate-mark"), "memory"]] : []),
    [line(-7, 0, 7, 0, "sv-mean-line"), "running mean"],
  );
  const totals = dom.h("p", { class: "sv-mute" }, summary.join("; ") + ".");
  const run = [badge, figure, key];
  const measured = curves.draw(stage, note.half === "suffix" ? "copies" : "answers", current, Math.min(330 * stage.u, stage.tall - 130 * stage.u));
  // A hybrid shows which half drafts; the network alone shows that long texts do not confuse it.
  if (measured && note.threshold === null)
    return dom.h("div", {}, measured.figure, svgKit.caption(measured.sentence), svgKit.more(stage, run, svgKit.caption(reach(note)), totals, measured.source));
  return dom.h("div", {}, run, svgKit.caption(choice(note)), svgKit.more(stage, svgKit.caption(reach(note)), totals, measured ? [measured.figure, svgKit.caption(measured.sentence), measured.source] : null));
}

noteRegistry.register("last_state", { title: "τ by text length", draw });

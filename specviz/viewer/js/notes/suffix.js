// @ts-check
// Suffix trees: how long the match is, what it allows, the score of each match length, and how often each token followed.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as svgKit from "../kit/svgKit.js";
import { box, line, text } from "../kit/svgKit.js";

const MOST = 64,
  MOST_ROWS = 12;
const WHERE = { context: "this text", outputs: "earlier outputs" };

/** @param {Trace.SuffixNote} note @param {Step} step */
function sentence(note, step) {
  const { suffix_length: matched, source } = note;
  if (source === "none" || !matched)
    return "No continuation of this text is known, so nothing is drafted: the target adds one token.";
  const times = format.count(note.occurrences, "time");
  const allowed = format.count(note.limit, "token");
  const opening = `The last ${format.count(matched, "token")} occur ${times} in ${WHERE[source]}; a match that long allows ${allowed}.`;
  if (!note.used) return `${opening} The score is below the threshold, so nothing is drafted.`;
  return opening + (step.veiled ? "" : ` The target kept ${step.counts.kept} of ${step.counts.drafted}.`);
}

/** Score by match length, with the threshold as a line across. @param {Trace.SuffixNote} note @param {Stage} stage */
function chart(note, stage) {
  const tried = note.tried.slice(0, MOST);
  if (!tried.length) return null;
  const { u } = stage;
  const threshold = note.threshold || 0;
  const most = Math.max(1, threshold, ...tried.map((attempt) => attempt.score));
  const left = 30 * u,
    top = 18 * u,
    height = Math.max(80 * u, Math.min(220 * u, stage.tall - (130 + 23 * note.rows.length) * u)),
    pitch = Math.min(34 * u, (stage.column - left) / tried.length);
  const y = (value) => top + (height - top) * (1 - Math.min(1, value / most));
  const bars = tried.map((attempt, at) => {
    const { score } = attempt;
    const x = left + at * pitch;
    const best = attempt.length === note.suffix_length;
    const wide = Math.max(2, pitch - 4 * u);
    const name = best || at === 0 || at === tried.length - 1 ? String(attempt.length) : "";
    return [
      box(x, y(score), wide, height - y(score), best ? "sv-accepted-mark" : "sv-unverified-mark"),
      text(stage, x + wide / 2, height + 13 * u, name, { anchor: "middle", kind: "sv-mute", bold: best }),
    ];
  });
  /** @type {Child[]} */
  const parts = [text(stage, 0, 11 * u, "score: tokens expected to be right, by length of the match", { kind: "sv-mute" })];
  parts.push(text(stage, left - 5 * u, top + 6 * u, format.probability(most), { anchor: "end", kind: "sv-mute" }), bars);
  if (threshold > 0) parts.push(line(left, y(threshold), stage.column, y(threshold), "sv-threshold-line"));
  const spoken = `Score ${format.probability(note.score)} at a match of ${note.suffix_length}, threshold ${threshold}`;
  return svgKit.frame(stage.column, height + 17 * u, spoken, parts);
}

/** @param {Step} step @param {Stage} stage */
function fork(row, step, stage) {
  const node = step.nodes[row.node];
  const whole = Math.max(1, row.count);
  const cells = row.texts.map((word, at) => {
    const status = noteRegistry.verdict(step, row.node, row.tokens[at]);
    const times = row.counts[at] || 0;
    return dom.h(
      "td",
      { class: status ? `sv-used sv-is-${status}` : "sv-unused", title: `followed ${times} of ${whole} times` },
      `${format.token(word, 9)} ${times}×`,
    );
  });
  const name = dom.h("th", { scope: "row" }, `${format.token(node ? node.text : "", 11)} ${whole}×`);
  const tableRow = dom.h("tr", { "data-id": row.node }, name, cells);
  tableRow.addEventListener("click", () => stage.pick(row.node));
  return tableRow;
}

/** @param {Trace.SuffixNote} note @param {Step} step @param {Stage} stage */
function draw(note, step, stage) {
  const rows = note.rows.slice(0, MOST_ROWS);
  const scores = Object.entries(note.scores).filter(([name]) => WHERE[name]);
  const summary = scores.map(([name, score]) => `${WHERE[name]} ${format.probability(score)}`).join(", ");
  const table = dom.h("table", {}, dom.h("tbody", {}, rows.map((row) => fork(row, step, stage))));
  const where = { class: "sv-matrix", tabindex: "0", role: "region", "aria-label": "What followed, and how often" };
  return dom.h(
    "div",
    {},
    chart(note, stage),
    rows.length ? dom.h("div", where, table) : null,
    svgKit.caption(sentence(note, step)),
    summary ? svgKit.more(stage, dom.h("p", { class: "sv-mute" }, `Best score by memory: ${summary}.`)) : null,
  );
}

noteRegistry.register("suffix", { title: "Suffix match", draw });

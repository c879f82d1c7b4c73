// @ts-check
// A learned vector for every step of drafting: how long each is, and how far drafting gets with them and without.
import * as dom from "../kit/dom.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as svgKit from "../kit/svgKit.js";
import { box, text } from "../kit/svgKit.js";

/** @typedef {ReturnType<typeof read>} Data */

/** @param {Trace.StepEmbeddingsNote} note */
function read(note) {
  /** @param {number[] | null} counts */
  const numbers = (counts) => (counts || []).slice(0, 16).map((count) => Math.max(0, count));
  const compared = note.without !== null;
  const [total, ours, bare] = (compared ? [note.asked, note.with, note.without] : [note.reached, note.kept, null]).map(numbers);
  const depths = total.filter((many) => many > 0).length;
  return { norms: numbers(note.norms), total, ours, bare, depths, compared };
}

/** @param {Data} data @param {Stage} stage */
function bars(data, stage) {
  const { u } = stage;
  const roomy = Math.max(34, Math.min(44, (stage.tall / u - 150) / Math.max(1, data.depths)));
  const [left, pitch] = [62 * u, (data.compared ? roomy : 30) * u];
  const scale = stage.column - left - 64 * u;
  const rows = Array.from({ length: data.depths }, (_, depth) => {
    const y = depth * pitch + 2;
    const bar = (values, at, kind) => {
      const share = Math.min(1, (values[depth] || 0) / data.total[depth]);
      return [
        box(left, at, Math.max(1, share * scale), 13 * u, kind, 2),
        text(stage, left + share * scale + 6 * u, at + 11 * u, `${Math.round(100 * share)} % of ${data.total[depth]}`, {
          kind: "sv-mute",
        }),
      ];
    };
    return [
      text(stage, left - 8 * u, y + 11 * u, `level ${depth + 1}`, { anchor: "end" }),
      bar(data.ours, y, "sv-with-bar"),
      data.compared ? bar(data.bare, y + 15 * u, "sv-without-bar") : null,
    ];
  });
  return svgKit.frame(stage.column, Math.max(1, data.depths) * pitch, sentence(data), rows);
}

/** @param {Data} data */
function sentence(data) {
  if (data.compared)
    return "How many of the written tokens were the drafter's first guess: with its vectors, and without.";
  const off = data.norms.every((norm) => norm === 0);
  const switched = off ? "; the vectors are switched off" : "";
  return `At the levels reached so far, how often the target accepted a drafted token${switched}.`;
}

/** @param {Trace.StepEmbeddingsNote} note @param {Step} step @param {Stage} stage */
function draw(note, step, stage) {
  const data = read(note);
  const lengths = data.norms.map((norm, at) => `step ${at}: ${norm.toFixed(2)}`).join(" · ");
  const square = (kind) => box(-6, -6, 12, 12, kind);
  return dom.h(
    "div",
    {},
    data.depths ? bars(data, stage) : svgKit.caption("Nothing was judged before this step."),
    data.compared
      ? svgKit.key([square("sv-with-bar"), "with its vectors"], [square("sv-without-bar"), "without"])
      : null,
    svgKit.caption(sentence(data)),
    svgKit.more(stage, dom.h("p", { class: "sv-mute" }, `Length of the vector each step adds · ${lengths}`)),
  );
}

noteRegistry.register("step_embeddings", { title: "Step embeddings", draw });

// @ts-check
// A masked-diffusion drafter: a block of masks behind the text, resolved at once; and how long accepted blocks have been.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as scrubber from "../kit/scrubber.js";
import * as svgKit from "../kit/svgKit.js";
import { box, line, text } from "../kit/svgKit.js";
import { Tip } from "../kit/tip.js";

const MOST = 64,
  SHOWN = 3;
const MOMENTS = [
  { key: "masks", label: "Masks" },
  { key: "resolved", label: "One pass" },
  { key: "verdict", label: "Verdict" },
];

/** @typedef {ReturnType<typeof read>} Data */

/** @param {Trace.DenoisedNote} note @param {Step} step */
function read(note, step) {
  return note.places.slice(0, MOST).map(({ texts, tokens, probability }, at) => ({
    node: step.nodes[at + 1] || null,
    texts,
    tokens,
    probability: probability.map((share) => Math.min(1, Math.max(0, share))),
  }));
}

/** @param {Data} data @param {Step} step */
function sentence(data, step, moment) {
  const masks = format.count(data.length, "mask");
  if (moment.key === "masks") return `${masks} stand behind the text: nothing is drafted yet.`;
  if (moment.key === "resolved") {
    return (
      `One drafter pass resolves all ${masks} at once. Every place sees the text, and none knows what its ` +
      "neighbours become."
    );
  }
  if (step.veiled) return "The target has not looked at the block yet.";
  const acceptedCount = step.path.length;
  const all = acceptedCount === data.length ? " The whole block was right." : "";
  return `The target kept ${format.count(acceptedCount, "token")} of ${data.length}: the first one that it rejects ends the block.${all}`;
}

/** @param {Stage} stage @param {Data} data */
function place(stage, data, moment) {
  const { u } = stage;
  const wide = 92 * u;
  const across = Math.max(1, Math.min(data.length, Math.floor(stage.column / wide)));
  const rows = moment.key === "masks" ? 0 : SHOWN;
  return { u, across, wide: stage.column / across, high: (34 + SHOWN * 17 + 12) * u, rows };
}

/** @param {Step} step @param {AnyNode} node */
const verdict = (step, node, moment) =>
  !node || step.veiled || moment.key !== "verdict" ? "skipped" : node.status === "root" ? "skipped" : node.status;

/** @param {Step} step @param {Stage} stage @param {Data} data */
function cell(step, stage, data, at, moment, number) {
  const { u } = stage;
  const slot = data[number];
  const left = (number % at.across) * at.wide + 4 * u;
  const top = Math.floor(number / at.across) * at.high;
  const width = at.wide - 8 * u;
  const most = Math.max(3, Math.floor((width - 8 * u) / (7.2 * u)));
  if (moment.key === "masks" || !slot.node) {
    const blank = box(left, top, width, 24 * u, "sv-mask", 4);
    return dom.s("g", { class: "sv-cell" }, blank, text(stage, left + 6 * u, top + 16 * u, `mask ${number + 1}`, { kind: "sv-mute" }));
  }
  const cellBox = box(left, top, width, 24 * u, "sv-cell-box", 4);
  const word = text(stage, left + 5 * u, top + 16 * u, format.token(slot.node.text, most), { kind: "sv-word" });
  const fresh = moment.key === "resolved" ? "sv-resolved" : "";
  const look = `sv-cell ${fresh} sv-is-${verdict(step, slot.node, moment)}`;
  return dom.s("g", {}, dom.s("g", { class: look, "data-id": slot.node.id }, cellBox, word), guesses(stage, slot, left, top, width, most));
}

/** The place's own likeliest tokens, with bars. @param {Stage} stage @param {number} width */
const guesses = (stage, slot, left, top, width, most) =>
  slot.texts.slice(0, SHOWN).map((word, rank) => {
    const { u } = stage;
    const high = top + (38 + rank * 17) * u;
    return [
      text(stage, left + 2 * u, high, format.token(word || `#${slot.tokens[rank]}`, most), { kind: "sv-word sv-mute" }),
      box(left, high + 3 * u, Math.max(1, width * (slot.probability[rank] || 0)), 2.2 * u, "sv-q", 1),
    ];
  });

/** @param {Data} data @param {Step} step @param {Stage} stage */
function picture(data, step, stage, moment) {
  const at = place(stage, data, moment);
  const parts = data.map((_, number) => cell(step, stage, data, at, moment, number));
  const height = Math.ceil(data.length / at.across) * at.high;
  const figure = svgKit.frame(stage.column, height, sentence(data, step, moment), parts);
  return svgKit.pickable(figure, stage, (id) => Tip.about(step, step.nodes[id]));
}

/** How many steps so far accepted how many tokens: blocks of a diffusion drafter have a long tail. @param {Stage} stage @param {Step} step */
function lengths(stage, step) {
  /** @type {number[]} */
  const counts = [];
  for (const round of stage.trace.steps) counts[round.counts.kept] = (counts[round.counts.kept] || 0) + 1;
  const histogram = Array.from(counts, (many) => many || 0);
  const { u } = stage;
  const most = Math.max(1, ...histogram);
  const pitch = Math.min(34 * u, (stage.column - 8 * u) / Math.max(1, histogram.length));
  const floor = 62 * u;
  const bars = histogram.map((many, length) => {
    const own = !step.veiled && length === step.counts.kept;
    const high = (44 * u * many) / most;
    const middle = (length + 0.5) * pitch;
    return [
      box(middle - pitch * 0.36, floor - high, pitch * 0.72, Math.max(many ? 1.5 : 0, high), own ? "sv-length-bar-current" : "sv-length-bar", 1),
      text(stage, middle, floor + 14 * u, String(length), { anchor: "middle", kind: own ? "" : "sv-mute", bold: own }),
      many && pitch > 16 * u
        ? text(stage, middle, floor - high - 4 * u, String(many), { anchor: "middle", kind: "sv-mute" })
        : null,
    ];
  });
  const spoken = `Accepted lengths over the run: ${histogram.map((many, length) => `${length}: ${format.count(many, "step")}`).join(", ")}`;
  const rule = line(0, floor, histogram.length * pitch, floor, "sv-grid");
  return dom.h(
    "div",
    { class: "sv-length-chart" },
    dom.h("b", {}, "Accepted in a step, over the run"),
    svgKit.frame(stage.column, floor + 20 * u, spoken, rule, bars),
  );
}

/** @param {Trace.DenoisedNote} note @param {Step} step @param {Stage} stage */
function draw(note, step, stage) {
  const data = read(note, step);
  if (!data.length) return svgKit.caption("There was no room for a block in this step.");
  const drawMoment = (moment) =>
    dom.h("div", {}, picture(data, step, stage, moment), svgKit.caption(sentence(data, step, moment)));
  const moments = step.veiled ? MOMENTS.slice(0, 2) : MOMENTS;
  const legend = svgKit.key(
    [box(-7, -1, 14, 2.4, "sv-q", 1), "how likely in its place"],
  );
  return dom.h("div", {}, scrubber.make(stage, "denoised", moments, drawMoment), legend, svgKit.more(stage, lengths(stage, step)));
}

/** In the main tree: while the masks stand there, nothing is drafted. @param {Trace.DenoisedNote} note @param {Step} step @param {Stage} stage */
function overlay(note, step, stage) {
  const moments = step.veiled ? MOMENTS.slice(0, 2) : MOMENTS;
  const now = scrubber.place(stage, "denoised", moments, moments.length - 1);
  return { dim: (item) => item.kind === "node" && item.depth > 0 && moments[now].key === "masks" };
}

noteRegistry.register("denoised", { title: "Masks resolved", draw, overlay });

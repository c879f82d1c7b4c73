// @ts-check
// A block drafter: masks after the text, resolved at once, perhaps corrected by the previous token, and cut; and the accepted lengths.
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
  { key: "corrected", label: "Corrected" },
  { key: "verdict", label: "Verdict" },
];

/** @typedef {ReturnType<typeof read>} Data */

/** @param {Trace.DenoisedNote} note @param {Step} step */
function read(note, step) {
  const within = (share) => Math.min(1, Math.max(0, share));
  return note.places.slice(0, MOST).map(({ texts, tokens, probability }, at) => ({
    node: step.nodes[at + 1] || null,
    texts,
    tokens,
    probability: probability.map(within),
    given: (note.given[at] || []).map(within),
    rate: note.rates[at],
  }));
}

/** @param {Data} data @param {Step} step */
const momentsOf = (data, step) =>
  MOMENTS.filter(({ key }) => (key !== "corrected" || data.some((slot) => slot.given.length)) && (key !== "verdict" || !step.veiled));

/** The largest correction: position, token, probability before and after. @param {Data} data */
function largest(data) {
  const changes = data.flatMap((slot, at) => slot.given.map((after, rank) => ({ at, rank, before: slot.probability[rank], after })));
  return changes.sort((a, b) => Math.abs(b.after - b.before) - Math.abs(a.after - a.before))[0];
}

/** What another engine does not report of its block. @param {Data} data */
function unreported(data) {
  if (data.some(({ tokens }) => tokens.length > 1)) return "";
  const bare = data.some(({ probability }) => probability.length) ? "" : " without its probability";
  return ` The engine reports one token per position${bare}, and no other candidates, corrections or predicted acceptance.`;
}

/** @param {Data} data @param {Step} step */
function sentence(data, step, moment) {
  const masks = format.count(data.length, "mask");
  if (moment.key === "masks") return `${masks} after the text: nothing is drafted yet.`;
  if (moment.key === "resolved") {
    return (
      `One drafter pass resolves all ${masks} at once. Every position sees the text, but none knows what its ` +
      "neighbours become."
    );
  }
  const sent = data.filter(({ node }) => node && node.status !== "pruned").length;
  const cut = sent < data.length;
  const few = data[sent]?.rate ?? null;
  const end = cut ? ` The block is cut before position ${sent + 1}${few === null ? "" : `, whose predicted acceptance is ${format.probability(few)}`}.` : "";
  if (moment.key === "corrected") {
    const { at, rank, before, after } = largest(data);
    const word = format.quote(data[at].texts[rank] || `#${data[at].tokens[rank]}`);
    return `The token before each position corrects it: at position ${at + 1} ${word} goes from ${format.probability(before)} to ${format.probability(after)}.${end}`;
  }
  if (step.veiled) return "The target has not verified the block yet.";
  const acceptedCount = step.path.length;
  const all = acceptedCount === data.length ? " The whole block was right." : "";
  return `The target kept ${format.count(acceptedCount, "token")} of ${sent}: the first rejection ends the block.${all}${end}`;
}

/** @param {Stage} stage @param {Data} data */
function place(stage, data, moment) {
  const { u } = stage;
  const wide = (data.length > 6 ? 74 : 92) * u;
  const across = Math.max(1, Math.min(data.length, Math.floor(stage.column / wide)));
  const rows = moment.key === "masks" ? 0 : SHOWN;
  const most = Math.min(SHOWN, Math.max(...data.map((slot) => slot.probability.length)));
  return { u, across, wide: stage.column / across, high: (34 + most * 18 + (data[0].rate === undefined ? 12 : 24)) * u, rows };
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
  const cut = slot.node.status === "pruned" && moment.key !== "resolved";
  const look = `sv-cell ${fresh} ${cut ? "sv-left-out" : `sv-is-${verdict(step, slot.node, moment)}`}`;
  const rate = slot.rate === undefined ? null : text(stage, left + 2 * u, top + (42 + SHOWN * 18) * u, `pred. ${format.probability(slot.rate)}`, { kind: "sv-mute" });
  return dom.s("g", {}, dom.s("g", { class: look, "data-id": slot.node.id }, cellBox, word), guesses(stage, slot, left, top, width, most, moment), rate);
}

/** The position's likeliest tokens, with bars; once corrected, a tick where the bar used to end. @param {Stage} stage @param {number} width */
const guesses = (stage, slot, left, top, width, most, moment) =>
  slot.texts.slice(0, slot.probability.length && SHOWN).map((word, rank) => {
    const { u } = stage;
    const high = top + (38 + rank * 18) * u;
    const corrected = slot.given.length > 0 && moment.key !== "resolved";
    return [
      text(stage, left + 2 * u, high, format.token(word || `#${slot.tokens[rank]}`, most), { kind: "sv-word sv-mute" }),
      box(left, high + 3 * u, Math.max(1, width * ((corrected ? slot.given[rank] : slot.probability[rank]) || 0)), 2.2 * u, "sv-q", 1),
      corrected ? line(left + width * slot.probability[rank], high + u, left + width * slot.probability[rank], high + 7 * u, "sv-threshold-line") : null,
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

/** Histogram of the tokens accepted per step: blocks of a diffusion drafter have a long tail. @param {Stage} stage @param {Step} step */
function lengths(stage, step) {
  /** @type {number[]} */
  const counts = [];
  for (const round of stage.trace.steps) if (!round.veiled) counts[round.counts.kept] = (counts[round.counts.kept] || 0) + 1;
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
    dom.h("b", {}, "Accepted tokens per step, over the run"),
    svgKit.frame(stage.column, floor + 20 * u, spoken, rule, bars),
  );
}

/** @param {Trace.DenoisedNote} note @param {Step} step @param {Stage} stage */
function draw(note, step, stage) {
  const data = read(note, step);
  if (!data.length) return svgKit.caption("There was no room for a block in this step.");
  const drawMoment = (moment) =>
    dom.h("div", {}, picture(data, step, stage, moment), svgKit.caption(sentence(data, step, moment) + unreported(data)));
  const moments = momentsOf(data, step);
  const bar = box(-7, -1, 14, 2.4, "sv-q", 1);
  const corrected = data.some((slot) => slot.given.length);
  const drawn = data.some((slot) => slot.probability.length) ? [[bar, "probability at its position"]] : [];
  const legend = svgKit.key(...drawn, ...(corrected ? [[line(0, -4, 0, 4, "sv-threshold-line"), "before the correction"]] : []));
  return dom.h("div", {}, scrubber.make(stage, "denoised", moments, drawMoment), legend, svgKit.more(stage, lengths(stage, step)));
}

/** In the main tree: while the masks are shown, drafted nodes are dim. @param {Trace.DenoisedNote} note @param {Step} step @param {Stage} stage */
function overlay(note, step, stage) {
  const moments = momentsOf(read(note, step), step);
  const now = scrubber.place(stage, "denoised", moments, moments.length - 1);
  return { dim: (item) => item.kind === "node" && item.depth > 0 && moments[now].key === "masks" };
}

noteRegistry.register("denoised", { title: "Masks resolved", draw, overlay });

// @ts-check
// A lattice of independent guesses, the beams of the search through it, and the gauge of the draft's length.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as scrubber from "../kit/scrubber.js";
import * as svgKit from "../kit/svgKit.js";
import { box, line, text } from "../kit/svgKit.js";
import { Tip } from "../kit/tip.js";

const MOST = 32,
  ROWS = 16;

function column(raw) {
  return {
    texts: raw.texts.slice(0, ROWS),
    tokens: raw.tokens.slice(0, ROWS),
    probability: raw.probability.map((share) => Math.min(1, Math.max(0, share))),
  };
}

/** @typedef {ReturnType<typeof read>} Data */

/** @param {Trace.LatticeNote} note */
function read(note) {
  const columns = note.columns.slice(0, MOST).map(column);
  const beams = note.beams.slice(0, columns.length);
  const { fence, ended, gauge, weight } = note;
  return { columns, beams, path: best(beams), fence, ended: ended ?? fence !== null, gauge, weight };
}

/** The rows that the best beam took, first position first. */
function best(beams) {
  const rows = [];
  let at = 0;
  for (const beam of beams.slice().reverse()) {
    rows.unshift(beam.picks[at]);
    at = beam.parents[at] || 0;
  }
  return rows;
}

/** @param {Data} data */
const moments = (data) => [
  { key: "lattice", label: "Lattice", upTo: -1 },
  ...data.beams.map((_, at) => ({ key: `place ${at}`, label: `Search, position ${at + 1}`, upTo: at })),
  { key: "path", label: "Path", upTo: data.beams.length, done: true },
];

/** @param {Data} data @param {Step} step */
function sentence(data, step, moment) {
  if (moment.upTo < 0) {
    return "One drafter pass gave every position a distribution. Its likeliest tokens form a column; no column knows the others.";
  }
  if (!moment.done) {
    const beam = data.beams[moment.upTo];
    const share = data.weight === null ? "" : ` Score: ${format.probability(data.weight)} of the drafter's log-probability, the rest from an n-gram model.`;
    return `At position ${moment.upTo + 1} the ${format.count(beam.picks.length, "best beam")} survive.${share}`;
  }
  const swapped = data.path.filter((row, at) => row > 0 && at < data.path.length).length;
  const other = swapped ? ` At ${format.count(swapped, "position")} it does not take the likeliest token.` : "";
  const outcome = step.veiled ? "" : ` The target kept ${step.path.length} of ${data.path.length}.`;
  const cut = " At the fence the text is expected to end.";
  const end = (data.fence === null ? "" : cut) + (data.ended ? " The path ends with an end-of-text token." : "");
  return `The best beam is the draft.${other}${end}${outcome}`;
}

/** @param {Data} data @param {Stage} stage */
function place(data, stage) {
  const { u } = stage;
  const wide = Math.max(54 * u, Math.min(150 * u, (stage.column - 4) / Math.max(1, data.columns.length)));
  const rows = Math.max(1, ...data.columns.map((entry) => entry.texts.length));
  return { u, wide, top: 22 * u, pitch: 24 * u, width: wide * data.columns.length, height: (22 + rows * 24 + 4) * u };
}

const middle = (at, row) => at.top + (row + 0.5) * at.pitch - 2 * at.u;

/** @param {Data} data @param {Step} step @param {Stage} stage */
function cell(data, step, stage, at, moment, number, rank) {
  const guesses = data.columns[number];
  const { u } = at;
  const left = number * at.wide + 3 * u,
    width = at.wide - 20 * u;
  const high = at.top + rank * at.pitch;
  const drafted = moment.done && data.path[number] === rank ? step.nodes[number + 1] : null;
  const beam = data.beams[number];
  const surviving = number <= moment.upTo && beam && beam.picks.includes(rank);
  const most = Math.max(3, Math.floor(width / (7.2 * u)));
  const look = drafted ? `sv-is-${step.veiled ? "skipped" : drafted.status}` : surviving ? "sv-in-beam" : "sv-unpicked";
  return dom.s(
    "g",
    { class: `sv-cell ${look}`, "data-id": drafted ? drafted.id : null },
    box(left - 2 * u, high, width + 6 * u, at.pitch - 4 * u, "sv-cell-box", 4),
    text(stage, left + 2 * u, high + 13 * u, format.token(guesses.texts[rank] || `#${guesses.tokens[rank]}`, most), { kind: "sv-word" }),
    box(left + 2 * u, high + 16 * u, Math.max(1, (width - 2 * u) * (guesses.probability[rank] || 0)), 2.2 * u, "sv-q", 1),
  );
}

/** @param {Data} data */
function edges(data, at, moment) {
  const lines = [];
  for (let number = 1; number <= Math.min(moment.upTo, data.beams.length - 1); number += 1) {
    const { parents, picks } = data.beams[number];
    picks.forEach((row, rank) => {
      const from = data.beams[number - 1].picks[parents[rank]];
      if (from === undefined) return;
      const own = moment.done && data.path[number] === row && data.path[number - 1] === from;
      const x = number * at.wide;
      lines.push(line(x - 13 * at.u, middle(at, from), x, middle(at, row), own ? "sv-beam-line sv-path-line" : "sv-beam-line"));
    });
  }
  return lines;
}

/** @param {Data} data @param {Step} step @param {Stage} stage */
function picture(data, step, stage, moment) {
  const at = place(data, stage);
  /** @type {Child[]} */
  const parts = [edges(data, at, moment)];
  data.columns.forEach((guesses, number) => {
    const bold = number === moment.upTo;
    parts.push(text(stage, number * at.wide + 3 * at.u, 13 * at.u, `pos. ${number + 1}`, { kind: bold ? "" : "sv-mute", bold }));
    guesses.texts.forEach((_, rank) => parts.push(cell(data, step, stage, at, moment, number, rank)));
  });
  if (data.fence !== null && moment.upTo >= data.fence - 1) {
    const x = data.fence * at.wide - 5 * at.u;
    parts.push(line(x, 0, x, at.height, "sv-fence"));
    parts.push(text(stage, x, at.height + 12 * at.u, "end of the text", { anchor: "end" }));
  }
  const spoken = `${format.count(data.columns.length, "column")} of guesses. ${sentence(data, step, moment)}`;
  const figure = svgKit.frame(at.width, at.height + (data.fence === null ? 0 : 16 * at.u), spoken, parts);
  svgKit.pickable(figure, stage, (id) => Tip.about(step, step.nodes[id]));
  return dom.h("div", { class: "sv-lattice" }, figure);
}

/** Length of the draft: masks now, and the two running means that determine the next length. @param {Data} data @param {Stage} stage */
function gauge(data, stage) {
  const { u } = stage;
  const longest = Math.max(1, data.gauge.longest);
  const left = 104 * u;
  const unit = (stage.column - left - 44 * u) / longest;
  /** @type {[string, number, string][]} */
  const rows = [
    ["masks now", Math.max(0, data.gauge.length), "sv-length-bar"],
    ["drafted, mean", Math.max(0, data.gauge.drafted), "sv-gauge-drafted"],
    ["accepted, mean", Math.max(0, data.gauge.accepted), "sv-gauge-accepted"],
  ];
  const parts = rows.map(([name, value, kind], row) => [
    text(stage, 0, (14 + row * 19) * u, name, { kind: "sv-mute" }),
    box(left, (4 + row * 19) * u, longest * unit, 12 * u, "sv-gauge-track"),
    box(left, (4 + row * 19) * u, Math.max(1, Math.min(longest, value) * unit), 12 * u, kind),
    text(stage, left + longest * unit + 5 * u, (14 + row * 19) * u, String(Math.round(value * 10) / 10)),
  ]);
  const low = left + Math.max(0, data.gauge.shortest) * unit;
  const how = data.gauge.adaptive ? "the next length follows the means" : "the length is fixed";
  const spoken = rows.map(([name, value]) => `${name}: ${Math.round(value * 10) / 10}`).join(", ");
  return dom.h(
    "div",
    { class: "sv-length-chart" },
    dom.h("b", {}, `Length of the draft: ${how}`),
    svgKit.frame(stage.column, 62 * u, spoken, parts, data.gauge.adaptive ? line(low, 0, low, 58 * u, "sv-threshold-line") : null),
  );
}

/** @param {Trace.LatticeNote} note @param {Step} step @param {Stage} stage */
function draw(note, step, stage) {
  const data = read(note);
  if (!data.columns.length) return svgKit.caption("There was no room for a block in this step.");
  const drawMoment = (moment) =>
    dom.h("div", {}, picture(data, step, stage, moment), svgKit.caption(sentence(data, step, moment)));
  const legend = svgKit.key(
    [box(-7, -1, 14, 2.4, "sv-q", 1), "probability at its position"],
    [line(-7, 0, 7, 0, "sv-beam-line"), "beams that survive"],
    [line(-7, 0, 7, 0, "sv-beam-line sv-path-line"), "the draft"],
    ...(data.gauge.adaptive ? [[line(0, -7, 0, 7, "sv-threshold-line"), "shortest draft"]] : []),
  );
  return dom.h("div", {}, scrubber.make(stage, "lattice", moments(data), drawMoment), legend, svgKit.more(stage, gauge(data, stage)));
}

/** In the main tree: what the search has not reached is dim. @param {Trace.LatticeNote} note @param {Step} step @param {Stage} stage */
function overlay(note, step, stage) {
  const events = moments(read(note));
  const now = events[scrubber.place(stage, "lattice", events, events.length - 1)];
  return { dim: (item) => item.kind === "node" && item.depth > now.upTo + 1 };
}

noteRegistry.register("lattice", { title: "Lattice search", draw, overlay });

// @ts-check
// Dynamic depth: how much probability the beam still holds at each level, and the level where growing was cut off.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as svgKit from "../kit/svgKit.js";
import { box, line, tank, text } from "../kit/svgKit.js";

const MOST = 64;

/** @typedef {ReturnType<typeof read>} Data */

/** @param {Trace.BeamMassNote} note */
function read(note) {
  const masses = note.mass.slice(0, MOST).map((value) => Math.min(1, Math.exp(value)));
  const threshold = Math.min(1, Math.exp(note.threshold));
  const limit = Math.min(MOST, Math.max(masses.length, note.limit));
  return { masses, threshold, limit, tested: new Set(note.tested), below: note.below, forward: note.forward, stopped: note.stopped };
}

/** @param {Data} data */
function sentence(data) {
  const { masses, threshold, stopped } = data;
  const bar = format.probability(threshold);
  if (stopped === null) {
    const why = data.tested.size ? `At every tested level the beam held at least ${bar}` : "No level was tested";
    return `${why}, so the drafter grew all ${format.count(masses.length, "level")}.`;
  }
  return `After level ${stopped} the beam holds ${format.probability(masses[stopped - 1])} of the drafter's probability, less than ${bar}: growing stops.`;
}

/** What stopping saved, and how the threshold was found. */
function background({ stopped, limit, tested, below, forward }) {
  const price =
    forward === null || !tested.size
      ? ""
      : `The threshold was calibrated for the machine of this run, where a drafter pass takes as long as ${Number(forward.toPrecision(2))} target passes.`;
  if (stopped === null) return price || null;
  const rare = below[stopped - 1] ?? null;
  const quantile =
    rare === null ? "" : ` In the calibration ${Math.round(100 * rare)} % of the beams at this level held less.`;
  const saved = limit - stopped;
  const spared = saved > 0 ? ` ${format.count(saved, "drafter pass", "drafter passes")} of ${limit} saved.` : "";
  return `Deeper guesses would rarely be right.${quantile}${spared}${price && ` ${price}`}`;
}

/** The blade, which falls after the last level that was grown. @param {Stage} stage @param {number} x */
function blade(stage, x, top, floor) {
  const w = 9 * stage.u;
  const edge = floor - (floor - top) * 0.35;
  return dom.s(
    "g",
    { class: "sv-blade" },
    line(x, top - 6, x, floor + 3, "sv-axis"),
    dom.s("path", { d: `M${x - w} ${edge - 22}H${x + w}V${edge - 8}L${x - w} ${edge}Z`, class: "sv-blade-edge" }),
  );
}

/** @param {Data} data @param {Stage} stage */
function level(data, at, stage, number) {
  const { u } = stage;
  const { pitch, wide, top, floor, left } = at;
  const middle = left + (number - 0.5) * pitch;
  const grown = number <= data.masses.length;
  const tested = data.tested.has(number);
  const low = tested && data.masses[number - 1] < data.threshold;
  const label = grown && (low || pitch > 28 * u) ? format.probability(data.masses[number - 1]) : "";
  return [
    grown
      ? tank(middle - wide / 2, top, wide, floor - top, data.masses[number - 1], low ? "sv-below-threshold" : "")
      : box(middle - wide / 2, top, wide, floor - top, "sv-absent"),
    label ? text(stage, middle, top - 6, label, { anchor: "middle", bold: low }) : null,
    text(stage, middle, floor + 15 * u, String(number), {
      anchor: "middle",
      bold: tested,
      kind: tested ? "" : "sv-mute",
    }),
    tested
      ? dom.s("path", { d: `M${middle} ${floor + 19 * u}l5 8h-10Z`, class: low ? "sv-test-failed" : "sv-test-passed" })
      : null,
  ];
}

/** @param {Data} data @param {Stage} stage */
function picture(data, stage) {
  const { u } = stage;
  const width = stage.column,
    height = Math.min(300 * u, Math.max(140 * u, stage.tall - 130 * u));
  const left = 40 * u;
  const pitch = (width - left) / Math.max(1, data.limit);
  const at = { left, pitch, wide: Math.min(34 * u, pitch * 0.72), top: 22 * u, floor: height - 34 * u };
  const bar = at.floor - (at.floor - at.top) * data.threshold;
  const parts = [];
  for (let number = 1; number <= data.limit; number += 1) parts.push(level(data, at, stage, number));
  parts.push(line(left - 4, bar, width, bar, "sv-threshold-line"));
  parts.push(text(stage, left - 8, bar + 4, format.probability(data.threshold), { anchor: "end", bold: true }));
  parts.push(text(stage, 0, at.floor + 15 * u, "level", { kind: "sv-mute" }));
  if (data.stopped !== null) parts.push(blade(stage, left + data.stopped * pitch, at.top, at.floor));
  const list = data.masses.map((value, place) => `level ${place + 1}: ${format.probability(value)}`).join(", ");
  return svgKit.frame(
    width,
    height,
    `Probability held by the beam. ${list}. Threshold ${format.probability(data.threshold)}.`,
    parts,
  );
}

/** @param {Trace.BeamMassNote} note @param {Step} step @param {Stage} stage */
function draw(note, step, stage) {
  const data = read(note);
  if (!data.masses.length) return svgKit.caption("Nothing was drafted in this step, so there was no beam to measure.");
  const mark = (kind) => dom.s("path", { d: "M0 -5l5 9h-10Z", class: kind });
  const vessel = (full, kind) => tank(-5, -6, 10, 12, full, kind);
  const legend = [
    [vessel(0.6, ""), "held by the beam"],
    [line(-7, 0, 7, 0, "sv-threshold-line"), "threshold"],
    [mark("sv-test-passed"), "tested"],
    data.limit > data.masses.length ? [box(-5, -6, 10, 12, "sv-absent"), "never grown"] : null,
  ].filter(Boolean);
  const more = background(data);
  return dom.h("div", {}, picture(data, stage), svgKit.key(...legend), svgKit.caption(sentence(data)), more && svgKit.more(stage, svgKit.caption(more)));
}

/** In the main tree: a line after the deepest level that was grown. @param {Trace.BeamMassNote} note */
function overlay(note) {
  const { stopped } = read(note);
  if (stopped === null) return null;
  return {
    over(treeLayout, u) {
      const upTo = [...treeLayout.items.values()].filter((item) => item.kind === "node" && item.depth <= stopped);
      const deepest = Math.max(...upTo.map((item) => item.depth));
      const edge = Math.max(...upTo.filter((item) => item.depth === deepest).map((item) => item.x + item.w)) + 9 * u;
      const size = Math.max(11, 11.5 * u);
      const attributes = { x: edge - 6, y: treeLayout.height - 6, "font-size": size, "text-anchor": "end", class: "sv-halo" };
      return [
        line(edge, 2, edge, treeLayout.height - 2, "sv-axis"),
        dom.s("text", attributes, `growing stopped at level ${stopped}`),
      ];
    },
  };
}

noteRegistry.register("beam_mass", { title: "Beam mass", draw, overlay });

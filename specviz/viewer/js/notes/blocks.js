// @ts-check
// A drafter that writes several levels with every pass: the levels pulse together, and the mask shows who sees whom.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as scrubber from "../kit/scrubber.js";
import * as svgKit from "../kit/svgKit.js";
import { box, text } from "../kit/svgKit.js";

const MOST = 64;

/** @typedef {ReturnType<typeof read>} Data */

/** @param {Trace.BlocksNote} note @param {Step} step */
function read(note, step) {
  const blocks = note.blocks.slice(0, MOST).map(({ nodes, depths: [from, to] }) => {
    const first = Math.max(1, from);
    return { from: first, to: Math.min(MOST, Math.max(first, to)), nodes: nodes.filter((id) => step.nodes[id]) };
  });
  return { blocks, width: note.width, levels: Math.max(0, ...blocks.map((block) => block.to)) };
}

/** @param {Data} data */
const moments = (data) =>
  data.blocks.map((block, place) => ({ key: `forward ${place}`, label: `Pass ${place + 1}`, block, place }));

const span = (block) => (block.from === block.to ? `level ${block.from}` : `levels ${block.from} to ${block.to}`);

/** @param {Data} data @param {Step} step */
function sentence(data, step, moment) {
  const { block, place } = moment;
  const acceptedCount = block.nodes.filter((id) => step.path.includes(id)).length;
  const sent = block.nodes.filter((id) => step.nodes[id].status !== "pruned").length;
  const got = format.count(block.nodes.length, "token");
  const cut = sent < block.nodes.length ? `, of which ${sent} went to the target` : "";
  const tail = step.veiled ? "" : ` The target kept ${acceptedCount}.`;
  return `Pass ${place + 1} fills ${span(block)} at once: ${got}${cut}.${tail}`;
}

/** @param {Data} data */
const of = (data, level) => data.blocks.findIndex((block) => level >= block.from && level <= block.to);

/** Rows: the level being written; columns: the levels it may see. A block is a full square, hence the steps. @param {Data} data @param {Stage} stage @param {number} side */
function mask(data, stage, moment, side) {
  const { u } = stage;
  const left = 58 * u,
    top = 20 * u;
  const cell = (side - top) / Math.max(1, data.levels);
  const parts = [];
  for (let row = 1; row <= data.levels; row += 1) {
    const mine = of(data, row);
    for (let column = 1; column <= data.levels; column += 1) {
      const its = of(data, column);
      const kind = its === mine ? "sv-own-block" : its < mine ? "sv-earlier-block" : "sv-unseen";
      const fresh = mine > moment.place ? "sv-upcoming" : "";
      const at = [left + (column - 1) * cell, top + (row - 1) * cell];
      parts.push(box(at[0] + 1, at[1] + 1, cell - 2, cell - 2, `${kind} ${fresh}`, 2));
    }
    parts.push(
      text(stage, left - 6 * u, top + (row - 0.5) * cell + 4, `level ${row}`, { anchor: "end", kind: "sv-mute" }),
    );
    parts.push(
      text(stage, left + (row - 0.5) * cell, top - 6 * u, String(row), { anchor: "middle", kind: "sv-mute" }),
    );
  }
  const { from, to } = moment.block;
  const at = (level) => (level - 1) * cell;
  const wide = (to - from + 1) * cell;
  parts.push(box(left + at(from) - 1, top + at(from) - 1, wide + 2, wide + 2, "sv-current-frame", 3));
  return { parts, left, end: left + data.levels * cell };
}

/** How many tokens each pass brought, and how many were kept, as one line of text per pass. @param {Data} data @param {Step} step @param {Stage} stage @param {number} x @param {number} side */
function harvest(data, step, stage, moment, x, side) {
  const { u } = stage;
  const pitch = Math.min(40 * u, side / Math.max(1, data.blocks.length));
  return data.blocks.map((block, place) => {
    const high = (place + 0.5) * pitch + 8 * u;
    const look = place > moment.place ? "sv-upcoming" : place === moment.place ? "sv-current-row" : "";
    const acceptedCount = block.nodes.filter((id) => step.path.includes(id)).length;
    const summary = `${format.count(block.nodes.length, "token")}${step.veiled ? "" : `, ${acceptedCount} kept`}`;
    return dom.s(
      "g",
      { class: `sv-forward-row ${look}` },
      text(stage, x, high, `pass ${place + 1}`, { bold: place === moment.place }),
      text(stage, x, high + 15 * u, summary, { kind: "sv-mute" }),
    );
  });
}

/** @param {Data} data @param {Step} step @param {Stage} stage */
function picture(data, step, stage, moment) {
  const { u } = stage;
  const side = Math.min(stage.column - 190 * u, Math.max(130 * u, stage.tall - 128 * u));
  const maskFigure = mask(data, stage, moment, side);
  const parts = [maskFigure.parts, harvest(data, step, stage, moment, maskFigure.end + 20 * u, side)];
  const spoken = `Attention mask of ${data.levels} levels in blocks of ${data.width}. ${sentence(data, step, moment)}`;
  return svgKit.frame(stage.column, side + 6, spoken, parts);
}

/** @param {Trace.BlocksNote} note @param {Step} step @param {Stage} stage */
function draw(note, step, stage) {
  const data = read(note, step);
  if (!data.levels) return svgKit.caption("Nothing was drafted in this step, so there are no blocks to show.");
  const drawMoment = (moment) =>
    dom.h("div", {}, picture(data, step, stage, moment), svgKit.caption(sentence(data, step, moment)));
  const square = (kind) => box(-6, -6, 12, 12, kind);
  const legend = svgKit.key(
    [square("sv-own-block"), "own block: visible both ways"],
    [square("sv-earlier-block"), "earlier: visible"],
    [square("sv-unseen"), "later: hidden"],
  );
  return dom.h("div", {}, scrubber.make(stage, "blocks", moments(data), drawMoment), legend);
}

/** In the main tree: a band behind the levels of each pass; levels not written yet are dim. @param {Trace.BlocksNote} note @param {Step} step @param {Stage} stage */
function overlay(note, step, stage) {
  const data = read(note, step);
  if (!data.levels) return null;
  const forwards = moments(data);
  const now = scrubber.place(stage, "blocks", forwards, forwards.length - 1);
  return {
    dim: (item) => item.kind === "node" && item.depth > data.blocks[now].to,
    under: (treeLayout, u) => data.blocks.map((block, place) => band(treeLayout, u, block, place, now)),
  };
}

/** @param {Plan} treeLayout @param {number} u */
function band(treeLayout, u, block, place, now) {
  const inside = [...treeLayout.items.values()].filter(
    (item) => item.kind === "node" && item.depth >= block.from && item.depth <= block.to,
  );
  if (!inside.length) return null;
  const left = Math.min(...inside.map((item) => item.x)) - 8 * u;
  const right = Math.max(...inside.map((item) => item.x + item.w)) + 8 * u;
  const kind = `sv-band ${place === now ? "sv-current-band" : ""} ${place > now ? "sv-upcoming" : ""}`;
  const beside = [...treeLayout.items.values()].filter((item) => item.x < right && item.x + item.w > left);
  const low = beside.some((item) => item.y > treeLayout.height - 30 * u);
  const attributes = {
    x: left + 6 * u,
    y: low ? 15 * u : treeLayout.height - 7 * u,
    "font-size": Math.max(11, 11.5 * u),
    class: "sv-halo",
  };
  return [box(left, 3, right - left, treeLayout.height - 6, kind, 8), dom.s("text", attributes, `pass ${place + 1}`)];
}

noteRegistry.register("blocks", { title: "Blocks", draw, overlay });

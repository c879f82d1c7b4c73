// A drafter that writes several levels with every forward: the levels pulse together, and the mask shows who sees whom.
import * as coerce from "../kit/coerce.js";
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as scrubber from "../kit/scrubber.js";
import * as svgKit from "../kit/svgKit.js";
import { box, text } from "../kit/svgKit.js";

const MOST = 64;

function read(note, step) {
  const found = coerce
    .list(note.blocks)
    .slice(0, MOST)
    .map((one) => {
      const [from, to] = coerce.list(one.depths).map(coerce.number);
      const nodes = coerce.list(one.nodes).filter((id) => step.nodes[id]);
      return { from: from || 1, to: Math.min(MOST, Math.max(from || 1, to || from || 1)), nodes };
    });
  return { blocks: found, width: coerce.number(note.width) || 1, levels: Math.max(0, ...found.map((one) => one.to)) };
}

const moments = (data) =>
  data.blocks.map((block, place) => ({ key: `forward ${place}`, label: `Forward ${place + 1}`, block, place }));

const span = (block) => (block.from === block.to ? `level ${block.from}` : `levels ${block.from} to ${block.to}`);

function sentence(data, step, moment) {
  const { block, place } = moment;
  const kept = block.nodes.filter((id) => step.path.includes(id)).length;
  const sent = block.nodes.filter((id) => step.nodes[id].status !== "pruned").length;
  const got = format.count(block.nodes.length, "token");
  const cut = sent < block.nodes.length ? `, of which ${sent} went to the target` : "";
  const tail = step.veiled ? "" : ` The target kept ${kept}.`;
  return `Forward ${place + 1} writes ${span(block)} at once: ${got}${cut}.${tail}`;
}

const of = (data, level) => data.blocks.findIndex((block) => level >= block.from && level <= block.to);

/** Rows: the level that is written; columns: what it may look at. Its own block is a full square, hence the steps. */
function mask(data, stage, moment, side) {
  const { u } = stage;
  const left = 58 * u,
    top = 20 * u;
  const cell = (side - top) / Math.max(1, data.levels);
  const made = [];
  for (let row = 1; row <= data.levels; row += 1) {
    const mine = of(data, row);
    for (let column = 1; column <= data.levels; column += 1) {
      const its = of(data, column);
      const kind = its === mine ? "sv-ownblock" : its < mine ? "sv-before" : "sv-unseen";
      const fresh = mine > moment.place ? "sv-later" : "";
      const at = [left + (column - 1) * cell, top + (row - 1) * cell];
      made.push(box(at[0] + 1, at[1] + 1, cell - 2, cell - 2, `${kind} ${fresh}`, 2));
    }
    made.push(
      text(stage, left - 6 * u, top + (row - 0.5) * cell + 4, `level ${row}`, { anchor: "end", kind: "sv-mute" }),
    );
    made.push(
      text(stage, left + (row - 0.5) * cell, top - 6 * u, String(row), { anchor: "middle", kind: "sv-mute" }),
    );
  }
  const { from, to } = moment.block;
  const at = (level) => (level - 1) * cell;
  const wide = (to - from + 1) * cell;
  made.push(box(left + at(from) - 1, top + at(from) - 1, wide + 2, wide + 2, "sv-pulse", 3));
  return { made, left, end: left + data.levels * cell };
}

/** How many tokens every forward brought, as rows of dots: each forward one row of k levels. */
function harvest(data, step, stage, moment, x, side) {
  const { u } = stage;
  const pitch = Math.min(40 * u, side / Math.max(1, data.blocks.length));
  return data.blocks.map((block, place) => {
    const high = (place + 0.5) * pitch + 8 * u;
    const look = place > moment.place ? "sv-later" : place === moment.place ? "sv-nowrow" : "";
    const kept = block.nodes.filter((id) => step.path.includes(id)).length;
    const told2 = `${format.count(block.nodes.length, "token")}${step.veiled ? "" : `, ${kept} kept`}`;
    return dom.s(
      "g",
      { class: `sv-harvest ${look}` },
      text(stage, x, high, `forward ${place + 1}`, { bold: place === moment.place }),
      text(stage, x, high + 15 * u, told2, { kind: "sv-mute" }),
    );
  });
}

function picture(data, step, stage, moment) {
  const { u } = stage;
  const side = Math.min(stage.column - 190 * u, Math.max(130 * u, stage.tall - 128 * u));
  const drawn = mask(data, stage, moment, side);
  const parts = [drawn.made, harvest(data, step, stage, moment, drawn.end + 20 * u, side)];
  const spoken = `Attention mask of ${data.levels} levels in blocks of ${data.width}. ${sentence(data, step, moment)}`;
  return svgKit.frame(stage.column, side + 6, spoken, parts);
}

function draw(note, step, stage) {
  const data = read(note, step);
  if (!data.levels) return svgKit.caption("Nothing was drafted in this step, so there are no blocks to show.");
  const made = (moment) =>
    dom.h("div", {}, svgKit.caption(sentence(data, step, moment)), picture(data, step, stage, moment));
  const square = (kind) => box(-6, -6, 12, 12, kind);
  const legend = svgKit.key(
    [square("sv-ownblock"), "own block: seen both ways"],
    [square("sv-before"), "before: seen"],
    [square("sv-unseen"), "later: hidden"],
  );
  return dom.h("div", {}, scrubber.make(stage, "blocks", moments(data), made), legend);
}

/** In the main tree: a band behind the levels of each forward; what is not written yet is dim. */
function overlay(note, step, stage) {
  const data = read(note, step);
  if (!data.levels) return null;
  const shown = moments(data);
  const now = scrubber.place(stage, "blocks", shown, shown.length - 1);
  return {
    dim: (item) => item.kind === "node" && item.depth > data.blocks[now].to,
    under: (made, u) => data.blocks.map((block, place) => band(made, u, block, place, now)),
  };
}

function band(made, u, block, place, now) {
  const inside = [...made.items.values()].filter(
    (item) => item.kind === "node" && item.depth >= block.from && item.depth <= block.to,
  );
  if (!inside.length) return null;
  const left = Math.min(...inside.map((item) => item.x)) - 8 * u;
  const right = Math.max(...inside.map((item) => item.x + item.w)) + 8 * u;
  const kind = `sv-band ${place === now ? "sv-nowband" : ""} ${place > now ? "sv-later" : ""}`;
  const beside = [...made.items.values()].filter((item) => item.x < right && item.x + item.w > left);
  const low = beside.some((item) => item.y > made.height - 30 * u);
  const said = {
    x: left + 6 * u,
    y: low ? 15 * u : made.height - 7 * u,
    "font-size": Math.max(11, 11.5 * u),
    class: "sv-halo",
  };
  return [box(left, 3, right - left, made.height - 6, kind, 8), dom.s("text", said, `forward ${place + 1}`)];
}

noteRegistry.register("blocks", { title: "Blocks", roomy: true, draw, overlay });

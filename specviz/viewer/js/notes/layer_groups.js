// @ts-check
// Layers side by side: the draft model's stack collapses into rows, and its fuzzy cache cells become exact once per round.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as scrubber from "../kit/scrubber.js";
import * as svgKit from "../kit/svgKit.js";
import { box, line, text } from "../kit/svgKit.js";

const MOST = 64,
  TOKENS = 24,
  FUZZIEST = 0.5;

/** @typedef {ReturnType<typeof read>} Data */

/** @param {Trace.LayerGroupsNote} note */
function read(note) {
  const whole = Math.min(MOST, Math.max(0, note.layers));
  const groups = note.groups.slice(0, MOST).map((row) => row.filter((layer) => layer >= 0 && layer < whole)).filter((row) => row.length);
  const likeness = (note.likeness || []).slice(0, MOST).map((row) => row.slice(0, TOKENS));
  const cells = likeness.flat();
  const mean = cells.length ? cells.reduce((sum, cosine) => sum + cosine, 0) / cells.length : null;
  const { calibrated, exact, repaired, fuzzy, devices } = note;
  return { whole, groups, likeness, mean, calibrated, exact, repaired, fuzzy, devices };
}

/** @param {Data} data */
function sentence(data, moment) {
  if (moment.key === "stack") return `The draft model has ${format.count(data.whole, "layer")}, one after the other.`;
  if (moment.key === "rows") {
    return (
      "While drafting, the layers of a row attend in parallel, all on the output of the row above: " +
      `${format.count(data.groups.length, "stage")} instead of ${data.whole}. Feed-forward layers stay in order. The first and the last layer always run alone.`
    );
  }
  if (!data.calibrated) return `Nothing is repaired: ${format.count(data.fuzzy, "cached token")} stay fuzzy.`;
  if (data.mean === null) return "No drafted token of the last round was kept, so there was nothing to repair.";
  return (
    `One exact pass over ${format.count(data.exact, "token")} overwrote ` +
    `${format.count(data.repaired, "fuzzy one")}, whose cosine similarity to the exact ones was ${format.probability(data.mean)}.`
  );
}

/** Where a layer's box is drawn: in the stack at its number, in the rows at its group. @param {Data} data */
function place(data, at, layer, stacked) {
  const row = data.groups.findIndex((group) => group.includes(layer));
  const inside = data.groups[row] ? data.groups[row].indexOf(layer) : 0;
  const pitch = stacked ? at.high / data.whole : at.high / Math.max(1, data.groups.length);
  const tall = Math.min(pitch - 2, 24 * at.u);
  const wide = stacked ? at.wide : at.wide / Math.max(...data.groups.map((group) => group.length));
  return { x: at.left + (stacked ? 0 : inside * wide), y: (stacked ? layer : row) * pitch, wide: wide - 3, tall };
}

/** @param {Data} data @param {Stage} stage */
function stack(data, stage, moment) {
  const { u } = stage;
  const at = { left: 0, wide: stage.column * 0.42, high: Math.min(240 * u, Math.max(120 * u, 16 * u * data.whole)), u };
  const stacked = moment.key === "stack";
  const parts = [];
  for (let layer = 0; layer < data.whole; layer += 1) {
    const rect = place(data, at, layer, stacked);
    const alone = (data.groups.find((group) => group.includes(layer)) || []).length < 2;
    parts.push(box(rect.x, rect.y, rect.wide, Math.max(2, rect.tall), stacked || alone ? "sv-exact-cell" : "sv-parallel-cell", 3));
    if (rect.tall > 10 * u && rect.wide > 14 * u)
      parts.push(text(stage, rect.x + rect.wide / 2, rect.y + rect.tall / 2 + 4, String(layer + 1), { anchor: "middle" }));
  }
  return { parts, high: at.high };
}

/** Cache cells of the tokens that the exact pass overwrote: layer by token, the more orange the further off a cell was. @param {Data} data @param {Stage} stage */
function cells(data, stage, moment) {
  const { u } = stage;
  const left = stage.column * 0.5,
    most = Math.max(1, ...data.likeness.map((row) => row.length));
  const side = Math.min(22 * u, (stage.column - left - 8) / most);
  const tall = Math.min(22 * u, (222 * u) / Math.max(1, data.likeness.length));
  const fixed = moment.key === "repaired";
  const parts = [text(stage, left, 11 * u, "cache of the last draft", { bold: true })];
  data.likeness.forEach((row, layer) =>
    row.forEach((value, token) => {
      const off = fixed ? 0 : Math.min(1, Math.max(0, (1 - value) / (1 - FUZZIEST)));
      const where = [left + token * side, 18 * u + layer * tall];
      parts.push(box(where[0], where[1], side - 2, Math.max(2, tall - 2), "sv-exact-cell", 2));
      const tint = box(where[0], where[1], side - 2, Math.max(2, tall - 2), "sv-fuzzy-cell", 2);
      tint.setAttribute("fill-opacity", off.toFixed(2));
      parts.push(tint);
    }),
  );
  return { parts, high: 22 * u + data.likeness.length * tall };
}

/** @param {Data} data @param {Stage} stage */
function picture(data, stage, moment) {
  const layerStack = stack(data, stage, moment);
  const side = data.likeness.length ? cells(data, stage, moment) : { parts: [], high: 0 };
  const edge = data.likeness.length ? line(stage.column * 0.46, 0, stage.column * 0.46, layerStack.high, "sv-divider") : null;
  return svgKit.frame(stage.column, Math.max(layerStack.high, side.high) + 4, sentence(data, moment), layerStack.parts, edge, side.parts);
}

/** @param {Trace.LayerGroupsNote} note @param {Step} step @param {Stage} stage */
function draw(note, step, stage) {
  const data = read(note);
  if (!data.whole || !data.groups.length) return svgKit.caption("This draft model has no layers to show.");
  const moments = [
    { key: "repaired", label: "Repaired" },
    { key: "stack", label: "Stack" },
    { key: "rows", label: "Side by side" },
  ];
  const drawMoment = (moment) => dom.h("div", {}, picture(data, stage, moment), svgKit.caption(sentence(data, moment)));
  const square = (kind) => box(-6, -6, 12, 12, kind);
  const key = svgKit.key(
    [square("sv-exact-cell"), "exact"],
    [square("sv-parallel-cell"), "side by side"],
    [square("sv-fuzzy-cell"), "fuzzy cell"],
  );
  const where = data.devices.length
    ? dom.h("p", { class: "sv-mute" }, `Layers are on ${[...new Set(data.devices)].join(", ")}.`)
    : null;
  return dom.h("div", {}, scrubber.make(stage, "layer_groups", moments, drawMoment), key, where);
}

noteRegistry.register("layer_groups", { title: "Layers side by side", draw });

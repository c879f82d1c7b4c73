// @ts-check
// A batch: where each row's kept entries lie in the cache, the holes between them, and the compaction that closes them.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as scrubber from "../kit/scrubber.js";
import * as svgKit from "../kit/svgKit.js";
import { box, line, text } from "../kit/svgKit.js";

const MOST = 8,
  SHOWN = 80;

/** @typedef {ReturnType<typeof read>} Data */

/** @param {Trace.BatchCacheNote} note */
function read(note) {
  const rows = note.rows.slice(0, MOST);
  return rows.map((row) => {
    const runs = row.runs.map((length) => Math.max(0, length));
    const keptLength = runs.filter((_, at) => at % 2 === 0).reduce((sum, length) => sum + length, 0);
    return { number: row.row, runs, kept: keptLength, holes: runs.reduce((sum, length) => sum + length, 0) - keptLength };
  });
}

/** Where the picture begins: most of a long prompt that all rows keep whole is left out. @param {Data} data */
function begin(data) {
  const most = Math.max(1, ...data.map((row) => row.kept + row.holes));
  const whole = Math.min(...data.map((row) => (row.runs.length > 1 ? row.runs[0] : row.kept)));
  return Math.max(0, Math.min(most - SHOWN, whole - 8));
}

/** @param {Stage} stage */
function strip(row, swept, at, scale, stage, mine, from) {
  const { u } = stage;
  const left = 50 * u,
    y = at * 20 * u + 2,
    parts = [text(stage, 0, y + 11 * u, `row ${row.number + 1}`, { bold: row.number === mine })];
  let start = 0;
  (swept ? [row.kept] : row.runs).forEach((length, place) => {
    const look = place % 2 ? "sv-hole" : "sv-slot";
    const first = Math.max(start, from),
      wide = start + length - first;
    if (wide > 0) parts.push(box(left + (first - from) * scale, y, Math.max(1, wide * scale), 14 * u, look, 0));
    start += length;
  });
  return parts;
}

/** @param {Data} data @param {Trace.BatchCacheNote} note @param {Stage} stage */
function picture(data, note, stage, moment) {
  const { u } = stage;
  const from = begin(data);
  const most = Math.max(1, ...data.map((row) => row.kept + row.holes - from));
  const scale = (stage.column - 54 * u) / most;
  const swept = moment.key === "swept";
  /** @type {Child[]} */
  const parts = data.map((row, at) => strip(row, swept, at, scale, stage, note.row, from));
  const end = 50 * u + (Math.max(...data.map((row) => row.kept)) - from) * scale,
    low = data.length * 20 * u;
  if (swept) parts.push(line(end, 0, end, low, "sv-threshold-line"));
  const first = from ? `from slot ${from + 1}: every row keeps all earlier ones` : "from the first slot";
  parts.push(text(stage, 50 * u, low + 12 * u, first, { kind: "sv-mute" }));
  return svgKit.frame(stage.column, low + 18 * u, sentence(data, note, moment), parts);
}

/** @param {Data} data @param {Trace.BatchCacheNote} note */
function sentence(data, note, moment) {
  const holes = data.reduce((sum, row) => sum + row.holes, 0);
  if (moment.key === "swept")
    return `Compaction moved the kept entries to the front: ${format.count(holes, "hole")} closed, no key recomputed.`;
  const every = note.every ? `; every ${format.count(note.every, "round")} the cache is compacted` : "";
  return `Each row writes after its own last kept entry. ${format.count(holes, "rejected node")} lie between kept entries, masked${every}.`;
}

/** @param {Trace.BatchCacheNote} note @param {Step} step @param {Stage} stage */
function draw(note, step, stage) {
  const data = read(note);
  if (!data.length) return svgKit.caption("This batch has no rows.");
  const moments = [{ key: "round", label: "After the round" }];
  if (note.swept) moments.push({ key: "swept", label: "Compacted" });
  const drawMoment = (moment) =>
    dom.h("div", {}, picture(data, note, stage, moment), svgKit.caption(sentence(data, note, moment)));
  const square = (kind) => box(-6, -6, 12, 12, kind, 0);
  const key = svgKit.key([square("sv-slot"), "kept"], [square("sv-hole"), "hole: rejected, masked"]);
  return dom.h("div", {}, scrubber.make(stage, "batch_cache", moments, drawMoment), key);
}

noteRegistry.register("batch_cache", { title: "Batch KV cache", draw });

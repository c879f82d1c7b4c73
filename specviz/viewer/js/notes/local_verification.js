// @ts-check
// Local verification: pooled mass of every drafted cell as heat, the failures, the islands they grew to, and the waves.
import * as codes from "../kit/codes.js";
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as scrubber from "../kit/scrubber.js";
import * as svgKit from "../kit/svgKit.js";
import { box, text } from "../kit/svgKit.js";
import { chain } from "./coarse_codes.js";
import { noteOf } from "../run/decode.js";

/** @param {Trace.LocalVerificationNote} note @param {Step} step */
function read(note, step) {
  const { mass, waves } = note;
  // A wave resamples at least one cell, so there are no more waves than cells; each becomes an event.
  if (waves.some((index) => index < 0 || index >= step.nodes.length)) throw new Error("no such wave");
  const failed = new Set(note.failed);
  const owner = new Map();
  note.islands.forEach((island, at) => island.forEach((node) => owner.set(node, at)));
  const cells = step.nodes
    .slice(1)
    .flatMap((node) => (node.grid ? [{ node, row: node.grid[0], column: node.grid[1] }] : []))
    .map(({ node, row, column }) => ({
      id: node.id,
      row,
      column,
      mass: mass[node.id - 1] || 0,
      wave: waves[node.id - 1] || 0,
      failed: failed.has(node.id),
      island: owner.has(node.id) ? owner.get(node.id) : -1,
      code: node.token,
    }));
  return cells;
}

/** Nodes whose cache entries were not recomputed although an earlier node changed. @param {Trace.LocalVerificationNote} note */
export function stale(note, cells) {
  if (note.rewritten) return new Set();
  if (note.stale) return new Set(note.stale);
  // An older trace does not list them: they are the codes kept after the first resampled one.
  const first = Math.min(...cells.filter((cell) => cell.wave).map((cell) => cell.id));
  return new Set(cells.filter((cell) => !cell.wave && cell.id > first).map((cell) => cell.id));
}

/** A cell's heat: the darker the further its mass is below the bar; white above it. */
const heat = (mass, tau) => Math.max(0, Math.min(1, 1 - mass / Math.max(tau, 1e-9)));

function edges(cell, cells, at) {
  const same = (row, column) => cells.some((other) => other.row === row && other.column === column && other.island === cell.island);
  const { x, y, size } = at(cell);
  const lines = [];
  if (!same(cell.row - 1, cell.column)) lines.push(`M${x} ${y}h${size}`);
  if (!same(cell.row + 1, cell.column)) lines.push(`M${x} ${y + size}h${size}`);
  if (!same(cell.row, cell.column - 1)) lines.push(`M${x} ${y}v${size}`);
  if (!same(cell.row, cell.column + 1)) lines.push(`M${x + size} ${y}v${size}`);
  return dom.s("path", { d: lines.join(""), class: "sv-island-outline" });
}

function board(cells, note, stage, moment, { top, rows, columns, size, last }) {
  const at = (cell) => ({ x: cell.column * size, y: (cell.row - top) * size, size });
  const book = codes.of(stage.trace.run);
  const parts = [];
  const old = stale(note, cells);
  for (const cell of cells) {
    const { x, y } = at(cell);
    const done = cell.wave && cell.wave <= moment;
    const painted = moment >= 0 && (!cell.wave || done) && codes.has(book, cell.code);
    const tile = painted ? codes.tile(book, cell.code, x, y, size, "sv-heat-cell") : box(x, y, size, size, "sv-heat-cell", 0);
    tile.dataset.id = cell.id;
    if (!painted) tile.style.fill = `color-mix(in srgb, var(--sv-rej) ${Math.round(heat(cell.mass, note.tau) * 85)}%, var(--sv-card))`;
    parts.push(tile);
    if (cell.failed && !done) parts.push(svgKit.cross(x + size / 2, y + size / 2, size / 5));
    if (done && size >= 13) {
      const word = text(stage, x + size / 2, y + size / 2 + 4, String(cell.wave), { anchor: "middle", kind: "sv-halo", size: 10 });
      parts.push(word);
    }
    if (moment === last && old.has(cell.id)) {
      parts.push(dom.s("path", { d: `M${x} ${y + size}L${x + size} ${y}`, class: "sv-stale-mark" }));
    }
  }
  for (const cell of cells) if (cell.island >= 0) parts.push(edges(cell, cells, at));
  const spoken = `${cells.length} drafted cells in ${rows} rows; ${cells.filter((cell) => cell.failed).length} failed.`;
  return svgKit.pickable(svgKit.frame(columns * size + 2, rows * size + 2, spoken, parts), stage, (id) => {
    const cell = cells.find((other) => other.id === id);
    const lines = [`row ${cell.row + 1}, column ${cell.column + 1}`, `pooled mass ${format.probability(cell.mass)}, bar ${format.probability(note.tau)}`];
    if (cell.wave) lines.push(cell.failed ? `failed; resampled in wave ${cell.wave}` : `near a failure; resampled in wave ${cell.wave}`);
    return lines;
  });
}

/** @param {Trace.LocalVerificationNote} note */
function sentence(cells, note) {
  const failed = cells.filter((cell) => cell.failed).length;
  if (!failed) return `All ${cells.length} cells pass τ = ${format.probability(note.tau)} in one target pass.`;
  return (
    `${failed} of ${format.count(cells.length, "cell")} failed; ${cells.filter((cell) => cell.wave).length} in ${format.count(note.islands.length, "island")} ` +
    `were resampled, in ${format.count(note.passes, "target pass", "target passes")}.`
  );
}

/** @param {Trace.LocalVerificationNote} note @param {Step} step @param {Stage} stage */
function draw(note, step, stage) {
  const cells = read(note, step);
  if (!cells.length) return svgKit.caption("No row was drafted in this step.");
  const last = Math.max(0, ...cells.map((cell) => cell.wave));
  const moments = [{ key: -1, label: "pooled mass" }];
  for (let wave = 0; wave <= last; wave += 1) moments.push({ key: wave, label: wave ? `wave ${wave} of ${last}` : "kept cells" });
  const marks = [[svgKit.cross(0, 0, 4), "failed"], [dom.s("path", { d: "M-6 -5h12v10h-12Z", class: "sv-island-outline" }), "island"]];
  if (!note.rewritten) marks.push([dom.s("path", { d: "M-6 5L6 -5", class: "sv-stale-mark" }), "outdated cache entry"]);
  const wait = last > 1 && note.rewritten ? "Between waves the cache entries of kept cells stay outdated: an approximation." : "";
  const coarse = noteOf(step, "coarse_codes");
  const top = Math.min(...cells.map((cell) => cell.row));
  const rows = Math.max(...cells.map((cell) => cell.row)) - top + 1;
  const columns = Math.max(...cells.map((cell) => cell.column)) + 1;
  // All grids share one scale, as large as their texts leave room for.
  const high = Math.floor((stage.tall - (coarse ? 185 : 120) * stage.u) / ((coarse ? 3 : 1) * rows));
  const size = Math.max(11, Math.min(26 * stage.u, high, Math.floor((stage.column - 6) / columns)));
  const story = scrubber.make(stage, "local_verification", moments, (moment) => board(cells, note, stage, moment.key, { top, rows, columns, size, last }));
  const before = coarse ? [chain(coarse, stage, size), dom.h("h3", {}, `3 · The target checks all ${cells.length} at once`)] : null;
  return dom.h("div", { class: "sv-chain" }, before, story, svgKit.key(...marks), svgKit.caption(sentence(cells, note)), wait ? svgKit.more(stage, svgKit.caption(wait)) : null);
}

noteRegistry.register("local_verification", { title: "Local verification", draw });

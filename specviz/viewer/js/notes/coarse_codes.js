// @ts-check
// Rows drafted at half the resolution: the coarse cells, and the fine ones that the upsampler made of them, in one frame.
import * as codes from "../kit/codes.js";
import * as dom from "../kit/dom.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as svgKit from "../kit/svgKit.js";

/** @param {number} size @param {Book | null} book @param {Stage} stage */
function grid(list, columns, size, book, stage, spoken) {
  const parts = list.map((code, place) =>
    codes.tile(book, code, (place % columns) * size, Math.floor(place / columns) * size, size, "sv-heat-cell"),
  );
  const rows = Math.ceil(list.length / columns);
  return svgKit.frame(columns * size + 2, rows * size + 2, spoken, parts);
}

/** Both grids, the coarse codes and what became of them: a fine cell is at most `most` high, a coarse one twice that. @param {Trace.CoarseCodesNote} note @param {Stage} stage */
export function chain(note, stage, most = 26 * stage.u) {
  const small = note.codes,
    fine = note.fine;
  const run = stage.trace.run;
  const columns = run && run.grid ? run.grid[1] : Math.ceil(Math.sqrt(fine.length || 1));
  const half = Math.max(1, Math.floor(columns / 2));
  const book = codes.of(run);
  const size = Math.max(6, Math.min(most, Math.floor((stage.column - 6) / columns)));
  return [
    dom.h("h3", {}, `1 · Drawn at low resolution: ${small.length} codes`),
    grid(small, half, 2 * size, book, stage, `${small.length} coarse codes`),
    dom.h("h3", {}, `2 · The upsampler turns them into ${fine.length}`),
    grid(fine, columns, size, book, stage, `${fine.length} fine codes`),
  ];
}

/** @param {Trace.CoarseCodesNote} note @param {Step} step @param {Stage} stage */
const draw = (note, step, stage) => dom.h("div", { class: "sv-chain" }, chain(note, stage), svgKit.caption("One pass of the small model per code, none of the target yet."));

noteRegistry.register("coarse_codes", { title: "Coarse rows", draw });

// Rows drafted at half the resolution: the coarse cells, and the fine ones the up-sampler made of them, in one frame.
import * as codes from "../kit/codes.js";
import * as coerce from "../kit/coerce.js";
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as svgKit from "../kit/svgKit.js";

function grid(list, columns, size, book, stage, spoken) {
  const parts = list.map((code, place) =>
    codes.tile(book, code, (place % columns) * size, Math.floor(place / columns) * size, size, "sv-heat-cell"),
  );
  const rows = Math.ceil(list.length / columns);
  return svgKit.frame(columns * size + 2, rows * size + 2, spoken, parts);
}

const width = (note, run) => (run && Array.isArray(run.grid) ? run.grid[1] : Math.ceil(Math.sqrt(coerce.list(note.fine).length || 1)));

/** Both grids, the coarse codes and what became of them: a fine cell is `size` wide, a coarse one twice that. */
export function chain(note, stage, size) {
  const small = coerce.list(note.codes),
    fine = coerce.list(note.fine);
  const run = stage.trace.run;
  const columns = width(note, run);
  const half = Math.max(1, Math.floor(columns / 2));
  const book = codes.of(run);
  return [
    dom.h("h4", {}, `1 · Drawn at low resolution: ${format.count(small.length, "code")}`),
    grid(small, half, 2 * size, book, stage, `${small.length} coarse codes`),
    dom.h("h4", {}, `2 · The up-sampler makes ${fine.length} of them`),
    grid(fine, columns, size, book, stage, `${fine.length} fine codes`),
  ];
}

function draw(note, step, stage) {
  const size = Math.max(6, Math.min(22 * stage.u, Math.floor((stage.column - 6) / width(note, stage.trace.run))));
  return dom.h("div", { class: "sv-chain" }, chain(note, stage, size), svgKit.caption("One pass of the small model a code, none of the target yet."));
}

noteRegistry.register("coarse", { title: "Coarse rows", draw });

// @ts-check
// The Jacobi window: the guess at each position of the picture in the last few rounds, until it was accepted.
import * as codes from "../kit/codes.js";
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as svgKit from "../kit/svgKit.js";
import { text } from "../kit/svgKit.js";
import { noteOf } from "../run/decode.js";

const ROUNDS = 10;
const FEWEST = 2;

/** The number of positions from the first guess of these rounds to the last. */
function span(rows) {
  const first = rows[0].step.position;
  return Math.max(...rows.map((row) => row.step.position + row.guesses.length)) - first + 1;
}

/** The last rounds up to this one, oldest first, with their guesses: as many as leave each position `least` pixels. @param {Stage} stage @param {number} width */
function rounds(stage, width, least) {
  let rows = [];
  for (let at = stage.cursor; at >= 0 && rows.length < ROUNDS; at -= 1) {
    const step = stage.trace.steps[at];
    const note = noteOf(step, "jacobi_window");
    if (!note) break;
    const more = [{ at, step, guesses: note.codes, redrawn: note.redrawn }, ...rows];
    if (rows.length >= FEWEST && width / span(more) < least) break;
    rows = more;
  }
  return rows;
}

/** @param {Trace.JacobiWindowNote} note @param {Step} step @param {Stage} stage */
function draw(note, step, stage) {
  const label = 52 * stage.u;
  const width = stage.column - label - 4;
  const rows = rounds(stage, width, 10 * stage.u);
  const first = rows[0].step.position;
  const size = Math.max(7, Math.min(22 * stage.u, Math.floor(width / span(rows))));
  const book = codes.of(stage.trace.run);
  const high = Math.max(15 * stage.u, size); // a row is at least as high as its label
  const parts = [];
  rows.forEach((row, line) => {
    parts.push(text(stage, label - 6, (line + 0.5) * high + 4 * stage.u, `step ${row.at + 1}`, { anchor: "end", kind: "sv-mute" }));
    row.guesses.forEach((code, place) => {
      const x = label + (row.step.position - first + place) * size;
      const accepted = place < row.step.path.length;
      const tile = codes.tile(book, code, x, line * high + (high - size) / 2, size - 1, `sv-heat-cell ${accepted ? "sv-kept-code" : ""}`, 1);
      tile.style.opacity = accepted ? "1" : place < row.redrawn ? "0.7" : "0.35";
      if (row.at === stage.cursor) tile.dataset.id = String(place + 1);
      parts.push(tile);
    });
  });
  const { codes: { length: many }, redrawn } = note;
  const summary =
    `${step.path.length} of ${format.count(many, "guess", "guesses")} accepted. Sampled from the target's distributions in the ` +
    `last pass: ${redrawn}; new to the window: ${many - redrawn}.`;
  const figure = svgKit.pickable(svgKit.frame(stage.column, rows.length * high + 4, summary, parts), stage, (id) => [`position ${id} in the window`]);
  return dom.h("div", {}, figure, dom.h("p", { class: "sv-mute" }, "Across: positions in the picture. Down: rounds, the latest last. Framed: accepted."), svgKit.caption(summary));
}

noteRegistry.register("jacobi_window", { title: "Jacobi window", draw });

// The Jacobi window: what stood at each place of the picture in the last few rounds, until it was settled.
import * as codes from "../kit/codes.js";
import * as coerce from "../kit/coerce.js";
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as svgKit from "../kit/svgKit.js";
import { box, text } from "../kit/svgKit.js";

const ROUNDS = 10;

/** Rounds up to this one, oldest first: where each began and what it guessed. */
function rounds(stage) {
  const rows = [];
  for (let at = stage.cursor; at >= 0 && rows.length < ROUNDS; at -= 1) {
    const step = stage.trace.steps[at];
    const note = step.notes.find((entry) => entry.type === "window");
    if (!note) break;
    rows.unshift({ at, step, guesses: coerce.list(note.codes), redrawn: coerce.number(note.redrawn) || 0 });
  }
  return rows;
}

function draw(note, step, stage) {
  const rows = rounds(stage);
  const label = 52 * stage.u;
  const span = () => Math.max(...rows.map((row) => row.step.position + row.guesses.length)) - rows[0].step.position + 1;
  // As far back as there is room for in tiles that can be told apart.
  while (rows.length > 2 && span() > (stage.column - label - 4) / 7) rows.shift();
  const first = rows[0].step.position;
  const last = span();
  const size = Math.max(7, Math.min(22 * stage.u, Math.floor((stage.column - label - 4) / last)));
  const book = codes.of(stage.trace.run);
  const high = Math.max(15 * stage.u, size); // a row is at least as high as its name
  const parts = [];
  rows.forEach((row, line) => {
    parts.push(text(stage, label - 6, (line + 0.5) * high + 4 * stage.u, `step ${row.at + 1}`, { anchor: "end", kind: "sv-mute" }));
    row.guesses.forEach((code, place) => {
      const x = label + (row.step.position - first + place) * size;
      const tile = box(x, line * high, size - 1, high - 1, "sv-heat-cell", 1);
      tile.style.fill = codes.colour(book, code) || "var(--sv-track)";
      const accepted = place < row.step.path.length;
      tile.style.opacity = accepted ? 1 : place < row.redrawn ? 0.7 : 0.35;
      if (accepted) tile.style.stroke = "var(--sv-acc)";
      if (accepted) tile.style.strokeWidth = 2;
      if (row.at === stage.cursor) tile.dataset.id = place + 1;
      parts.push(tile);
    });
  });
  const certain = note.codes.length - note.redrawn;
  const summary =
    `${step.path.length} of ${format.count(coerce.list(note.codes).length, "guess", "guesses")} kept; ${note.redrawn} were resampled from what ` +
    `the last pass thought at their place, ${certain} were new to the window.`;
  const figure = svgKit.pickable(svgKit.frame(stage.column, rows.length * high + 4, summary, parts), stage, (id) => [`place ${id} of the window`]);
  return dom.h("div", {}, figure, dom.h("p", { class: "sv-mute" }, "Across: places of the picture. Down: rounds, the latest last. Framed: kept."), svgKit.caption(summary));
}

noteRegistry.register("window", { title: "Jacobi window", draw });

// @ts-check
// Token recycling: the rows of the successor matrix that were unfolded into this tree, and which successors were used.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as labels from "../kit/labels.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as svgKit from "../kit/svgKit.js";

noteRegistry.register("successors", {
  title: "Successor rows",
  /** @param {Trace.SuccessorsNote} note @param {Step} step @param {Stage} stage */
  draw(note, step, stage) {
    const { rows } = note;
    const summary = rows.length
      ? "Each row became the children of one node: the tokens that the target last ranked highest after it."
      : "The matrix knows no successor of this token yet, so nothing was drafted.";
    const anew = note.updated ? `After this pass ${format.count(note.updated, "row")} of the matrix ${note.updated === 1 ? "was" : "were"} rewritten, including those of rejected nodes.` : "";
    const first = step.nodes.length - 1 > rows.length && rows.length ? `Shown: the first ${format.count(rows.length, "row")} of this tree.` : "";
    return dom.h(
      "div",
      {},
      rows.length ? successorTable(rows, step, stage) : null,
      dom.h("p", { class: "sv-explanation" }, summary),
      anew || first ? svgKit.more(stage, svgKit.caption(anew), dom.h("p", { class: "sv-mute" }, first)) : null,
    );
  },
});

/** As many successors as there is room for, likeliest first; a later one that was drafted and kept takes the last column. @param {Step} step */
function shownRanks(row, step, room) {
  const count = row.texts.length;
  const ranks = Array.from({ length: Math.min(count, room) }, (_, rank) => rank);
  const kept = row.tokens.findIndex((token, rank) => rank < row.used && noteRegistry.verdict(step, row.node, token) === "accepted");
  if (kept >= room) ranks[room - 1] = kept;
  return ranks;
}

/** @param {Step} step @param {Stage} stage */
function successorTable(rows, step, stage) {
  const focused = noteRegistry.focus(rows, stage);
  const room = Math.max(2, Math.floor((stage.column - 116 * stage.u) / (66 * stage.u)));
  const most = Math.max(1, ...rows.map((row) => row.texts.length));
  const heads = Array.from({ length: Math.min(room, most) }, (_, rank) => dom.h("th", { scope: "col" }, String(rank + 1)));
  const body = rows.map((row) => {
    const name = dom.h("th", { scope: "row" }, format.token(row.text, 9));
    const { texts } = row;
    const ranks = shownRanks(row, step, room);
    const cells = ranks.map((rank) => successorCell(row, rank, texts[rank], step));
    const rest = texts.length - ranks.length;
    const drafted = Math.max(0, Math.min(row.used, texts.length) - ranks.filter((rank) => rank < row.used).length);
    const title = `${rest} more remembered, ${drafted} of them drafted`;
    const tableRow = dom.h("tr", { class: row === focused ? "sv-chosen" : "", "data-id": row.node }, name, cells, rest > 0 ? dom.h("td", { class: drafted ? "sv-used" : "sv-unused", title }, `+${rest}`) : null);
    tableRow.addEventListener("click", () => stage.pick(row.node));
    return tableRow;
  });
  const head = dom.h("thead", {}, dom.h("tr", {}, dom.h("td"), heads));
  return dom.h(
    "div",
    { class: "sv-matrix", tabindex: "0", role: "region", "aria-label": "Successor rows" },
    dom.h("table", {}, head, dom.h("tbody", {}, body)),
  );
}

/** @param {string} text @param {Step} step */
function successorCell(row, rank, text, step) {
  const status = rank < row.used ? noteRegistry.verdict(step, row.node, row.tokens[rank]) || "skipped" : null;
  const title = `${format.token(text, 40)}: rank ${rank + 1}, ${status ? labels.of(status) : "remembered, not drafted"}`;
  return dom.h("td", { class: status ? `sv-used sv-is-${status}` : "sv-unused", title }, format.token(text, 7));
}

// Token recycling: the rows of the successor matrix that were unfolded into this tree, and which successors were used.
import * as coerce from "../kit/coerce.js";
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as labels from "../kit/labels.js";
import * as noteRegistry from "../kit/noteRegistry.js";

noteRegistry.register("successors", {
  title: "Successor rows",
  draw(note, step, stage) {
    const rows = coerce.list(note.rows);
    const anew = note.updated
      ? ` After this pass ${format.count(note.updated, "row")} of the matrix ${note.updated === 1 ? "was" : "were"} written anew, at rejected nodes too.`
      : "";
    const summary = rows.length
      ? "Each row below became the children of one node: the eight tokens the target last ranked highest after it."
      : "The matrix knows no successor of this token yet, so nothing was drafted.";
    const hidden = step.nodes.length - 1 > rows.length && rows.length;
    return dom.h(
      "div",
      {},
      dom.h("p", { class: "sv-explanation" }, summary + anew),
      rows.length ? successorTable(rows, step, stage) : null,
      hidden ? dom.h("p", { class: "sv-mute" }, `The first ${format.count(rows.length, "row")} of this tree.`) : null,
    );
  },
});

function successorTable(rows, step, stage) {
  const focused = noteRegistry.focus(rows, stage);
  const most = Math.max(1, ...rows.map((row) => coerce.list(row.texts).length));
  const heads = Array.from({ length: most }, (_, rank) => dom.h("th", { scope: "col" }, String(rank + 1)));
  const body = rows.map((row) => {
    const name = dom.h("th", { scope: "row" }, format.token(coerce.text(row.text), 11));
    const cells = coerce.list(row.texts).map((text, rank) => successorCell(row, rank, text, step));
    const tableRow = dom.h("tr", { class: row === focused ? "sv-chosen" : "", "data-id": row.node }, name, cells);
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

function successorCell(row, rank, text, step) {
  const status = rank < row.used ? noteRegistry.verdict(step, row.node, row.tokens[rank]) || "skipped" : null;
  const title = status ? labels.of(status) : "remembered, not drafted";
  return dom.h("td", { class: status ? `sv-used sv-is-${status}` : "sv-unused", title }, format.token(text, 9));
}

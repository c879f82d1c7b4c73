// @ts-check
// The current step as a table: the same facts as the tree, for screen readers and for copying.
import * as codes from "../kit/codes.js";
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as labels from "../kit/labels.js";

export class Table {
  /** @param {Stage} stage @param {HTMLElement} box */
  constructor(stage, box) {
    this.stage = stage;
    this.box = box;
    this.box.addEventListener("click", (event) => {
      const row = dom.closest(event, "[data-id]");
      if (row) stage.pick(row.dataset.id === "bonus" ? "bonus" : Number(row.dataset.id));
    });
  }

  static HEADS = ["#", "parent", "depth", "token", "id", "q", "p", "threshold", "draw", "verdict"];

  /** @param {Step} step */
  draw(step) {
    const head = dom.h(
      "tr",
      {},
      Table.HEADS.map((name) => dom.h("th", { scope: "col" }, name)),
    );
    const most = step.nodes.slice(0, 2000);
    const book = codes.of(this.stage.trace.run);
    const rows = most.map((node) => Table.row(node, String(node.id), book));
    if (step.bonus) rows.push(Table.row(step.bonus, "+", book));
    const caption = dom.h(
      "caption",
      {},
      codes.named(book, labels.sentence(this.stage) + (most.length < step.nodes.length ? `; first ${most.length} nodes` : "")),
    );
    this.box.replaceChildren(dom.h("table", {}, caption, dom.h("thead", {}, head), dom.h("tbody", {}, rows)));
    this.select(this.stage.node);
  }

  /** @param {AnyNode} node @param {string} name @param {Book | null} book */
  static row(node, name, book) {
    const cells = [
      name,
      node.parent < 0 ? "–" : node.parent,
      node.depth,
      format.token(node.text, 40),
      node.token,
      format.probability(node.q),
      format.probability(node.p),
      format.probability(node.threshold),
      format.probability(node.draw),
      labels.of(node.status),
    ];
    return dom.h(
      "tr",
      { "data-id": node.id, class: `sv-is-${node.status}` },
      cells.map((cell) => dom.h("td", {}, codes.named(book, String(cell)))),
    );
  }

  select(id) {
    for (const row of this.box.querySelectorAll("tr[data-id]"))
      row.classList.toggle("sv-chosen", row.getAttribute("data-id") === String(id));
  }
}

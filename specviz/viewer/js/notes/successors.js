// Token recycling: the rows of the successor matrix that were unfolded into this tree, and which successors were used.
notebook.register("successors", {
  title: "Successor rows",
  draw(note, step, stage) {
    const rows = study.list(note.rows);
    const shown = notebook.focus(rows, stage);
    const cells = (row) =>
      study.list(row.texts).map((text, rank) => {
        const status = rank < row.used ? notebook.verdict(step, row.node, row.tokens[rank]) || "skipped" : null;
        return dom.h(
          "td",
          {
            class: status ? `sv-used sv-is-${status}` : "sv-unused",
            title: status ? labels.of(status) : "remembered, not drafted",
          },
          words.token(text, 9),
        );
      });
    const most = Math.max(1, ...rows.map((row) => study.list(row.texts).length));
    const heads = Array.from({ length: most }, (_, rank) => dom.h("th", { scope: "col" }, String(rank + 1)));
    const body = rows.map((row) => {
      const made = dom.h(
        "tr",
        { class: row === shown ? "sv-chosen" : "", "data-id": row.node },
        dom.h("th", { scope: "row" }, words.token(study.text(row.text), 11)),
        cells(row),
      );
      made.addEventListener("click", () => stage.pick(row.node));
      return made;
    });
    const told =
      "The matrix remembers, for every token, the eight tokens the target last ranked highest after it. " +
      "Each row below became the children of one node" +
      (note.updated
        ? `; after this pass ${words.count(note.updated, "row")} were written anew, at rejected nodes too.`
        : ".");
    const hidden =
      step.nodes.length - 1 > rows.length
        ? dom.h("p", { class: "sv-mute" }, `The first ${words.count(rows.length, "row")} of this tree.`)
        : null;
    return dom.h(
      "div",
      {},
      dom.h("p", { class: "sv-why" }, told),
      dom.h(
        "div",
        { class: "sv-matrix", tabindex: "0", role: "region", "aria-label": "Successor rows" },
        dom.h("table", {}, dom.h("thead", {}, dom.h("tr", {}, dom.h("td"), heads)), dom.h("tbody", {}, body)),
      ),
      hidden,
    );
  },
});

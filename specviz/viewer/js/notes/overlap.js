// Speculative sampling: the target's and the drafter's law side by side; what they share is the chance of acceptance.
notebook.register("overlap", {
  title: "p against q",
  draw(note, step, stage) {
    const positions = study.list(note.positions);
    if (!positions.length) return dom.h("p", {}, "No guess was judged in this step.");
    const shown = notebook.focus(positions, stage);
    const { texts, p, q, overlap } = shown;
    const most = Math.max(1e-9, ...p, ...q);
    const width = (value) => `width:${((100 * Math.max(0, value)) / most).toFixed(1)}%`;
    const rows = texts.map((text, index) => {
      const both = Math.min(p[index], q[index]);
      const status = notebook.verdict(step, shown.node, shown.tokens[index]);
      return dom.h(
        "tr",
        { class: status ? `sv-chosen sv-is-${status}` : "" },
        dom.h("th", { scope: "row" }, words.token(text, 12)),
        dom.h(
          "td",
          { class: "sv-law" },
          dom.h("i", {
            class: p[index] > q[index] ? "sv-more-p" : "sv-more-q",
            style: width(Math.max(p[index], q[index])),
          }),
          dom.h("i", { class: "sv-both", style: width(both) }),
        ),
        dom.h("td", {}, words.chance(p[index])),
        dom.h("td", {}, words.chance(q[index])),
      );
    });
    const node = step.nodes[shown.node];
    const told =
      `After ${words.quote(node ? node.text : "")} target and drafter share ${words.chance(overlap)} of their probability. ` +
      "That sum of min(p, q) is the chance that one guess drawn from q is kept here.";
    const key = dom.h(
      "p",
      { class: "sv-mute sv-lawkey" },
      dom.h("i", { class: "sv-key sv-both" }),
      "shared ",
      dom.h("i", { class: "sv-key sv-more-p" }),
      "p only: the residual ",
      dom.h("i", { class: "sv-key sv-more-q" }),
      "q only: too eager",
    );
    const heads = ["token", "", "p", "q"].map((name) => dom.h(name ? "th" : "td", name ? { scope: "col" } : {}, name));
    return dom.h(
      "div",
      { class: "sv-bars" },
      notebook.chooser(positions, shown, stage),
      dom.h("p", { class: "sv-why" }, told),
      dom.h(
        "div",
        { class: "sv-shared" },
        dom.h("div", {}, dom.h("i", { style: `width:${(100 * Math.min(1, overlap)).toFixed(1)}%` })),
        dom.h("b", {}, words.chance(overlap)),
      ),
      key,
      dom.h("table", {}, dom.h("thead", {}, dom.h("tr", {}, heads)), dom.h("tbody", {}, rows)),
    );
  },
});

// @ts-check
// Speculative sampling: the target's and the drafter's distribution side by side; what they share is the probability of acceptance.
import * as codes from "../kit/codes.js";
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as noteRegistry from "../kit/noteRegistry.js";

noteRegistry.register("overlap", {
  title: "p against q",
  /** @param {Trace.OverlapNote} note @param {Step} step @param {Stage} stage */
  draw(note, step, stage) {
    const { positions } = note;
    if (!positions.length) return dom.h("p", {}, "No guess was judged in this step.");
    const position = noteRegistry.focus(positions, stage);
    const node = step.nodes[position.node];
    const share = format.probability(position.overlap);
    const book = codes.of(stage.trace.run);
    const summary =
      `After ${format.quote(node ? node.text : "")}, a guess drawn from q is kept with probability ${share}, the sum of min(p, q).`;
    const width = `width:${(100 * Math.min(1, position.overlap)).toFixed(1)}%`;
    const bar = dom.h("div", {}, dom.h("i", { style: width }));
    return dom.h(
      "div",
      { class: "sv-bars" },
      noteRegistry.chooser(positions, position, stage),
      dom.h("div", { class: "sv-overlap-bar" }, bar, dom.h("b", {}, share)),
      distributionKey(),
      distributionTable(position, step, book, Math.max(2, Math.floor((stage.tall / stage.u - 210) / 21))),
      dom.h("p", { class: "sv-explanation" }, codes.named(book, summary)),
    );
  },
});

function distributionKey() {
  const key = (kind, text) => dom.h("span", {}, dom.h("i", { class: `sv-swatch ${kind}` }), ` ${text}`);
  const parts = [
    key("sv-overlap", "shared"),
    key("sv-more-p", "p only: the residual"),
    key("sv-more-q", "q only: too eager"),
  ];
  return dom.h("p", { class: "sv-mute sv-overlap-legend" }, parts);
}

/** The tokens that matter most, as many as there is room for. @param {Step} step @param {Book | null} book */
function distributionTable(position, step, book, room) {
  const most = Math.max(1e-9, ...position.p, ...position.q);
  const width = (value) => `width:${((100 * Math.max(0, value)) / most).toFixed(1)}%`;
  const rows = position.texts.slice(0, room).map((text, index) => {
    const p = position.p[index];
    const q = position.q[index];
    const status = noteRegistry.verdict(step, position.node, position.tokens[index]);
    const larger = dom.h("i", { class: p > q ? "sv-more-p" : "sv-more-q", style: width(Math.max(p, q)) });
    const both = dom.h("i", { class: "sv-overlap", style: width(Math.min(p, q)) });
    return dom.h(
      "tr",
      { class: status ? `sv-chosen sv-is-${status}` : "" },
      dom.h("th", { scope: "row" }, codes.named(book, format.token(text, 12))),
      dom.h("td", { class: "sv-distribution" }, larger, both),
      dom.h("td", {}, format.probability(p)),
      dom.h("td", {}, format.probability(q)),
    );
  });
  const heads = ["token", "", "p", "q"].map((name) => dom.h(name ? "th" : "td", name ? { scope: "col" } : {}, name));
  return dom.h("table", {}, dom.h("thead", {}, dom.h("tr", {}, heads)), dom.h("tbody", {}, rows));
}

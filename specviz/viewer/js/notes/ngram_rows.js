// STAND: a stored n-gram row, shuffled by Gumbel noise; the tokens that came out on top became the children.
import * as coerce from "../kit/coerce.js";
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as noteRegistry from "../kit/noteRegistry.js";

noteRegistry.register("ngram_rows", {
  title: "N-gram rows",
  draw(note, step, stage) {
    const rows = coerce.list(note.rows);
    if (!rows.length) return dom.h("p", {}, "The store holds no n-gram that ends here yet, so nothing was drafted.");
    const row = noteRegistry.focus(rows, stage);
    const names = {
      4: "the last three tokens (a 4-gram)",
      3: "the last two tokens (a 3-gram)",
      2: "the last token (a 2-gram)",
      1: "how often tokens come at all (a 1-gram)",
    };
    const root = stage.step.nodes[row.node];
    const summary =
      `After ${format.quote(root ? root.text : "")} the store looked up ${names[row.order] || `a ${row.order}-gram`}. ` +
      "Gumbel noise is added to each log probability; " +
      `the top ${row.picked} ${row.picked === 1 ? "becomes a child" : "become children"}: ` +
      "a draw without replacement in one sweep.";
    const stored = note.entries
      ? dom.h("p", { class: "sv-mute" }, `${note.entries.toLocaleString("en")} entries in the store.`)
      : null;
    return dom.h(
      "div",
      {},
      noteRegistry.chooser(rows, row, stage),
      dom.h("p", { class: "sv-explanation" }, summary),
      slopes(row, step, stage.column),
      stored,
    );
  },
});

/** Left: the row as stored, likeliest first. Right: the order after the noise. Lines show who moved; picks are bold. */
function slopes(row, step, w) {
  const { s } = dom;
  const texts = coerce.list(row.texts);
  const order = (values) => texts.map((_, index) => index).sort((a, b) => (values[b] ?? 0) - (values[a] ?? 0));
  const stored = coerce.list(row.probability);
  const plot = {
    row,
    step,
    w,
    stored,
    noisy: coerce.list(row.perturbed),
    top: 26,
    pitch: 19,
    from: w * 0.53,
    to: w * 0.63,
    most: Math.max(1e-9, ...stored.filter(Number.isFinite)),
    left: order(stored),
    right: order(coerce.list(row.perturbed)),
  };
  const { top, pitch, from, to, right } = plot;
  const head = (x, anchor, text) => s("text", { x, y: 10, "text-anchor": anchor, class: "sv-mute" }, text);
  const cut = top + row.picked * pitch - pitch / 2;
  const spoken = `Order after the noise: ${right.map((index) => format.token(texts[index], 12)).join(", ")}`;
  return s(
    "svg",
    { class: "sv-slopes", width: w, height: top + texts.length * pitch, role: "img", "aria-label": spoken },
    [head(0, "start", "stored"), head(from - 6, "end", "prob."), head(to + 6, "start", "with noise")],
    row.picked < texts.length ? s("path", { d: `M${to} ${cut}H${w}`, class: "sv-threshold-line" }) : null,
    texts.map((text, index) => slope(plot, text, index)),
  );
}

/** One token: its name and bar at its stored place, a line to its place after the noise, its name and value there. */
function slope(plot, text, index) {
  const { s } = dom;
  const { row, w, stored, noisy, top, pitch, from, to, left, right } = plot;
  const y1 = top + left.indexOf(index) * pitch;
  const y2 = top + right.indexOf(index) * pitch;
  const middle = (from + to) / 2;
  const picked = right.indexOf(index) < row.picked;
  const status = picked ? noteRegistry.verdict(plot.step, row.node, row.tokens[index]) || "skipped" : "unused";
  const width = Math.max(1, (w * 0.09 * (stored[index] || 0)) / plot.most);
  const value = Number.isFinite(noisy[index]) ? noisy[index].toFixed(1) : "–";
  return s(
    "g",
    { class: `sv-slope sv-is-${status} ${picked ? "sv-picked" : ""}` },
    s("text", { x: 0, y: y1 + 4 }, format.token(text, 8)),
    s("rect", { x: w * 0.27, y: y1 - 4, width, height: 8, class: "sv-q" }),
    s("text", { x: from - 6, y: y1 + 4, "text-anchor": "end", class: "sv-mute" }, format.probability(stored[index])),
    s("path", { d: `M${from} ${y1}C${middle} ${y1} ${middle} ${y2} ${to} ${y2}` }),
    s("text", { x: to + 6, y: y2 + 4 }, format.token(text, 8)),
    s("text", { x: w, y: y2 + 4, "text-anchor": "end", class: "sv-mute" }, value),
  );
}

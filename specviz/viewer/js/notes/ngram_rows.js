// @ts-check
// STAND: the memory of n-grams filling over the run, the n-gram that this step found in it, and what it expects next.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as svgKit from "../kit/svgKit.js";
import { box, text } from "../kit/svgKit.js";
import { noteOf } from "../run/decode.js";

const MOST_STEPS = 400,
  MOST_CELLS = 1200;
/** @param {Trace.NgramRowsNote} note */
const count = (note) => Math.max(0, note.entries);
const WORDS = { 4: "the last three tokens", 3: "the last two tokens", 2: "the last token", 1: "only how often each token occurs" };

/** For each step of the run around this one: its index, n-grams in the store, and n of the longest one found (0: none). @param {Stage} stage */
function history(stage) {
  const { steps } = stage.trace;
  const from = Math.max(0, Math.min(stage.cursor - MOST_STEPS / 2, steps.length - MOST_STEPS));
  return steps.slice(from, from + MOST_STEPS).flatMap((step, place) => {
    const note = noteOf(step, "ngram_rows");
    return note ? [{ at: from + place, entries: count(note), order: longest(note) }] : [];
  });
}

/** @param {Trace.NgramRowsNote} note */
const longest = (note) => Math.min(4, Math.max(0, ...note.rows.map((row) => (row.node === 0 ? row.order : 0))));

/** The store as cells of one or more n-grams: filled before the run, in the run, by the last step, and later. @param {Trace.NgramRowsNote} note @param {Stage} stage */
function store(series, note, stage) {
  const { u } = stage;
  const first = series[0].entries,
    now = count(note),
    before = series.filter((step) => step.at < stage.cursor).pop();
  const all = Math.max(now, series[series.length - 1].entries, 1);
  const each = Math.ceil(all / MOST_CELLS);
  const size = Math.max(5, Math.min(9, Math.sqrt((stage.column * 62) / (all / each)))) * u;
  const across = Math.floor(stage.column / size);
  const top = 18 * u;
  const kinds = ["sv-stored-before", "sv-stored-now", "sv-stored-last", "sv-stored-later"];
  const paths = kinds.map(() => "");
  for (let cell = 0; cell * each < all; cell += 1) {
    const entry = cell * each;
    const kind = entry < first ? 0 : entry < Math.min(now, before ? before.entries : now) ? 1 : entry < now ? 2 : 3;
    const [x, y, side] = [(cell % across) * size, top + Math.floor(cell / across) * size, size - 1.2].map(svgKit.round);
    paths[kind] += `M${x} ${y}h${side}v${side}h${-side}z`;
  }
  const label = text(stage, 0, 12 * u, `memory: ${now.toLocaleString("en")} n-grams, ${(now - first).toLocaleString("en")} from this run`, { bold: true });
  const parts = kinds.map((kind, at) => (paths[at] ? dom.s("path", { d: paths[at], class: kind }) : null));
  return svgKit.frame(stage.column, top + Math.ceil(all / each / across) * size + 2, `${now} n-grams in memory`, label, parts);
}

/** The longest n-gram found, step by step: a taller bar is a longer match. A click goes to the step. @param {Stage} stage */
function matches(series, stage) {
  const { u } = stage;
  const left = 96 * u,
    high = 24 * u;
  const pitch = Math.min(14 * u, (stage.column - left) / series.length);
  const bars = series.map((step, place) =>
    dom.s(
      "g",
      { "data-step": step.at },
      box(left + place * pitch, 0, pitch, high + 3, step.at === stage.cursor ? "sv-now-ground" : "sv-blank", 1),
      step.order
        ? box(left + place * pitch, high - (high * step.order) / 4, Math.max(1, pitch - 1.5), (high * step.order) / 4, "sv-found-bar", 0)
        : svgKit.cross(left + (place + 0.5) * pitch, high - 3, Math.min(2.5, pitch / 3), "sv-drop-line"),
    ),
  );
  const figure = svgKit.frame(stage.column, high + 4, "Longest n-gram found, step by step", text(stage, 0, 16 * u, "n of the match", { kind: "sv-mute" }), bars);
  figure.addEventListener("click", (event) => {
    const bar = dom.closest(event, "[data-step]");
    if (bar) stage.go(Number(bar.dataset.step));
  });
  return figure;
}

/** The tokens that were looked up, and the followers that memory expects, marked if they were drafted. @param {Step} step @param {Stage} stage */
function hit(row, step, stage) {
  const { u } = stage;
  const path = [];
  for (let node = step.nodes[row.node]; node; node = step.nodes[node.parent]) path.unshift(node.text);
  const before = noteRegistry.contextOf(stage, step).slice(0, -1);
  const looked = [...before, ...path].slice(-Math.max(1, row.order - 1)).map((word) => format.token(word, 12));
  const parts = [];
  let x = 0;
  for (const word of looked) {
    const wide = dom.measure(word, Math.max(11, 12 * u), true) + 12 * u;
    parts.push(box(x, 0, wide, 20 * u, "sv-looked-up", 4), text(stage, x + 6 * u, 14 * u, word, { kind: "sv-word", bold: true, size: 12 }));
    x += wide + 4 * u;
  }
  parts.push(text(stage, x + 4 * u, 14 * u, `→ ${row.order}-gram, followed by`, { kind: "sv-mute" }));
  const { texts, perturbed: noisy } = row,
    taken = new Set(row.order_taken.slice(0, row.picked)),
    left = 104 * u;
  const rows = Math.max(4, Math.min(texts.length, Math.floor((stage.tall - 240 * u) / (17 * u))));
  const rank = (at) => (taken.size ? taken.has(at) : noisy.length ? noisy.filter((value) => value > noisy[at]).length < row.picked : at < row.picked);
  texts.slice(0, rows).forEach((word, at) => {
    const y = (26 + 17 * at) * u;
    const share = row.probability[at] || 0;
    const status = rank(at) ? noteRegistry.verdict(step, row.node, row.tokens[at]) || "skipped" : "unused";
    const wide = stage.column - left - 48 * u;
    parts.push(
      dom.s(
        "g",
        { class: `sv-follower sv-is-${status}` },
        text(stage, 0, y + 11 * u, format.token(word, 12), { kind: "sv-word", bold: status !== "unused" }),
        status === "rejected" ? svgKit.cross(left - 9 * u, y + 7 * u, 3.5) : status === "accepted" ? svgKit.disc(left - 9 * u, y + 7 * u, 4, "sv-accepted-mark") : null,
        box(left, y + 2 * u, Math.max(1.5, wide * Math.min(1, share)), 11 * u, "sv-follower-bar", 1),
        text(stage, stage.column, y + 11 * u, format.probability(share), { anchor: "end", kind: "sv-mute" }),
      ),
    );
  });
  return svgKit.frame(stage.column, (28 + 17 * Math.min(rows, texts.length)) * u, `After ${looked.join(" ")} the memory expects ${texts.slice(0, 3).join(", ")}`, parts);
}

noteRegistry.register("ngram_rows", {
  title: "N-gram memory",
  /** @param {Trace.NgramRowsNote} note @param {Step} step @param {Stage} stage */
  draw(note, step, stage) {
    const rows = note.rows.filter((row) => step.nodes[row.node]);
    const series = history(stage);
    if (!rows.length) return dom.h("div", {}, store(series, note, stage), matches(series, stage), svgKit.caption("The store holds no n-gram that matches here yet, so nothing was drafted."));
    const row = stage.picked ? noteRegistry.focus(rows, stage) : rows[0];
    const summary = `The memory knew ${WORDS[row.order] || `a ${row.order}-gram`}: ${format.count(row.picked, "follower")} became the draft.`;
    const noise = "Gumbel noise is added to each log probability; the largest sums become children: a draw without replacement in one sweep.";
    const key = svgKit.key(
      [box(-5, -5, 10, 10, "sv-stored-before", 1), "earlier tries"],
      [box(-5, -5, 10, 10, "sv-stored-now", 1), "this run"],
      [box(-5, -5, 10, 10, "sv-stored-last", 1), "last step"],
    );
    const more = svgKit.more(stage, noteRegistry.chooser(rows, row, stage), svgKit.caption(noise), slopes(row, step, stage.column));
    return dom.h("div", {}, store(series, note, stage), key, matches(series, stage), hit(row, step, stage), svgKit.caption(summary), more);
  },
});

/** Left: the row as stored, likeliest first. Right: the order after the noise. Lines show who moved; picks are bold. @param {Step} step */
function slopes(row, step, w) {
  const { s } = dom;
  const { texts, probability: stored, perturbed: noisy } = row;
  const order = (values) => texts.map((_, index) => index).sort((a, b) => (values[b] ?? 0) - (values[a] ?? 0));
  const plot = {
    row,
    step,
    w,
    stored,
    noisy,
    top: 26,
    pitch: 19,
    from: w * 0.53,
    to: w * 0.63,
    most: Math.max(1e-9, ...stored),
    left: order(stored),
    right: order(noisy),
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

/** One token: its name and bar at its stored place, a line to its place after the noise, its name and value there. @param {string} text */
function slope(plot, text, index) {
  const { s } = dom;
  const { row, w, stored, noisy, top, pitch, from, to, left, right } = plot;
  const y1 = top + left.indexOf(index) * pitch;
  const y2 = top + right.indexOf(index) * pitch;
  const middle = (from + to) / 2;
  const picked = right.indexOf(index) < row.picked;
  const status = picked ? noteRegistry.verdict(plot.step, row.node, row.tokens[index]) || "skipped" : "unused";
  const width = Math.max(1, (w * 0.09 * (stored[index] || 0)) / plot.most);
  const value = index in noisy ? noisy[index].toFixed(1) : "–";
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

// @ts-check
// Best first: every node is an area as wide as its path is probable, taken in order of size; and the gain of any smaller tree.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as labels from "../kit/labels.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as scrubber from "../kit/scrubber.js";
import * as svgKit from "../kit/svgKit.js";
import { box, line, text } from "../kit/svgKit.js";

/** @typedef {ReturnType<typeof read>} Data */

/** Left edge and width of every node, as fractions of the root's, and how many accepted nodes the first n hold. @param {Trace.FrontierNote} note @param {Step} step */
function read(note, step) {
  const { value, kept } = note;
  const shown = step.nodes.slice(0, value.length);
  /** @type {{ node: TreeNode, left: number, wide: number }[]} */
  const areas = [];
  const filled = shown.map(() => 0);
  for (const node of shown) {
    const wide = Math.exp(Math.min(0, value[node.id]));
    const left = node.id ? areas[node.parent].left + filled[node.parent] : 0;
    if (node.id) filled[node.parent] += wide;
    areas.push({ node, left, wide });
  }
  return { areas, kept: Math.min(kept, shown.length), depths: Math.max(1, ...shown.map((node) => node.depth)), reach: note.reach };
}

/** Accepted nodes among the first `size` of a tree. @param {Step} step @param {number} size */
const accepted = (step, size) => step.path.filter((id) => id <= size).length;

/** Mean number of tokens per pass with trees of at most 0, 1, 2 … nodes, over the run's steps. @param {Stage} stage */
function curve(stage) {
  const steps = stage.trace.steps.filter((step) => !step.cut && !step.veiled && step.notes.some((note) => note.type === "frontier"));
  const most = Math.max(0, ...steps.map((step) => step.counts.sent));
  return Array.from({ length: most + 1 }, (_, size) => steps.reduce((sum, step) => sum + 1 + accepted(step, size), 0) / steps.length);
}

/** @param {Data} data @param {Step} step @param {Stage} stage @param {number} size */
function picture(data, step, stage, size) {
  const { u } = stage;
  const width = stage.column;
  const pitch = Math.max(20 * u, Math.min(46 * u, (stage.tall - 230 * u) / (data.depths + 1)));
  const cell = ({ node, left, wide }) => {
    const x = left * width,
      across = Math.max(0.7, wide * width - 1.2);
    const look = node.id > size ? "sv-left-out" : `sv-is-${step.veiled || node.status === "root" ? "skipped" : node.status}`;
    const most = Math.floor((across - 6 * u) / (7.2 * u));
    const top = node.depth * pitch;
    return dom.s(
      "g",
      { class: `sv-cell ${look}`, "data-id": node.id },
      box(x, top, across, pitch - 2, across < 5 ? "sv-sliver" : "sv-cell-box", Math.min(3, across / 3)),
      most > 1 ? text(stage, x + 3 * u, top + pitch / 2 + 3 * u, format.token(node.text, most), { kind: "sv-word" }) : null,
    );
  };
  const spoken = `${format.count(data.areas.length - 1, "path")} by depth, each as wide as it is probable; the tree holds the ${size} widest.`;
  const figure = svgKit.frame(width, (data.depths + 1) * pitch, spoken, data.areas.map(cell));
  return svgKit.pickable(figure, stage, (id) => {
    const { node, wide } = data.areas[id];
    const place = id ? `number ${id} in order, depth ${node.depth}, ${labels.of(node.status)}` : "the root";
    return [format.token(node.text, 40), place, `q ${format.probability(node.q)} · path ${format.probability(wide)}`];
  });
}

/** @param {number[]} means @param {Stage} stage @param {number} size */
function chart(means, stage, size) {
  const { u } = stage;
  const left = 26 * u,
    top = 14 * u,
    floor = 74 * u;
  const highest = Math.max(...means);
  const x = (at) => left + ((stage.column - left - 8 * u) * at) / Math.max(1, means.length - 1);
  const y = (mean) => floor - ((floor - top) * (mean - 1)) / Math.max(0.01, highest - 1);
  const at = Math.min(size, means.length - 1);
  const path = means.map((mean, place) => `${place ? "L" : "M"}${svgKit.round(x(place))} ${svgKit.round(y(mean))}`).join("");
  return svgKit.frame(
    stage.column,
    floor + 18 * u,
    `Tokens per pass by size of the tree: 1 without a draft, ${highest.toFixed(2)} with ${means.length - 1} nodes.`,
    line(left, floor, x(means.length - 1), floor, "sv-grid"),
    text(stage, 0, y(highest) + 4 * u, highest.toFixed(2), { kind: "sv-mute" }),
    text(stage, 0, floor + 4 * u, "1.00", { kind: "sv-mute" }),
    text(stage, left, floor + 15 * u, "0 nodes", { kind: "sv-mute" }),
    text(stage, x(means.length - 1), floor + 15 * u, String(means.length - 1), { anchor: "end", kind: "sv-mute" }),
    dom.s("path", { d: path, class: "sv-break-even-curve" }),
    svgKit.disc(x(at), y(means[at]), 4 * u, "sv-accepted-mark"),
  );
}

/** @param {Data} data @param {Step} step @param {number[]} means @param {number} size */
function sentence(data, step, means, size) {
  const expected = data.areas.slice(1, size + 1).reduce((sum, { node, wide }) => sum + wide * (data.reach[node.depth - 1] ?? 1), 1);
  const came = step.veiled ? "" : `, ${Math.min(1 + accepted(step, size), step.emitted.length)} written`;
  const whole = size === data.kept - 1 ? `The whole tree of ${format.count(size, "node")}` : `The first ${size} of ${data.kept - 1} nodes`;
  const mean = means.length > 1 ? ` Over the run, trees of at most ${size} give ${means[Math.min(size, means.length - 1)].toFixed(2)} tokens per pass.` : "";
  return `${whole}: ${expected.toFixed(2)} tokens expected${came}.${mean}`;
}

/** @param {Data} data */
const sizes = (data) => Array.from({ length: Math.max(1, data.kept) }, (_, size) => ({ key: String(size), label: format.count(size, "node"), size }));

/** @param {Trace.FrontierNote} note @param {Step} step @param {Stage} stage */
function draw(note, step, stage) {
  const data = read(note, step);
  if (data.areas.length < 2) return svgKit.caption("Nothing was drafted in this step.");
  const means = curve(stage);
  const drawSize = ({ size }) =>
    dom.h(
      "div",
      {},
      picture(data, step, stage, size),
      svgKit.caption(sentence(data, step, means, size)),
      means.length > 1 ? [dom.h("b", {}, "Tokens per pass, by size of the tree"), chart(means, stage, size)] : null,
    );
  const sample = (look, meaning) => [dom.s("g", { class: `sv-cell ${look}` }, box(-7, -5, 14, 10, "sv-cell-box", 3)), meaning];
  const judged = step.veiled ? [] : [sample("sv-is-accepted", "accepted"), sample("sv-is-rejected", "rejected")];
  const key = svgKit.key(...judged, sample("sv-is-skipped", "in the tree"), sample("sv-left-out", "left out"));
  const about =
    "One drafter pass gives each depth one list, whatever was drafted above. A path is as wide as the product of its probabilities; the widest come first, so a smaller tree begins a larger one.";
  return dom.h("div", {}, scrubber.make(stage, "frontier", sizes(data), drawSize), key, svgKit.more(stage, svgKit.caption(about)));
}

/** In the main tree: nodes that a smaller tree would not hold are dim. @param {Trace.FrontierNote} note @param {Step} step @param {Stage} stage */
function overlay(note, step, stage) {
  const moments = sizes(read(note, step));
  const now = moments[scrubber.place(stage, "frontier", moments, moments.length - 1)];
  return { dim: (item) => item.kind === "node" && Number(item.id) > now.size };
}

noteRegistry.register("frontier", { title: "Best first", draw, overlay });

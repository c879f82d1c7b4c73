// @ts-check
// A tree of several sources: the main tree takes their colours, and the pane counts what each of them contributed.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as labels from "../kit/labels.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as svgKit from "../kit/svgKit.js";
import { box, text } from "../kit/svgKit.js";
import { JUDGED } from "../run/decode.js";

const KINDS = { drafter: "drafter", context: "this text", outputs: "earlier outputs", both: "both agree" };

function kind(source) {
  const names = source.split("+");
  return names.length > 1 && names.includes("drafter") ? "both" : names[0];
}

/** @param {Trace.MergedTreeNote} note */
const of = (note, id) => kind(note.sources[id] || "");

/** Nodes, judged and kept, by source. @param {Trace.MergedTreeNote} note @param {Step} step */
function tally(note, step) {
  const counts = Object.keys(KINDS).map((key) => ({ key, sent: 0, judged: 0, kept: 0 }));
  for (const node of step.nodes.slice(1)) {
    const count = counts.find((row) => row.key === of(note, node.id));
    if (!count || node.status === "pruned") continue;
    count.sent += 1;
    count.judged += JUDGED.has(node.status) ? 1 : 0;
    count.kept += step.path.includes(node.id) ? 1 : 0;
  }
  return counts.filter((row) => row.sent);
}

/** One bar per source, as long as its number of nodes and filled by the number kept. @param {Stage} stage */
function bars(rows, stage) {
  const { u } = stage;
  const left = 104 * u,
    pitch = 24 * u;
  const unit = (stage.column - left - 96 * u) / Math.max(1, ...rows.map((row) => row.sent));
  const parts = rows.map((row, at) => {
    const y = at * pitch + 4;
    const label = `${row.sent}, ${row.kept} kept`;
    return [
      text(stage, 0, y + 11 * u, KINDS[row.key], { bold: row.kept > 0 }),
      box(left, y, row.sent * unit, 14 * u, `sv-src-${row.key}`),
      box(left, y + 5 * u, row.kept * unit, 4 * u, "sv-accepted-mark", 0),
      text(stage, left + row.sent * unit + 6 * u, y + 11 * u, label, { kind: "sv-mute" }),
    ];
  });
  const spoken = rows.map((row) => `${KINDS[row.key]}: ${row.sent} nodes, ${row.kept} kept`).join("; ");
  return svgKit.frame(stage.column, rows.length * pitch + 6, spoken, parts);
}

/** @param {Trace.MergedTreeNote} note @param {Step} step @param {Stage} stage */
function draw(note, step, stage) {
  const rows = tally(note, step);
  if (!rows.length) return svgKit.caption("Neither the drafter nor the memories offered a node that pays off.");
  const sent = note.kept - 1;
  const longest = [...note.grafts].sort((a, b) => b.matched - a.matched)[0];
  const summary =
    `${format.count(sent, "node")} of ${labels.drafted(step)} went to the target: the best by the probability of ` +
    `their whole path. Expected ${format.probability(note.expected)} tokens` +
    (step.veiled ? "." : `, got ${step.emitted.length}.`);
  const graft = longest
    ? `The longest match was ${format.count(longest.matched, "token")}; ${format.count(longest.count, "token")} grew from it.`
    : "The memories found no continuation.";
  const mark = (key) => [box(-7, -5, 14, 10, `sv-src-${key}`, 3), KINDS[key]];
  const key = svgKit.key(...rows.map((row) => mark(row.key)));
  return dom.h("div", {}, bars(rows, stage), key, svgKit.caption(summary), svgKit.more(stage, dom.h("p", { class: "sv-mute" }, graft)));
}

/** In the main tree: a coloured ground under every node. @param {Trace.MergedTreeNote} note */
function overlay(note) {
  const ground = (item) => {
    const source = item.kind === "node" && item.id ? of(note, item.id) : null;
    return source && KINDS[source] ? box(item.x - 4, item.y - 13, item.w + 8, 26, `sv-src-${source} sv-source-ground`, 7) : null;
  };
  return { under: (treeLayout) => [...treeLayout.items.values()].map(ground) };
}

noteRegistry.register("merged_tree", { title: "Merged tree: sources", draw, overlay });

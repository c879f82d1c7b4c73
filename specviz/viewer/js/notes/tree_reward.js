// @ts-check
// A drafter trained on whole trees: the tree it grew before its training, the one it grows now, and how far each was right.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as svgKit from "../kit/svgKit.js";
import { box, disc, line, rhombus, text } from "../kit/svgKit.js";
import { Tip } from "../kit/tip.js";
import { noteOf } from "../run/decode.js";

const MOST = 400,
  STEPS = 60;

/** Parents and tokens of a tree as nodes with depth, path (for telling which nodes two trees share) and children. */
function tree(tokens, parents, texts) {
  const nodes = [];
  parents.slice(0, MOST).forEach((parent, id) => {
    if (id && !nodes[parent]) return;
    const up = id ? nodes[parent] : null;
    const path = up ? `${up.path} ${tokens[id]}` : "";
    nodes[id] = { id, path, text: texts[id] || "", depth: up ? up.depth + 1 : 0, children: [] };
    if (up) up.children.push(nodes[id]);
  });
  return nodes.filter(Boolean);
}

/** @typedef {ReturnType<typeof read>} Data */

/** @param {Trace.TreeRewardNote} note @param {Step} step */
function read(note, step) {
  const sent = step.nodes.filter((node) => node.status !== "pruned");
  const field = (name) => sent.map((node) => node[name]);
  const after = tree(field("token"), field("parent"), field("text"));
  const { reference } = note;
  const before = reference && tree(reference.tokens, reference.parents, reference.texts);
  const branches = note.branches.filter((branch) => step.nodes[branch.node]);
  return { after, before, branches, reward: note.reward, was: note.before };
}

/** Paths of a tree along the written text: the root's, then one for each right token. */
function rightPaths(nodes, written) {
  const paths = [];
  for (let at = nodes[0], token = 0; at; token += 1) {
    paths.push(at.path);
    const path = `${at.path} ${written[token]}`;
    at = at.children.find((child) => child.path === path);
  }
  return paths;
}

/** Tokens written from this step on, with which either tree is compared. */
function writtenFrom(steps, at) {
  const tokens = [];
  for (let place = at; place < steps.length && tokens.length < 64; place += 1) tokens.push(...steps[place].emitted);
  return tokens;
}

/** Accepted length within the written text: beyond the end of a run, the other tree's length is unknown. @param {Step} step */
const judged = (step, written) => Math.min(step.path.length, written.length);

/** Rows of leaves from top to bottom, parents in the middle of their children. @param {number} width @param {number} height */
function layOut(nodes, depth, width, height) {
  const leaves = nodes.filter((node) => !node.children.length);
  let next = 0;
  const settle = (node) => {
    node.x = 6 + (width * node.depth) / depth;
    node.children.forEach(settle);
    const ends = node.children;
    node.y = ends.length
      ? (ends[0].y + ends[ends.length - 1].y) / 2
      : 14 + ((height - 22) * (leaves.length > 1 ? next++ : 0.5)) / Math.max(1, leaves.length - 1);
  };
  settle(nodes[0]);
  return { pitch: width / depth, row: height / leaves.length };
}

/** One tree below its title. `others` are the paths of the other tree, `side` says which of the two this is. */
function drawTree(stage, nodes, others, right, { top, height, depth, side }) {
  const { u } = stage;
  const at = layOut(nodes, depth, stage.column - 70 * u, height);
  const accepted = new Set(right);
  const only = (node) => others && node.depth && !others.has(node.path);
  const edges = nodes.flatMap((node) =>
    node.children.map((child) => {
      const look = accepted.has(child.path) ? "sv-accepted-line" : only(child) ? `sv-only-${side}` : "";
      return line(node.x, top + node.y, child.x, top + child.y, `sv-tree-link ${look}`);
    }),
  );
  const marks = nodes.map((node) => {
    const [x, y] = [node.x, top + node.y];
    const kept = accepted.has(node.path) && node.depth;
    // The shape shows what training did to a node, the fill whether it was right.
    const r = kept ? 5 : Math.max(2.2, Math.min(4.4, at.row * 0.7)); // large trees have small marks
    const mark = only(node)
      ? side === "after"
        ? box(x - r, y - r, 2 * r, 2 * r, kept ? "sv-accepted-mark" : "sv-new-mark", 1)
        : rhombus(x, y, 1.2 * r, kept ? "sv-accepted-mark" : "sv-pruned-mark")
      : kept
        ? disc(x, y, r, "sv-accepted-mark")
        : disc(x, y, node.depth ? 0.7 * r : 4, node.depth ? "sv-unverified-mark" : "sv-root-mark");
    const letters = Math.floor(((node.children.length ? at.pitch : 68 * u) - 18) / (6.9 * u));
    const word = (at.row >= 11 * u || kept) && letters > 1 ? format.token(node.text, letters) : "";
    const kind = `sv-word sv-halo ${kept || !node.depth ? "" : "sv-mute"}`;
    const clear = node.children.length && node.depth && at.row > 17 * u; // above the edge that goes on from here
    const label = word && text(stage, x + (clear ? 5 : 8), y + (clear ? -6 : 4), word, { kind, size: 11, bold: kept });
    return dom.s("g", { "data-id": side === "after" ? node.id : null }, mark, label || null);
  });
  return [edges, marks];
}

/** Tokens right in the trees before (below the line) and after (above it), step by step. A click goes to the step. @param {Stage} stage */
function history(stage) {
  const { u } = stage;
  const { steps } = stage.trace;
  const from = Math.max(0, Math.min(stage.cursor - STEPS / 2, steps.length - STEPS));
  const rows = steps.slice(from, from + STEPS).map((step, place) => {
    const note = noteOf(step, "tree_reward");
    const before = note ? read(note, step).before : null;
    const written = writtenFrom(steps, from + place);
    return [judged(step, written), before ? rightPaths(before, written).length - 1 : 0];
  });
  const total = (side) => rows.reduce((sum, row) => sum + row[side], 0);
  const most = Math.max(1, ...rows.flat());
  const left = 122 * u,
    half = 15 * u,
    pitch = Math.min(16 * u, (stage.column - left) / rows.length);
  const bars = rows.map(([now, was], place) => {
    const x = left + place * pitch;
    const wide = Math.max(1, pitch - 1.5);
    return dom.s(
      "g",
      { "data-step": from + place },
      box(x, 0, pitch, 2 * half + 2, from + place === stage.cursor ? "sv-now-ground" : "sv-blank", 1),
      box(x, half - (half * now) / most, wide, (half * now) / most, "sv-reward-bar", 0),
      box(x, half + 2, wide, (half * was) / most, "sv-was-bar", 0),
    );
  });
  const names = [
    text(stage, 0, half - 3 * u, `after: ${total(0)} accepted`, { bold: true }),
    text(stage, 0, 2 * half, `before: ${total(1)}`, { kind: "sv-mute" }),
  ];
  const spoken = `Tokens accepted in ${rows.length} steps: ${total(1)} before training, ${total(0)} after`;
  const figure = svgKit.frame(stage.column, 2 * half + 3, spoken, names, bars, line(left, half + 1, left + rows.length * pitch, half + 1, "sv-axis"));
  figure.addEventListener("click", (event) => {
    const bar = dom.closest(event, "[data-step]");
    if (bar) stage.go(Number(bar.dataset.step));
  });
  const apart = rows.map(([now, was]) => Math.abs(now - was));
  const at = apart.indexOf(Math.max(...apart));
  // In an early step the trees may be alike: the step in which they differ most is one click away.
  if (!apart[at] || from + at === stage.cursor) return figure;
  const label = `Step ${from + at + 1}: ${rows[at][0]} instead of ${rows[at][1]}`;
  return [figure, dom.h("div", { class: "sv-chooser" }, dom.button(label, "Where the two trees differ most", () => stage.go(from + at)))];
}

/** @param {Trace.TreeRewardNote} note @param {Step} step @param {Stage} stage */
function draw(note, step, stage) {
  const data = read(note, step);
  if (data.after.length < 2) return svgKit.caption("Nothing was drafted in this step, so there is no tree to compare.");
  const { u } = stage;
  const written = writtenFrom(stage.trace.steps, stage.cursor);
  const paths = (nodes) => new Set(nodes.map((node) => node.path));
  const now = judged(step, written);
  const was = data.before && !step.veiled ? rightPaths(data.before, written) : [""];
  const half = Math.min(190 * u, Math.max(62 * u, (stage.tall - 176 * u) / (data.before ? 2 : 1)));
  const depth = Math.max(1, ...[...data.after, ...(data.before || [])].map((node) => node.depth));
  const title = (y, name, right, nodes) => [
    text(stage, 0, y, name, { bold: true, size: 12.5 }),
    text(stage, stage.column, y, `${step.veiled ? "" : `accepted length ${right}, `}${format.count(nodes.length - 1, "node")}`, {
      anchor: "end",
      bold: true,
      kind: right && !step.veiled ? "sv-right" : "sv-mute",
    }),
  ];
  const parts = [];
  let y = 0;
  if (data.before) {
    parts.push(title(12 * u, "Before training", was.length - 1, data.before));
    parts.push(drawTree(stage, data.before, paths(data.after), was, { top: 17 * u, height: half, depth, side: "before" }));
    y = half + 24 * u;
    parts.push(line(0, y - 3 * u, stage.column, y - 3 * u, "sv-divider"));
  }
  parts.push(title(y + 12 * u, data.before ? "After training" : "The tree", now, data.after));
  const path = ["", ...step.path.slice(0, now).map((id) => data.after[id] && data.after[id].path)];
  parts.push(drawTree(stage, data.after, data.before && paths(data.before), path, { top: y + 17 * u, height: half, depth, side: "after" }));
  const spoken = sentence(data, step, now, was.length - 1);
  const figure = svgKit.pickable(svgKit.frame(stage.column, y + half + 19 * u, spoken, parts), stage, (id) => about(data, step, id));
  const legend = [[disc(0, 0, 5, "sv-accepted-mark"), "accepted"]];
  if (data.before) legend.push([rhombus(0, 0, 4.6, "sv-pruned-mark"), "lost"], [box(-4, -4, 8, 8, "sv-new-mark", 1), "gained"]);
  return dom.h("div", {}, figure, svgKit.key(...legend), svgKit.caption(spoken), data.before && !step.veiled ? history(stage) : null, svgKit.more(stage, svgKit.caption(reward(data))));
}

/** @param {Data} data @param {Step} step */
function about(data, step, id) {
  const branch = data.branches.find((entry) => entry.node === id);
  const more = branch ? [`expected accepted length ${branch.length.toFixed(2)}`] : [];
  return [...Tip.about(step, step.nodes[id]), ...more];
}

/** @param {Data} data @param {Step} step */
function sentence(data, step, now, was) {
  if (!data.before) return "Training rewarded whole trees: the more tokens of a branch the target keeps, the better.";
  const paths = (nodes) => new Set(nodes.map((node) => node.path));
  const [before, after] = [paths(data.before), paths(data.after)];
  const gained = [...after].filter((path) => !before.has(path)).length;
  const lost = [...before].filter((path) => !after.has(path)).length;
  const kept = step.veiled ? "the target has not judged them yet" : now === was ? `${now} accepted either way` : `${now} accepted instead of ${was}`;
  return gained + lost ? `Training gained ${format.count(gained, "node")} and lost ${lost} here: ${kept}.` : `The same tree: ${kept}.`;
}

/** The reward that training increased. @param {Data} data */
function reward(data) {
  const was = data.was === null ? "" : `, before training ${data.was.toFixed(2)}`;
  return `Tree reward: log Σ exp(L) over the branches, where L is the expected accepted length of a branch: ${data.reward.toFixed(2)}${was}.`;
}

noteRegistry.register("tree_reward", { title: "Tree reward", draw });

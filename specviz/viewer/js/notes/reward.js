// A drafter trained on whole trees: the tree it grows beside the one it grew before its training, and the reward of both.
import * as coerce from "../kit/coerce.js";
import * as dom from "../kit/dom.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as svgKit from "../kit/svgKit.js";
import { box, disc, line, rhombus, text } from "../kit/svgKit.js";
import { Tip } from "../kit/tip.js";

const MOST = 400;

/** Parents and tokens of a tree as nodes with depth, path (for telling which nodes two trees share) and children. */
function tree(tokens, parents, texts) {
  const nodes = [];
  parents.slice(0, MOST).forEach((parent, id) => {
    if (id && !nodes[parent]) return;
    const up = id ? nodes[parent] : null;
    const path = up ? `${up.path} ${tokens[id]}` : "";
    nodes[id] = { id, path, text: texts[id], depth: up ? up.depth + 1 : 0, children: [] };
    if (up) up.children.push(nodes[id]);
  });
  return nodes.filter(Boolean);
}

function read(note, step) {
  const sent = step.nodes.filter((node) => node.status !== "pruned");
  const field = (name) => sent.map((node) => node[name]);
  const after = tree(field("token"), field("parent"), field("text"));
  const reference = note.reference && typeof note.reference === "object" ? note.reference : null;
  const texts = reference ? coerce.list(reference.texts).map(coerce.text) : [];
  const before = reference ? tree(coerce.list(reference.tokens), coerce.list(reference.parents), texts) : null;
  const branches = coerce
    .list(note.branches)
    .filter((branch) => step.nodes[branch.node] && coerce.number(branch.length) !== null);
  return { after, before, branches, reward: coerce.number(note.reward), was: coerce.number(note.before) };
}

/** Rows of leaves from top to bottom, parents in the middle of their children. */
function layOut(nodes, width, height) {
  const leaves = nodes.filter((node) => !node.children.length);
  const depth = Math.max(1, ...nodes.map((node) => node.depth));
  let next = 0;
  const settle = (node) => {
    node.x = 6 + ((width - 14) * node.depth) / depth;
    node.children.forEach(settle);
    const ends = node.children;
    node.y = ends.length
      ? (ends[0].y + ends[ends.length - 1].y) / 2
      : 8 + ((height - 16) * next++) / Math.max(1, leaves.length - 1);
  };
  settle(nodes[0]);
}

function smallTree(nodes, others, accepted, x, top, side, id) {
  const only = (node) => others && node.depth && !others.has(node.path);
  const edges = nodes.flatMap((node) =>
    node.children.map((child) => {
      const look = accepted.has(child.path) ? "sv-accepted-line" : only(child) ? `sv-only-${side}` : "";
      return line(x + node.x, top + node.y, x + child.x, top + child.y, `sv-tree-link ${look}`);
    }),
  );
  const marks = nodes.map((node) => {
    const mark = accepted.has(node.path)
      ? disc(x + node.x, top + node.y, 4.4, "sv-accepted-mark")
      : only(node)
        ? side === "after"
          ? box(x + node.x - 3.6, top + node.y - 3.6, 7.2, 7.2, "sv-new-mark", 1)
          : rhombus(x + node.x, top + node.y, 3.4, "sv-pruned-mark")
        : disc(x + node.x, top + node.y, node.depth ? 2.6 : 3.6, node.depth ? "sv-unverified-mark" : "sv-root-mark");
    return dom.s("g", { "data-id": id(node) }, mark);
  });
  return [edges, marks];
}

/** Two bars on one scale: the reward before and after. */
function meter(data, stage) {
  const { u } = stage;
  const most = Math.max(0.1, data.reward || 0, data.was || 0) * 1.02;
  const left = 104 * u,
    room = stage.column - left - 46 * u;
  const bar = (value, high, name, kind) => [
    text(stage, 0, high + 10 * u, name, {}),
    box(left, high, room, 13 * u, "sv-tank-wall", 3),
    box(left, high, (room * Math.max(0, value)) / most, 13 * u, kind, 3),
    text(stage, left + room + 7 * u, high + 10.5 * u, value.toFixed(2), { bold: true }),
  ];
  const parts = [];
  if (data.was !== null) parts.push(bar(data.was, 0, "before training", "sv-before-bar"));
  if (data.reward !== null)
    parts.push(bar(data.reward, (data.was === null ? 0 : 19) * u, "this drafter", "sv-reward-bar"));
  return svgKit.frame(
    stage.column,
    (data.was === null ? 21 : 40) * u,
    "Tree reward before and after training",
    parts,
  );
}

function trees(data, step, stage) {
  const { u } = stage;
  const height = Math.max(110 * u, Math.min(200 * u, stage.tall - 184 * u));
  const wide = data.before ? stage.column / 2 - 8 : stage.column;
  const accepted = new Set(step.path.map((id) => data.after[id] && data.after[id].path).filter(Boolean));
  const paths = (nodes) => new Set(nodes.map((node) => node.path));
  const parts = [];
  if (data.before) {
    layOut(data.before, wide, height);
    parts.push(text(stage, 0, 11 * u, "its tree before", { bold: true }));
    parts.push(smallTree(data.before, paths(data.after), accepted, 0, 16 * u, "before", () => null));
    parts.push(line(wide + 8, 0, wide + 8, height + 16 * u, "sv-divider"));
  }
  const from = data.before ? wide + 16 : 0;
  layOut(data.after, wide - 6, height);
  parts.push(text(stage, from, 11 * u, data.before ? "its tree now" : "its tree", { bold: true }));
  parts.push(
    smallTree(data.after, data.before ? paths(data.before) : null, accepted, from, 16 * u, "after", (node) => node.id),
  );
  const figure = svgKit.frame(stage.column, height + 18 * u, "The tree before and after training", parts);
  return svgKit.pickable(figure, stage, (id) => about(data, step, id));
}

function about(data, step, id) {
  const branch = data.branches.find((entry) => entry.node === id);
  const more = branch ? [`expected accepted length ${branch.length.toFixed(2)}`] : [];
  return [...Tip.about(step, step.nodes[id]), ...more];
}

function sentence(data) {
  const best = data.branches.reduce((most, branch) => Math.max(most, branch.length), 0);
  const about = best
    ? `A branch's length L is how many of its tokens the target can be expected to keep, at most ${best.toFixed(2)} here; the reward is log Σ exp(L). `
    : "The reward says how many tokens of the tree the target can be expected to keep. ";
  if (data.was === null || data.reward === null) return about;
  const gain = data.reward - data.was;
  const side =
    Math.abs(gain) < 0.005
      ? "left it as it was here"
      : `moved it by ${gain > 0 ? "+" : "−"}${Math.abs(gain).toFixed(2)} here`;
  return `${about}Training on trees ${side}.`;
}

function draw(note, step, stage) {
  const data = read(note, step);
  if (data.after.length < 2)
    return svgKit.caption("Nothing was drafted in this step, so there is no tree to reward.");
  const legend = [[disc(0, 0, 4.4, "sv-accepted-mark"), "kept by the target"]];
  if (data.before) {
    legend.push([box(-3.6, -3.6, 7.2, 7.2, "sv-new-mark", 1), "new"]);
    legend.push([rhombus(0, 0, 3.6, "sv-pruned-mark"), "given up"]);
  }
  return dom.h(
    "div",
    {},
    svgKit.caption(sentence(data)),
    meter(data, stage),
    trees(data, step, stage),
    svgKit.key(...legend),
  );
}

noteRegistry.register("reward", { title: "Tree reward", roomy: true, draw });

// @ts-check
// A state-space target's mask: what is left of every ancestor at every node, a node's decay path, and what states cost.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as scrubber from "../kit/scrubber.js";
import * as svgKit from "../kit/svgKit.js";
import { box, line, text } from "../kit/svgKit.js";

const MOST = 96;

/** @typedef {ReturnType<typeof read>} Data */

/** @param {Trace.DecayMaskNote} note @param {Step} step */
function read(note, step) {
  const heads = note.heads.slice(0, 6).map((head) => ({ ...head, fade: head.fade.slice(0, MOST) })).filter((head) => head.fade.length);
  const count = Math.min(step.nodes.length, ...heads.map((head) => head.fade.length));
  const paths = [];
  for (let id = 0; id < count; id += 1) paths.push([...(paths[step.nodes[id].parent] || []), id]);
  const [carried, each, replay] = [note.state_bytes, note.per_node_bytes, note.replay_bytes].map((bytes) => Math.max(0, bytes));
  return { heads, count, paths, taps: Math.min(16, Math.max(1, note.taps)), layers: note.layers, bytes: { carried, each, replay } };
}

/** @param {Data} data */
const moments = (data) =>
  data.heads.map((head, place) => ({
    key: head.name || `head ${place}`,
    label: `${format.short(head.name, 12) || "A"} head`,
    head,
  }));

const left = (head, at, from) => Math.exp(Math.min(0, head.fade[at] - (from === null ? 0 : head.fade[from])));

/** The node whose path is shown: the one pointed at, else the chosen one, else where the walk ended. @param {Data} data @param {Stage} stage */
function focus(data, stage) {
  const known = (id) => (Number.isInteger(id) && id >= 0 && id < data.count ? id : null);
  return known(stage.pointed) ?? known(stage.node) ?? known(stage.step.end.id) ?? 0;
}

/** What the convolution of `id` reads: nodes of its own path, then so many inputs from before the root. @param {Data} data */
function reads(data, id) {
  const own = data.paths[id].slice(-data.taps);
  return { own: new Set(own), before: data.taps - own.length };
}

/** @param {Data} data @param {Step} step */
function sentence(data, step, head, id) {
  const { own, before } = reads(data, id);
  const carried = format.probability(left(head, id, null));
  const name = format.token(step.nodes[id].text, 20);
  const early = before ? ` and ${format.count(before, "input")} before the root` : "";
  const read = own.size === 1 ? "the node itself" : `the path's last ${own.size} nodes`;
  return `The decays of ${format.count(data.paths[id].length, "node")} down to ${name} leave ${carried} of the carried state; its convolution reads ${read}${early}.`;
}

/** @param {number} x @param {number} y @param {number} side @param {string} kind @param {number} [share] */
function cell(x, y, side, kind, share) {
  const rect = box(x + 0.5, y + 0.5, side - 1, side - 1, kind, Math.min(2, side / 5));
  if (share !== undefined) rect.setAttribute("fill-opacity", (0.06 + 0.94 * share).toFixed(3));
  return rect;
}

/** Row t, column s: empty where s is no ancestor. The first column is the carried state. @param {Data} data @param {Step} step @param {Stage} stage */
function matrix(data, step, stage, head) {
  const { u } = stage;
  const high = Math.max(112 * u, stage.tall - 244 * u);
  const named = high > 10 * u * data.count; // lower rows would write over each other
  const start = named ? 84 * u : 22 * u;
  const side = Math.max(3, Math.min(19 * u, (stage.column - start - 8) / (data.count + 1.4), high / data.count));
  const x = (column) => start + (column < 0 ? 0 : (column + 1.4) * side);
  const top = 17 * u;
  const rows = data.paths.map((path, id) => {
    const y = top + id * side;
    const parts = [box(0, y, x(data.count - 1) + side, side, "sv-mask-row", 0)];
    if (named) {
      const style = { anchor: "end", size: Math.min(11.5, side / u), kind: "sv-word" };
      parts.push(text(stage, start - 6 * u, y + side * 0.72, format.token(step.nodes[id].text, 9), style));
    }
    parts.push(cell(x(-1), y, side, "sv-decay sv-carried", left(head, id, null)));
    for (const ancestor of path) parts.push(cell(x(ancestor), y, side, "sv-decay", left(head, id, ancestor)));
    return dom.s("g", { "data-id": id }, parts);
  });
  const nothing = data.paths.map((path, id) => {
    const ancestors = new Set(path);
    return data.paths.map((_, other) =>
      other < id && !ancestors.has(other) ? cell(x(other), top + id * side, side, "sv-unseen") : null,
    );
  });
  const heading = [
    text(stage, x(-1) + side / 2, 11 * u, "h₀", { anchor: "middle", bold: true }),
    text(stage, x(0), 11 * u, "what each node wrote →", { kind: "sv-mute" }),
  ];
  const height = top + data.count * side + 6;
  const mark = (at) => marks(data, at, x, top, side);
  return { parts: [nothing, rows, heading], mark, height };
}

/** Outlines over the matrix: the path of the node in focus, and what its convolution reads. @param {Data} data @param {number} at @param {(column: number) => number} x @param {number} top @param {number} side */
function marks(data, at, x, top, side) {
  const y = top + at * side;
  const { own } = reads(data, at);
  const ring = (id) => cell(x(id), y, side, own.has(id) ? "sv-tap-ring" : "sv-path-ring");
  return [box(0, y, x(data.count - 1) + side, side, "sv-focus-row", 2), data.paths[at].map(ring)];
}

/** The path itself, from the carried state down to the node, with what is left of each at the end. @param {Data} data @param {Step} step @param {Stage} stage */
function strip(data, step, stage, head, at, top) {
  const { u } = stage;
  const path = data.paths[at];
  const { own, before } = reads(data, at);
  /** @type {(number | null)[]} */
  const places = [null, ...path];
  const wide = Math.min(86 * u, stage.column / places.length);
  const high = 26 * u;
  /** @type {Child[]} */
  const parts = places.map((id, place) => {
    const x = place * wide;
    const share = left(head, at, id);
    const inside = box(x + 1, top + high - high * share, wide - 12 * u, high * share, "sv-decay", 2);
    const name = id === null ? "carried" : format.token(step.nodes[id].text, Math.max(3, Math.floor(wide / (8 * u))));
    return [
      box(x + 1, top, wide - 12 * u, high, id === null || !own.has(id) ? "sv-tank-wall" : "sv-tank-wall sv-in-tap", 2),
      inside,
      text(stage, x + 3, top + high + 13 * u, name, { kind: "sv-word" }),
      text(stage, x + 3, top + high + 27 * u, format.probability(share), { kind: "sv-mute" }),
      place ? text(stage, x - 10 * u, top + high * 0.66, "→", { kind: "sv-mute" }) : null,
    ];
  });
  const from = Math.max(1, places.length - data.taps) * wide;
  const end = places.length * wide - 11 * u;
  const label = before ? `convolution, and ${before} carried` : "convolution";
  parts.push(line(from, top - 4, end, top - 4, "sv-tap-line"));
  parts.push(text(stage, end, top - 8 * u, label, { anchor: "end", kind: "sv-tap-label" }));
  return parts;
}

function size(bytes) {
  if (bytes >= 1e6) return `${(bytes / 1e6).toFixed(1)} MB`;
  return bytes >= 1e3 ? `${(bytes / 1e3).toFixed(bytes < 1e4 ? 1 : 0)} kB` : `${bytes} B`;
}

/** Three bars on one scale, each below its name: what a state for each node would take, and what is actually kept. @param {Data} data @param {Stage} stage @param {number} x */
function memory(data, stage, x, top) {
  const { u } = stage;
  const { carried, each, replay } = data.bytes;
  const room = stage.column - x - 58 * u;
  if (!each) return null;
  const bar = (name, bytes, place, kind) => [
    text(stage, x, top + (place * 38 + 10) * u, name),
    box(x, top + (place * 38 + 15) * u, room, 11 * u, "sv-tank-wall", 2),
    box(x, top + (place * 38 + 15) * u, Math.max(1.5, (room * bytes) / each), 11 * u, kind, 2),
    text(stage, x + room + 6 * u, top + (place * 38 + 25) * u, size(bytes), { bold: true }),
  ];
  return [
    bar("a state for each node", each, 0, "sv-cost-bar"),
    bar("kept for the replay", replay, 1, "sv-reward-bar"),
    bar("the one carried state", carried, 2, "sv-tank-fill"),
  ];
}

/** The picture of one head: a fixed part, and a layer that follows the pointer, here and over the main tree. @param {Data} data @param {Step} step @param {Stage} stage */
function picture(data, step, stage, head, caption) {
  const { u } = stage;
  const decayMatrix = matrix(data, step, stage, head);
  const below = decayMatrix.height + 20 * u;
  const { each, replay } = data.bytes;
  const cost = each ? ` A state for each node would take ${size(each)}, the replay takes ${size(replay)}.` : "";
  const spoken = `Decay matrix of ${data.count} nodes, ${head.name} head.${cost}`;
  const moving = dom.s("g", { class: "sv-moving" });
  const show = () => {
    const at = focus(data, stage);
    caption.textContent = sentence(data, step, head, at);
    const fresh = dom.s("g", {}, decayMatrix.mark(at), strip(data, step, stage, head, at, below));
    moving.replaceChildren(...fresh.childNodes);
  };
  const figure = svgKit.frame(
    stage.column,
    below + 58 * u,
    spoken,
    decayMatrix.parts,
    moving,
  );
  show();
  return { figure, show };
}

/** @param {Data} data @param {Step} step @param {Stage} stage */
function follow(data, step, stage, head) {
  const caption = svgKit.caption();
  const { figure, show } = picture(data, step, stage, head, caption);
  stage.pointing = () => {
    if (!figure.isConnected) return;
    show();
    stage.touch("overlay");
  };
  const row = (event) => {
    const mark = dom.closest(event, "[data-id]");
    return mark && Number(mark.dataset.id);
  };
  figure.addEventListener("pointermove", (event) => stage.point(row(event)));
  figure.addEventListener("pointerleave", () => stage.point(null));
  figure.addEventListener("click", (event) => {
    if (row(event) !== null) stage.pick(row(event));
  });
  return dom.h("div", { class: "sv-decay-note" }, figure, caption);
}

/** @param {Trace.DecayMaskNote} note @param {Step} step @param {Stage} stage */
function draw(note, step, stage) {
  const data = read(note, step);
  if (data.count < 2 || !data.heads.length) {
    return svgKit.caption("Nothing was drafted in this step, so there are no branches to keep apart.");
  }
  const square = (kind) => box(-6, -6, 12, 12, kind);
  const legend = svgKit.key(
    [square("sv-decay"), "what is left of an ancestor"],
    [square("sv-unseen"), "another branch: nothing"],
    [square("sv-tap-ring"), "read by the convolution"],
  );
  const kinds = data.layers.filter((kind) => kind === "state").length;
  const mixed = `${format.count(kinds, "state layer")}, ${format.count(data.layers.length - kinds, "attention layer")}.`;
  return dom.h(
    "div",
    {},
    scrubber.make(stage, "decay_mask", moments(data), (moment) => follow(data, step, stage, moment.head), 1),
    legend,
    svgKit.more(
      stage,
      data.bytes.each ? svgKit.frame(stage.column, 116 * stage.u, "What states cost", memory(data, stage, 0, 0)) : null,
      dom.h("p", { class: "sv-mute" }, `${mixed} Only the accepted path is replayed into the state.`),
    ),
  );
}

/** In the main tree: a ring around every node of the path in focus, dashed where the convolution does not reach. @param {Trace.DecayMaskNote} note @param {Step} step @param {Stage} stage */
function overlay(note, step, stage) {
  const data = read(note, step);
  if (data.count < 2 || !data.heads.length) return null;
  const at = focus(data, stage);
  const path = new Set(data.paths[at]);
  const { own } = reads(data, at);
  return {
    under: (treeLayout) =>
      [...treeLayout.items.values()]
        .filter((item) => item.kind === "node" && path.has(item.id))
        .map((item) =>
          box(
            item.x - 4,
            item.y - item.h / 2 - 4,
            item.w + 8,
            item.h + 8,
            own.has(item.id) ? "sv-tap-ring" : "sv-path-ring",
            9,
          ),
        ),
  };
}

noteRegistry.register("decay_mask", { title: "Decay mask", draw, overlay });

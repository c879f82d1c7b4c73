// @ts-check
// Leaf-to-root verification: a cursor walks the tree in post-order, and each node is a tank filled to its weight.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as scrubber from "../kit/scrubber.js";
import * as svgKit from "../kit/svgKit.js";
import { cross, disc, line, tank, text } from "../kit/svgKit.js";
import { Tip } from "../kit/tip.js";
import { sentChildren } from "../run/decode.js";

const MOST = 2000;
const DONE = { accepted: "accepted", failed: "rejected", passed: "accepted" };

/** @typedef {ReturnType<typeof read>} Data */

/** @param {Trace.TraversalNote} note @param {Step} step */
function read(note, step) {
  const visits = note.visits
    .slice(0, MOST)
    .filter((visit) => step.nodes[visit.node]);
  return { visits, rescued: new Set(note.rescued), topDown: note.top_down };
}

/** Every visit is a moment; the last one looks back at the coin that decided. @param {Data} data @param {Step} step */
function moments(data, step) {
  const { visits } = data;
  const events = visits.map((visit, place) => ({
    key: `${step.index} ${place}`,
    label: `Visit ${place + 1} of ${visits.length}`,
    visit,
    place,
  }));
  const deciding = visits.find((visit) => visit.outcome === "accepted") || visits[visits.length - 1];
  return [...events, { key: "result", label: "Result", visit: deciding, place: visits.length - 1 }];
}

/** What has happened up to a moment: the last visit of every node. @param {Data} data */
const known = (data, place) => new Map(data.visits.slice(0, place + 1).map((visit) => [visit.node, visit]));

/** @param {Step} step */
function sentence(step, visit) {
  const node = step.nodes[visit.node];
  const name = format.quote(node.text);
  if (!visit.node) {
    return "Every branch failed, so no drafted token is kept: the next one is drawn from the target's residual.";
  }
  if (visit.outcome === "passed") {
    return `${name} is on the accepted path, so it is kept with it, without a coin of its own.`;
  }
  if (visit.draw === null) return `${name} needed no coin: it ${visit.outcome === "accepted" ? "is kept" : "fails"}.`;
  const coin = `The coin ${format.probability(visit.draw)} is ${visit.outcome === "accepted" ? "below" : "not below"} that`;
  const leaf = sentChildren(step, node).length ? "Everything below it failed, so now it is tested itself" : "A leaf";
  const end =
    visit.outcome === "accepted"
      ? "the whole path down to here is kept at once"
      : "it fails, and the residual passes to its next sibling or its parent";
  return `${leaf}: ${name} has weight ${format.probability(visit.weight)}. ${coin}: ${end}.`;
}

/** The tank of the visited node, with the coin as a line across it. @param {Step} step @param {Stage} stage */
function scales(step, visit, stage) {
  const { u } = stage;
  const height = 92 * u,
    floor = height - 6;
  const before = visit.start !== null && format.probability(visit.start) !== format.probability(visit.weight);
  const coin = visit.draw === null ? null : floor - (floor - 8) * Math.min(1, visit.draw);
  const node = step.nodes[visit.node];
  const look = DONE[visit.outcome];
  const right = 78 * u;
  return dom.s(
    "g",
    { class: `sv-visit sv-is-${look}` },
    tank(24 * u, 8, 40 * u, floor - 8, fill(visit), `sv-is-${look}`),
    before
      ? line(24 * u, floor - (floor - 8) * visit.start, 64 * u, floor - (floor - 8) * visit.start, "sv-threshold-line")
      : null,
    text(stage, 18 * u, 14, "1", { anchor: "end", kind: "sv-mute" }),
    text(stage, 18 * u, floor, "0", { anchor: "end", kind: "sv-mute" }),
    coin === null ? null : [line(16 * u, coin, 72 * u, coin, "sv-draw-line"), disc(72 * u, coin, 4 * u, "sv-draw")],
    text(stage, right + 8 * u, 20 * u, format.token(node.text, 20), { kind: "sv-word", size: 14, bold: true }),
    visit.weight === null ? null : text(stage, right + 8 * u, (before ? 36 : 42) * u, `weight ${format.probability(visit.weight)}`, {}),
    before && visit.weight !== null ? text(stage, right + 8 * u, 50 * u, `${format.probability(visit.start)} before its children failed`, {}) : null,
    visit.draw === null ? null : text(stage, right + 8 * u, (before ? 65 : 60) * u, `coin ${format.probability(visit.draw)}`, {}),
    text(
      stage,
      right + 8 * u,
      80 * u,
      visit.outcome === "passed" ? "kept with its path" : visit.outcome,
      {
        bold: true,
        kind: "sv-outcome",
      },
    ),
  );
}

/** A node that passed without a coin is certainly kept. */
const fill = (visit) => visit.weight ?? Number(visit.outcome === "passed");

/** Every visit as a small tank, in the order of the walk. */
function row(data, stage, { place, visit: current }, high) {
  const { u } = stage;
  const pitch = Math.min(22 * u, (stage.column - 4) / data.visits.length);
  const wide = Math.max(2, pitch - 4 * u),
    tall = 34 * u;
  return data.visits.map((visit, at) => {
    const x = 2 + at * pitch;
    const look = at > place ? "sv-upcoming" : `sv-is-${DONE[visit.outcome]}`;
    const parts = [tank(x, high, wide, tall, at > place ? 0 : fill(visit), look)];
    if (at <= place && visit.outcome === "failed" && wide > 5)
      parts.push(cross(x + wide / 2, high + tall / 2, wide / 3.2));
    if (at <= place && data.rescued.has(visit.node)) parts.push(star(x + wide / 2, high - 7 * u, 5 * u));
    if (visit === current)
      parts.push(dom.s("path", { d: `M${x + wide / 2} ${high + tall + 4}l6 9h-12Z`, class: "sv-test-passed" }));
    return dom.s("g", { "data-id": visit.node, "data-visit": at }, parts);
  });
}

/** A star for a rescued node. @param {number} x @param {number} y */
function star(x, y, r) {
  const points = Array.from({ length: 10 }, (_, at) => {
    const far = at % 2 ? r * 0.45 : r;
    const angle = (Math.PI * at) / 5 - Math.PI / 2;
    return `${svgKit.round(x + far * Math.cos(angle))} ${svgKit.round(y + far * Math.sin(angle))}`;
  });
  return dom.s("path", { d: `M${points.join("L")}Z`, class: "sv-star" });
}

const last = (moment) => moment.key === "result";

/** @param {Data} data @param {Step} step */
function result(data, step) {
  if (step.veiled) return null;
  const acceptedCount = step.path.length;
  const more = acceptedCount - data.topDown;
  const side =
    more > 0
      ? `going up from the leaves rescued ${format.count(more, "token")}.`
      : more < 0
        ? "the other order was luckier here; on average, going up keeps more."
        : "no difference here.";
  const other = ` Judged from the root down, with the same coins, this tree would have kept ${data.topDown}: ${side}`;
  return svgKit.caption(dom.h("b", {}, `${acceptedCount} kept.`), other);
}

/** @param {Data} data @param {Step} step @param {Stage} stage */
function picture(data, step, stage, moment) {
  const high = 116 * stage.u,
    height = high + 52 * stage.u;
  const parts = [scales(step, moment.visit, stage), row(data, stage, moment, high)];
  const spoken = `${moment.label}. ${sentence(step, moment.visit)}`;
  const figure = svgKit.frame(stage.column, height, spoken, parts);
  return svgKit.pickable(figure, stage, (id) => Tip.about(step, step.nodes[id]));
}

/** @param {Trace.TraversalNote} note @param {Step} step @param {Stage} stage */
function draw(note, step, stage) {
  const data = read(note, step);
  if (!data.visits.length) return svgKit.caption("Nothing was drafted in this step, so there was nothing to judge.");
  const drawMoment = (moment) =>
    dom.h(
      "div",
      {},
      picture(data, step, stage, moment),
      last(moment) && result(data, step) ? result(data, step) : svgKit.caption(sentence(step, moment.visit)),
    );
  const legend = svgKit.key(
    [tank(-4, -6, 8, 12, 0.6, "sv-is-accepted"), "weight: probability of being kept"],
    [[line(-7, 0, 7, 0, "sv-draw-line"), disc(5, 0, 3, "sv-draw")], "coin"],
    data.rescued.size ? [star(0, 0, 5), "rescued"] : [cross(0, 0, 3.5), "failed"],
  );
  return dom.h("div", {}, scrubber.make(stage, "traversal", moments(data, step), drawMoment), legend);
}

/** In the main tree: a tank beside every node visited so far, the cursor, and the rest of the tree dimmed. @param {Trace.TraversalNote} note @param {Step} step @param {Stage} stage */
function overlay(note, step, stage) {
  const data = read(note, step);
  if (!data.visits.length) return null;
  const events = moments(data, step);
  const place = scrubber.place(stage, "traversal", events, events.length - 1);
  const visited = known(data, place);
  return {
    dim: (item) => item.kind === "node" && item.id !== 0 && !visited.has(item.id),
    over: (treeLayout, u) => [...visited.values()].map((visit) => besideItem(treeLayout, u, visit, data, visit === events[place].visit)),
  };
}

/** @param {Plan} treeLayout @param {number} u @param {Data} data */
function besideItem(treeLayout, u, visit, data, current) {
  const item = treeLayout.items.get(visit.node);
  if (!item) return null;
  const small = !item.label;
  const high = small ? 7 * u : 20 * u;
  const x = item.x - (small ? 6 : 8) * u;
  return dom.s(
    "g",
    { class: "sv-gauge" },
    tank(x, item.y - high / 2, (small ? 3.5 : 5) * u, high, fill(visit), `sv-is-${DONE[visit.outcome]}`),
    data.rescued.has(visit.node) && visit.outcome !== "failed"
      ? star(item.x + item.w + 8 * u, item.y - 8 * u, 6 * u)
      : null,
    current ? cursor(item, u) : null,
  );
}

/** @param {Item} item @param {number} u */
const cursor = (item, u) => [
  dom.s("rect", {
    x: item.x - 13 * u,
    y: item.y - item.h / 2 - 6 * u,
    width: item.w + 18 * u,
    height: item.h + 12 * u,
    rx: 7,
    class: "sv-cursor",
  }),
  dom.s("path", { d: `M${item.x - 14 * u} ${item.y}l${-9 * u} ${-6 * u}v${12 * u}Z`, class: "sv-test-passed" }),
];

noteRegistry.register("traversal", { title: "Leaf to root", draw, overlay });

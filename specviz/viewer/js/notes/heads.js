// @ts-check
// Independent heads: one hidden state, several heads, each with its own list for its own place, blind to the others.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as svgKit from "../kit/svgKit.js";
import { box, line, text } from "../kit/svgKit.js";
import { Tip } from "../kit/tip.js";

const MOST_HEADS = 8,
  MOST = 10;

/** @typedef {ReturnType<typeof read>} Data */

/** @param {Trace.HeadsNote} note */
function read(note) {
  return note.heads.slice(0, MOST_HEADS).map(({ head, tokens, texts, probability }) => ({ number: head, tokens: tokens.slice(0, MOST), texts, probability }));
}

/** The best verdict on a token at a depth: a head's list is the same under every branch. @param {Step} step @param {number} token */
function verdict(step, depth, token) {
  const order = ["accepted", "relaxed", "rejected", "resampled", "skipped"];
  const candidates = step.nodes.filter(
    (node) => node.depth === depth && node.token === token && order.includes(node.status),
  );
  return candidates.sort((a, b) => order.indexOf(a.status) - order.indexOf(b.status))[0] || null;
}

/** @param {Data} data @param {Step} step @param {Stage} stage */
function place(data, step, stage) {
  const { u } = stage;
  const top = 64 * u,
    pitch = 22 * u;
  const room = Math.floor((stage.tall - 128 * u - top) / pitch);
  const longest = Math.max(1, ...data.map((head) => head.tokens.length));
  // As many as there is room for, and in any case those in the tree.
  const used = data.map((head) => head.tokens.findLastIndex((token) => verdict(step, head.number, token)) + 1);
  const rows = Math.min(longest, Math.max(room, ...used, 4));
  return {
    width: stage.column,
    height: top + rows * pitch + 2,
    top,
    pitch,
    rows,
    wide: stage.column / data.length,
    u,
  };
}

/** @param {Step} step @param {Stage} stage */
function cell(step, at, stage, head, place, rank) {
  const token = head.tokens[rank];
  const node = verdict(step, head.number, token);
  const left = place * at.wide + 8 * at.u,
    width = at.wide - 16 * at.u;
  const high = at.top + rank * at.pitch;
  const share = Math.min(1, Math.max(0, head.probability[rank] || 0));
  const most = Math.max(3, Math.floor((width - 8 * at.u) / (7.2 * at.u)));
  const look = node ? `sv-cell sv-is-${node.status}` : "sv-cell sv-unpicked";
  return dom.s(
    "g",
    { class: look, "data-id": node ? node.id : null, "data-at": `${place} ${rank}` },
    box(left - 4 * at.u, high, width + 8 * at.u, at.pitch - 3 * at.u, "sv-cell-box", 4),
    node && node.status === "relaxed"
      ? box(left - 1.4 * at.u, high + 2.6 * at.u, width + 2.8 * at.u, at.pitch - 8.2 * at.u, "sv-inner", 3)
      : null,
    box(left, high + at.pitch - 7 * at.u, Math.max(1, width * share), 2.4 * at.u, "sv-q", 1),
    text(stage, left, high + at.pitch * 0.52, format.token(head.texts[rank] || `#${token}`, most), {
      kind: "sv-word",
    }),
  );
}

/** @param {Step} step @param {Stage} stage */
function column(step, at, stage, head, place) {
  const middle = (place + 0.5) * at.wide;
  const start = at.width / 2,
    from = 18 * at.u,
    to = at.top - 20 * at.u;
  const bend = (from + to) / 2;
  return [
    dom.s("path", { d: `M${start} ${from}C${start} ${bend} ${middle} ${bend} ${middle} ${to}`, class: "sv-head-link" }),
    text(stage, middle, at.top - 7 * at.u, `head ${head.number}`, { anchor: "middle", bold: true }),
    head.tokens.slice(0, at.rows).map((_, rank) => cell(step, at, stage, head, place, rank)),
    place ? line(place * at.wide, at.top - 16 * at.u, place * at.wide, at.height, "sv-divider") : null,
  ];
}

/** @param {Trace.HeadsNote} note @param {Step} step @param {Stage} stage */
function draw(note, step, stage) {
  const data = read(note);
  if (!data.length) return svgKit.caption("The heads proposed nothing in this step.");
  const at = place(data, step, stage);
  const middle = at.width / 2;
  /** @type {Child[]} */
  const parts = data.map((head, number) => column(step, at, stage, head, number));
  parts.push(box(middle - 44 * at.u, 0, 88 * at.u, 18 * at.u, "sv-hidden-state", 9));
  parts.push(text(stage, middle, 13 * at.u, "hidden state", { anchor: "middle", kind: "sv-hidden-state-label" }));
  const spoken = `${format.count(data.length, "head")}: ${data.map((head) => `head ${head.number}'s top guess is ${format.token(head.texts[0] || "", 16)}`).join("; ")}`;
  const figure = svgKit.pickable(svgKit.frame(at.width, at.height, spoken, parts), stage, (id) =>
    Tip.about(step, step.nodes[id]),
  );
  const sample = (status) =>
    dom.s(
      "g",
      { class: `sv-cell sv-is-${status}` },
      box(-7, -5, 14, 10, "sv-cell-box", 3),
      status === "relaxed" ? box(-4.6, -2.6, 9.2, 5.2, "sv-inner", 2) : null,
    );
  const relaxed = step.nodes.some((node) => node.status === "relaxed");
  const caption =
    "Head d guesses the token at depth d from one and the same hidden state, blind to the others: every branch gets the same list.";
  const key = [
    [sample("accepted"), "accepted"],
    relaxed ? [sample("relaxed"), "relaxed: the strict rule would have rejected it"] : null,
    [sample("rejected"), "rejected"],
    [sample("skipped"), "in the tree"],
  ].filter(Boolean);
  return dom.h("div", {}, figure, svgKit.key(...key), svgKit.caption(caption));
}

noteRegistry.register("heads", { title: "Independent heads", draw });

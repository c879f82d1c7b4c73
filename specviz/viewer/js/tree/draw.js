// @ts-check
// Draws one laid-out node or edge as SVG. Every verdict differs in colour, in line and in shape.
import * as dom from "../kit/dom.js";
import { s } from "../kit/dom.js";
import { FAILED } from "../run/decode.js";
import { ROUND, letters } from "./items.js";

/** @param {number} x @param {number} y @param {string} kind */
const box = (x, y, w, h, r, kind) => s("rect", { x, y, width: w, height: h, rx: r, class: kind });

/** A box with its right corners cut off: drafted, then pruned. */
function chamfered(w, h) {
  const c = Math.min(6, h / 2);
  return s("path", {
    d: `M0 ${-h / 2}H${w - c}L${w} ${-h / 2 + c}V${h / 2 - c}L${w - c} ${h / 2}H0Z`,
    class: "sv-box",
  });
}

/** @param {number} x @param {number} y */
function cross(x, y, r) {
  return s(
    "g",
    { class: "sv-cross" },
    s("circle", { cx: x, cy: y, r: r + 2.5 }),
    s("path", { d: `M${x - r} ${y - r}L${x + r} ${y + r}M${x + r} ${y - r}L${x - r} ${y + r}` }),
  );
}

/** @param {{ w: number, h: number }} item @param {string} status @param {string} hatch */
function shape(item, status, hatch) {
  const { w, h } = item;
  if (status === "pruned") return [chamfered(w, h)];
  const parts = [box(0, -h / 2, w, h, status === "resampled" ? h / 2 : Math.min(6, h / 3), "sv-box")];
  if (status === "relaxed") {
    parts.push(
      s("rect", {
        x: 3,
        y: 3 - h / 2,
        width: w - 6,
        height: h - 6,
        rx: 3,
        class: "sv-inner",
        fill: `url(#${hatch})`,
      }),
    );
  }
  if (status === "rejected") parts.push(cross(w, -h / 2, 2.6));
  return parts;
}

/** @param {Item} item @param {number} u */
function label(item, u, compact) {
  const size = letters(compact || item.form === "chip" ? 11 : 12.5, u);
  const x =
    item.form === "full" || item.form === "bare"
      ? (item.w - dom.measure(item.label, size)) / 2
      : (compact ? 4.5 : 7) * u;
  return s("text", { x, y: size * 0.35, "font-size": size }, item.label);
}

/** The hairline of a probability, on one scale for all nodes, on a faint track whose end is 1: q above p. @param {number} value @param {string} kind @param {Item} item @param {number} u */
function bar(value, row, kind, item, u) {
  const { track } = item,
    thick = 2.4 * u;
  const place = { x: 2, y: item.h / 2 + 3 * u + row * (thick + 0.8 * u), height: thick };
  return s(
    "g",
    { "aria-hidden": "true" },
    s("rect", { ...place, width: track, class: "sv-track" }),
    s("rect", { ...place, width: Math.max(0.8, track * Math.min(1, value)), class: kind }),
  );
}

/** @param {Item} item @param {number} u */
const qBar = (item, u) => (item.bars && typeof item.node.q === "number" ? bar(item.node.q, 0, "sv-q", item, u) : null);
/** @param {Item} item @param {number} u */
const pBar = (item, u) => (item.bars ? bar(item.node.p || 0, Number(item.node.q !== null), "sv-p", item, u) : null);

/** @param {Item} item @param {number} u */
function diamond(item, u) {
  const r = 9 * u;
  return [
    s("path", { d: `M0 0L${r} ${-r}L${2 * r} 0L${r} ${r}Z`, class: "sv-diamond" }),
    s("text", { x: 2 * r + 5 * u, y: 4.5 * u, "font-size": letters(13, u), "font-weight": 600 }, item.label),
  ];
}

/** @param {Item} item @param {number} u */
function dot(item, status, u) {
  const r = ROUND[item.form] * u;
  if (FAILED.has(status)) {
    return [s("path", { d: `M0.5 ${-r}L${2 * r} ${r}M${2 * r} ${-r}L0.5 ${r}`, class: "sv-failed-mark" })];
  }
  if (status === "pruned") return [s("path", { d: `M0 0L${r} ${-r}L${2 * r} 0L${r} ${r}Z`, class: "sv-box" })];
  return [s("circle", { cx: r, cy: 0, r, class: "sv-box" })];
}

/** The node's mark and its text, with a verdict or without one. @param {Item} item @param {number} u */
function face(item, u, hatch, status = item.node.status) {
  if (item.kind === "bonus") return diamond(item, u);
  if (ROUND[item.form]) return dot(item, status, u);
  const parts =
    item.kind === "chip" ? [box(0, -item.h / 2, item.w, item.h, item.h / 2, "sv-box")] : shape(item, status, hatch);
  parts.push(label(item, u, item.form === "small"));
  return parts;
}

/** @param {Item} item */
const statusOf = (item) => (item.kind === "node" ? item.node.status : item.kind);

/** The node's group, at its place, with a wider invisible target for fingers and a ring for focus and selection. @param {Item} item @param {string} kind */
function frame(item, kind, ...children) {
  const pad = item.label ? 3 : 4;
  const ring = s("rect", {
    x: -pad,
    y: -item.h / 2 - pad,
    width: item.w + 2 * pad,
    height: item.h + 2 * pad,
    rx: 8,
    class: "sv-ring",
  });
  const hit = s("rect", { x: -4, y: -item.tall / 2, width: item.w + 12, height: item.tall, class: "sv-hit" });
  const place = `translate(${Math.round(item.x * 10) / 10} ${Math.round(item.y * 10) / 10})`;
  const named = { class: `sv-node ${kind} sv-form-${item.form}`, transform: place, "data-id": item.id };
  return s("g", named, hit, ring, children);
}

/** @param {Item} item */
export const node = (item, hatch) =>
  frame(item, `sv-is-${statusOf(item)}`, face(item, item.u, hatch), qBar(item, item.u), pBar(item, item.u));

/** The same in a moving step: as drafted, as judged, and its p, in separate layers, since each appears at its own time. @param {Item} item */
export function layers(item, hatch) {
  const { u } = item;
  const layer = (status) => s("g", { class: `sv-node sv-form-${item.form} sv-is-${status}` }, face(item, u, hatch, status));
  const judged = item.kind === "node" && item.node.status !== "root";
  const parts = { drafted: judged ? layer("drafted") : null, judged: layer(statusOf(item)), scored: pBar(item, u) };
  return { ...parts, group: frame(item, "sv-moving-node", parts.drafted, parts.judged, qBar(item, u), parts.scored) };
}

export const edge = ({ item, path }, as) => s("path", { d: path, class: `sv-edge sv-is-${as || statusOf(item)}` });

/** The hatch that fills relaxed nodes; its id is the stage's own, since two stages may share a page. */
export function hatch(id) {
  return s(
    "defs",
    {},
    s(
      "pattern",
      { id, width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      s("rect", { width: 2, height: 5, class: "sv-hatch" }),
    ),
  );
}

/** A small sample of a verdict for the legend. */
export function sample(status, id) {
  const item = { w: 17, h: 11 };
  const parts =
    status === "bonus"
      ? [s("path", { d: "M2 0L8.5 -6.5L15 0L8.5 6.5Z", class: "sv-diamond" })]
      : shape(item, status, id);
  return s(
    "svg",
    { width: 22, height: 17, viewBox: "-2 -8.5 22 17", "aria-hidden": "true", class: "sv-sample" },
    s("g", { class: `sv-node sv-is-${status}` }, parts),
  );
}

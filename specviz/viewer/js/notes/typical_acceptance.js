// @ts-check
// Typical acceptance: a guess is kept if its p is above a bar, which is lower where the target is unsure.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as svgKit from "../kit/svgKit.js";
import { cross, disc, line, text } from "../kit/svgKit.js";

const MOST = 80;
const MOST_NATS = 64; // no vocabulary has an entropy near it, and the axis has a mark for each nat or two

/** @param {Trace.TypicalAcceptanceNote} note @param {Step} step */
function read(note, step) {
  const rows = note.positions.slice(0, MOST).map(({ node, text, p, threshold, entropy }) => ({
    node,
    text,
    p,
    bar: threshold,
    entropy,
    status: step.nodes[node] ? step.nodes[node].status : "skipped",
  }));
  return rows.filter((row) => row.entropy >= 0 && row.entropy <= MOST_NATS);
}

const above = (row) => row.p > row.bar;
const isKept = (row) => row.status === "accepted" || row.status === "relaxed";

/** The bar as a curve: its flat part is ε, the rest falls as exp(−H), so any point on the falling part gives δ. */
function curve(rows) {
  const flat = Math.max(...rows.map((row) => row.bar));
  const falling = rows.filter((row) => row.bar < flat * 0.999);
  const delta = falling.length ? falling[0].bar * Math.exp(falling[0].entropy) : null;
  return (entropy) => (delta === null ? flat : Math.min(flat, delta * Math.exp(-entropy)));
}

/** @param {Stage} stage */
function axes(rows, stage) {
  const { u } = stage;
  const width = stage.column,
    height = Math.min(width * 0.62, Math.max(160 * u, stage.tall - 128 * u));
  const left = 46 * u,
    top = 22 * u,
    floor = height - 20 * u;
  const widest = Math.max(1, ...rows.map((row) => row.entropy)) * 1.06;
  const lowest = Math.log10(Math.max(1e-6, Math.min(...rows.map((row) => Math.min(row.p || 1e-6, row.bar))))) - 0.15;
  const x = (entropy) => left + ((width - left - 8 * u) * entropy) / widest;
  const y = (p) => top + (floor - top) * Math.min(1, Math.log10(Math.max(1e-7, p)) / lowest);
  return { width, height, left, top, floor, widest, lowest, x, y };
}

/** @param {Stage} stage */
function grid(at, stage) {
  const parts = [];
  for (let power = 0; power >= at.lowest; power -= 1) {
    const high = at.y(10 ** power);
    const label = power > -4 ? String(1 / 10 ** -power) : `1e${power}`;
    parts.push(line(at.left, high, at.width, high, "sv-grid"));
    parts.push(text(stage, at.left - 6, high + 4, label, { anchor: "end", kind: "sv-mute" }));
  }
  for (let entropy = 0; entropy <= at.widest; entropy += at.widest > 4 ? 2 : 1) {
    parts.push(text(stage, at.x(entropy), at.height - 4, String(entropy), { anchor: "middle", kind: "sv-mute" }));
  }
  parts.push(text(stage, 0, 11 * stage.u, "p of the guess", { kind: "sv-mute" }));
  parts.push(
    text(stage, at.width, 11 * stage.u, "across: the target's entropy in nats", { anchor: "end", kind: "sv-mute" }),
  );
  return parts;
}

/** The area where a guess is kept, and the bar as its lower edge. */
function region(rows, at) {
  const bar = curve(rows);
  const steps = Array.from({ length: 41 }, (_, place) => (at.widest * place) / 40);
  const edge = steps.map((entropy) => `${svgKit.round(at.x(entropy))} ${svgKit.round(at.y(bar(entropy)))}`).join("L");
  const right = svgKit.round(at.x(at.widest));
  return [
    dom.s("path", { d: `M${at.left} ${at.top}L${edge}L${right} ${at.top}Z`, class: "sv-region" }),
    dom.s("path", { d: `M${edge}`, class: "sv-threshold-line" }),
  ];
}

/** @param {Stage} stage */
function point(row, at, stage, chosen) {
  const { u } = stage;
  const x = at.x(row.entropy),
    y = at.y(row.p);
  const mark = isKept(row)
    ? disc(x, y, 5 * u, "sv-accepted-mark")
    : above(row)
      ? disc(x, y, 4.5 * u, "sv-off-path-mark")
      : cross(x, y, 4 * u);
  const early = x > at.width * 0.7;
  const label = { anchor: early ? "end" : "start", kind: "sv-halo sv-word", bold: true };
  return dom.s(
    "g",
    { class: "sv-point", "data-id": row.node },
    disc(x, y, 9 * u, "sv-hit"),
    chosen ? line(x, y, x, at.y(row.bar), "sv-drop-line") : null,
    chosen ? disc(x, y, 8 * u, "sv-beam-ring") : null,
    mark,
    chosen ? text(stage, x + (early ? -10 : 10) * u, y + 4, format.token(row.text, 12), label) : null,
  );
}

function sentence(row) {
  const side = above(row) ? "above" : "not above";
  const lost = "typical enough, but another branch went further";
  const end = isKept(row) ? "typical enough, so it is kept" : above(row) ? lost : "not typical, so it is dropped";
  return (
    `${format.quote(row.text)} has p = ${format.probability(row.p)}. The target's entropy here is ${row.entropy.toFixed(2)} nats, ` +
    `which puts the bar at ${format.probability(row.bar)}. p is ${side} it: ${end}.`
  );
}

/** @param {Trace.TypicalAcceptanceNote} note @param {Step} step @param {Stage} stage */
function draw(note, step, stage) {
  const rows = read(note, step);
  if (!rows.length) return svgKit.caption("No guess was judged in this step.");
  const focused = noteRegistry.focus(rows, stage);
  const at = axes(rows, stage);
  const parts = [region(rows, at), grid(at, stage)];
  parts.push(rows.map((row) => point(row, at, stage, row === focused)));
  const spoken = `${format.count(rows.length, "guess", "guesses")} by entropy and probability, with the bar. ${sentence(focused)}`;
  const figure = svgKit.pickable(svgKit.frame(at.width, at.height, spoken, parts), stage, (id) => {
    const row = rows.find((guess) => guess.node === id) || focused;
    return [
      format.token(row.text, 40),
      `p ${format.probability(row.p)}, bar ${format.probability(row.bar)}`,
      `entropy ${row.entropy.toFixed(2)}`,
    ];
  });
  const edge = [line(-7, 0, 7, 0, "sv-threshold-line"), "the bar: min(ε, δ · exp(−H))"];
  const marks = [
    [disc(0, 0, 5, "sv-accepted-mark"), "kept"],
    [cross(0, 0, 4), "not typical"],
  ];
  if (rows.some((row) => above(row) && !isKept(row)))
    marks.push([disc(0, 0, 4.5, "sv-off-path-mark"), "typical, off the path"]);
  marks.push(edge);
  return dom.h("div", {}, figure, svgKit.key(...marks), svgKit.caption(sentence(focused)));
}

noteRegistry.register("typical_acceptance", { title: "Typical acceptance", draw });

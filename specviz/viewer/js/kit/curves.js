// Tokens a pass from short texts to long ones, method by method, where the length suite has measured the run's target.
import * as dom from "./dom.js";
import { MEASURED } from "../generated.js";
import * as svgKit from "./svgKit.js";
import { disc, line, text } from "./svgKit.js";

const STYLES = 5;
const WORDS = { answers: "answering behind", copies: "copying from" };

/** What was measured of the run's target for this kind, or null where nothing was. */
function curvesOf(stage, kind) {
  const target = stage.trace && stage.trace.run && stage.trace.run.target;
  const measurement = MEASURED.find((other) => other.target === target);
  const rows = measurement ? measurement.curves.filter((curve) => curve.kind === kind) : [];
  return rows.length ? { ...measurement, curves: rows } : null;
}

/** The curves of `kind` with the run among them: `point` is {length, tokens}. Null where nothing was measured. */
export function draw(stage, kind, point) {
  const known = curvesOf(stage, kind);
  if (!known) return null;
  const { u } = stage;
  const { lengths } = known;
  const first = Math.max(1, Math.min(lengths[0], point.length)),
    last = Math.max(first + 1, lengths[lengths.length - 1], point.length);
  const most = Math.max(2, point.tokens, ...known.curves.flatMap((curve) => curve.tau));
  const left = 26 * u,
    top = 8 * u,
    high = 110 * u,
    wide = stage.column - left - 22 * u;
  const x = (length) => left + (wide * Math.log(Math.max(first, length) / first)) / Math.log(last / first);
  const y = (tokens) => top + high * (1 - tokens / most);
  const grid = [...new Set([1, Math.round(most)])].map((tick) => [
    line(left, y(tick), left + wide, y(tick), "sv-grid"),
    text(stage, left - 6 * u, y(tick) + 4 * u, String(tick), { anchor: "end", kind: "sv-mute" }),
  ]);
  const ticks = lengths.map((length) => text(stage, x(length), top + high + 15 * u, String(length), { anchor: "middle", kind: "sv-mute" }));
  const paths = known.curves.map((curve, at) => {
    const points = curve.tau.map((tau, place) => `${svgKit.round(x(lengths[place]))} ${svgKit.round(y(tau))}`);
    return dom.s("path", { d: `M${points.join("L")}`, class: look(at) }, dom.s("title", {}, `${curve.method}: τ ${curve.tau.join(", ")}`));
  });
  const head = `τ ${WORDS[kind]} a text of so many tokens; the ring is this run`;
  const spoken = `${head}. ${known.curves.map((curve) => `${curve.method} ${curve.tau.join(", ")}`).join("; ")}`;
  const ring = disc(x(point.length), y(point.tokens), 6 * u, "sv-cursor");
  const key = svgKit.key(...known.curves.map((curve, at) => [line(-9, 0, 9, 0, look(at)), curve.method]));
  const source = dom.h("p", { class: "sv-mute" }, `Measured ${known.date}: ${known.source}.`);
  // Too long for one line of a phone, so it is a paragraph, which breaks.
  const title = dom.h("p", { class: "sv-mute" }, head);
  return [title, svgKit.frame(stage.column, top + high + 22 * u, spoken, [grid, ticks, paths, ring]), key, source];
}

const look = (at) => `sv-curve sv-curve-${at % STYLES}`;

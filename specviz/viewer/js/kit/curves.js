// @ts-check
// Tokens per pass by text length and method, if the length suite has measured the run's target.
import * as dom from "./dom.js";
import { MEASURED } from "../generated.js";
import * as svgKit from "./svgKit.js";
import { disc, line, text } from "./svgKit.js";

const STYLES = 5;
const WORDS = { answers: "when it answers", copies: "when it copies" };

/** The measurements of the run's target for this kind, or null if there are none. @param {Stage} stage @param {string} kind */
function curvesOf(stage, kind) {
  const { run } = stage.trace;
  const target = run && run.target;
  const measurement = MEASURED.find((other) => other.target === target);
  const curves = measurement ? measurement.curves.filter((curve) => curve.kind === kind) : [];
  return measurement && curves.length ? { ...measurement, curves, run: run && run.method } : null;
}

/**
 * The curves of `kind` with the run among them, as {figure, sentence, source}; null if nothing was measured. `point` is
 * {length, tokens}, the run's own curve is drawn thick, and the figure is `tall` pixels high.
 * @param {Stage} stage @param {string} kind
 */
export function draw(stage, kind, point, tall) {
  const known = curvesOf(stage, kind);
  if (!known) return null;
  const { u } = stage;
  const { lengths } = known;
  const own = known.curves.find((curve) => curve.method === known.run);
  const first = Math.max(1, Math.min(lengths[0], point.length)),
    last = Math.max(first + 1, lengths[lengths.length - 1], point.length);
  const most = Math.max(2, point.tokens, ...known.curves.flatMap((curve) => curve.tau));
  const left = 26 * u,
    top = 8 * u,
    high = Math.max(80 * u, tall - 48 * u),
    wide = stage.column - left - 22 * u;
  const x = (length) => left + (wide * Math.log(Math.max(first, length) / first)) / Math.log(last / first);
  const y = (tokens) => top + high * (1 - tokens / most);
  const grid = [...new Set([1, Math.round(most)])].map((tick) => [
    line(left, y(tick), left + wide, y(tick), "sv-grid"),
    text(stage, left - 6 * u, y(tick) + 4 * u, String(tick), { anchor: "end", kind: "sv-mute" }),
  ]);
  const ticks = lengths.map((length) => text(stage, x(length), top + high + 15 * u, String(length), { anchor: "middle", kind: "sv-mute" }));
  const look = (curve) => `sv-curve sv-curve-${known.curves.indexOf(curve) % STYLES}${curve === own ? " sv-own-curve" : ""}`;
  const paths = known.curves.map((curve) => {
    const points = curve.tau.map((tau, place) => `${svgKit.round(x(lengths[place]))} ${svgKit.round(y(tau))}`);
    return dom.s("path", { d: `M${points.join("L")}`, class: look(curve) }, dom.s("title", {}, `${curve.method}: τ ${curve.tau.join(", ")}`));
  });
  const ends = own ? [0, lengths.length - 1].map((at) => text(stage, x(lengths[at]), y(own.tau[at]) + 17 * u, own.tau[at].toFixed(2), { anchor: "middle", bold: true, kind: "sv-halo" })) : [];
  const head = `Tokens per pass (τ) ${WORDS[kind]}, by the length of the preceding text; the ring is this run`;
  const spoken = `${head}. ${known.curves.map((curve) => `${curve.method} ${curve.tau.join(", ")}`).join("; ")}`;
  const ring = disc(x(point.length), y(point.tokens), 6 * u, "sv-cursor");
  const axis = text(stage, left + wide, top + high + 30 * u, "tokens of text before it", { anchor: "end", kind: "sv-mute" });
  const key = svgKit.key(...known.curves.map((curve) => [line(-9, 0, 9, 0, look(curve)), curve === own ? dom.h("b", {}, curve.method) : curve.method]));
  const title = dom.h("p", { class: "sv-mute" }, head);
  const figure = [title, svgKit.frame(stage.column, top + high + 36 * u, spoken, [grid, ticks, axis, paths, ends, ring]), key];
  const far = own && `From ${lengths[0]} to ${lengths[lengths.length - 1]} tokens of text its τ goes from ${own.tau[0].toFixed(2)} to ${own.tau[own.tau.length - 1].toFixed(2)}.`;
  return { figure, sentence: far || "", source: dom.h("p", { class: "sv-mute" }, `Measured ${known.date}: ${known.source}.`) };
}

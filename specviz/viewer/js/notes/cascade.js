// @ts-check
// A chain of three models: the drafter feeds the intermediate model, whose buffer fills to μ before the target runs once.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as scrubber from "../kit/scrubber.js";
import * as svgKit from "../kit/svgKit.js";
import { box, disc, line, text } from "../kit/svgKit.js";

const MOST = 64;

/** @param {number} value */
const positive = (value) => Math.max(0, value);

/** @typedef {ReturnType<typeof read>} Data */

/** @param {Trace.CascadeNote} note */
function read(note) {
  const passes = note.passes.slice(0, MOST).map(({ tokens, texts, drafted, kept }) => ({
    tokens: tokens.slice(0, MOST).map((token, at) => texts[at] || `#${token}`),
    drafted: Math.min(MOST, positive(drafted)),
    kept: Math.min(tokens.length, positive(kept)),
  }));
  const capacity = Math.min(MOST, positive(note.gathered)) || 1;
  const length = Math.min(MOST, positive(note.length));
  const before = (place) => passes.slice(0, place).reduce((sum, pass) => sum + pass.tokens.length, 0);
  return { passes, capacity, length, before, slots: Math.max(capacity, length, 1) };
}

/**
 * Tokens per target pass without and with the model, those kept per pass of the model, its cost in target passes, and the
 * gain by the exact form, which counts all times; or null.
 * @param {Trace.CascadeNote} note
 */
function balances(note) {
  const { forecast: predicted, so_far: tally } = note;
  if (!predicted || !(predicted.without > 0) || !(predicted.with > 0) || !(predicted.below > 0)) return null;
  const forecast = { name: "forecast", at: predicted.with, below: predicted.below, ratio: positive(predicted.ratio), gain: positive(predicted.gain) };
  const rounds = tally ? positive(tally.rounds) - 1 : 0;
  const judged = tally ? positive(tally.passes) - note.passes.length : 0;
  if (!tally || !(rounds >= 1) || !(judged > 0) || !(predicted.target > 0) || !predicted.before || !(predicted.before > 0))
    return { without: predicted.without, points: [forecast] };
  const stayed = rounds + positive(tally.kept);
  const belowTarget = (positive(tally.verifying) + positive(tally.drafting)) / tally.passes;
  const after = (positive(predicted.target_block) * rounds + belowTarget * judged) / stayed;
  const measured = {
    name: "measured",
    at: stayed / rounds,
    below: stayed / judged,
    ratio: positive(tally.verifying) / tally.passes / predicted.target,
    gain: after > 0 ? predicted.before / after : 0,
  };
  return { without: predicted.without, points: [forecast, measured] };
}

const bound = (without, point, at) => point.below * (1 / without - 1 / at);

/** @param {Data} data @param {Step} step */
function sentence(data, step, moment) {
  if (!moment.pass) {
    const tail = step.veiled ? "" : ` It kept ${step.counts.kept}${step.emitted.length > step.counts.kept ? " and added one of its own" : ", with which the run ended"}.`;
    return `The target judges ${format.count(data.length, "token")} in one pass, by the intermediate model's probabilities.${tail}`;
  }
  const { pass, place } = moment;
  const filled = data.before(place + 1);
  const drafted = pass.drafted
    ? `Of ${format.count(pass.drafted, "drafted node")} the intermediate model took ${pass.kept} and added its own token`
    : "The drafter offered nothing; the intermediate model wrote a token itself";
  const full = filled >= data.capacity ? "full: now the target verifies" : `${filled} of μ = ${data.capacity}`;
  return `${drafted}. Buffer: ${full}.`;
}

/** @param {Stage} stage @param {number} y @param {string} name @param {number} high */
function belt(stage, y, name, high, moving) {
  return [
    text(stage, 0, y + high * 0.65, name, { bold: moving }),
    box(92 * stage.u, y, stage.column - 94 * stage.u, high, `sv-belt ${moving ? "sv-moving" : ""}`, high / 2),
  ];
}

/** The buffer's slots; the tokens of the pass on show are highlighted, the drafter's and the model's own in different colours. @param {Data} data @param {Step} step @param {Stage} stage @param {number} y @param {number} high */
function slots(data, step, stage, moment, y, high) {
  const left = 98 * stage.u,
    wide = (stage.column - 106 * stage.u) / data.slots,
    parts = [];
  const now = moment.pass ? moment.place : data.passes.length;
  let at = 0;
  data.passes.forEach((pass, place) => {
    pass.tokens.forEach((word, inside) => {
      if (at >= data.slots || (!moment.pass && at >= data.length)) return;
      const source = inside < pass.kept ? "sv-by-drafter" : "sv-by-intermediate";
      const kind = place > now ? "sv-unfilled" : place === now ? `${source} sv-fresh` : source;
      parts.push(box(left + at * wide + 1, y + 3, Math.max(2, wide - 2), high - 6, kind, 3));
      if (place <= now && wide > 34 * stage.u) {
        const most = Math.max(2, Math.floor(wide / (7.4 * stage.u)));
        parts.push(
          text(stage, left + (at + 0.5) * wide, y + high * 0.64, format.token(word, most), {
            anchor: "middle",
            kind: "sv-word",
          }),
        );
      }
      at += 1;
    });
  });
  for (; at < data.slots; at += 1)
    parts.push(box(left + at * wide + 1, y + 3, Math.max(2, wide - 2), high - 6, "sv-unfilled", 3));
  const mark = left + data.capacity * wide;
  parts.push(line(mark, y - 4, mark, y + high + 4, "sv-threshold-line"));
  parts.push(text(stage, mark - 3, y - 6, "μ", { anchor: "end", bold: true }));
  return parts;
}

/** @param {Data} data @param {Step} step @param {Stage} stage @param {number} y @param {number} high */
function verdicts(data, step, stage, y, high) {
  if (step.veiled) return [];
  const left = 98 * stage.u,
    wide = (stage.column - 106 * stage.u) / data.slots;
  return step.nodes
    .slice(1, 1 + data.length)
    .map((node, at) => box(left + at * wide + 1, y + 3, Math.max(2, wide - 2), high - 6, `sv-verdict sv-is-${node.status}`, 3));
}

/** @param {Stage} stage @param {number} y @param {number} high */
function drafted(stage, pass, y, high) {
  const left = 98 * stage.u;
  const wide = Math.min(22 * stage.u, (stage.column - 106 * stage.u) / Math.max(1, pass.drafted));
  return Array.from({ length: pass.drafted }, (_, at) =>
    box(left + at * wide + 1, y + 4, wide - 3, high - 8, at < pass.kept ? "sv-by-drafter" : "sv-not-taken", 3),
  );
}

/** @param {Data} data @param {Step} step @param {Stage} stage */
function picture(data, step, stage, moment) {
  const { u } = stage;
  const high = 26 * u,
    pitch = 38 * u,
    top = 12 * u;
  const parts = [
    belt(stage, top, "target", high, !moment.pass),
    belt(stage, top + pitch, "intermediate", high, Boolean(moment.pass)),
    belt(stage, top + 2 * pitch, "drafter", high, Boolean(moment.pass)),
    slots(data, step, stage, moment, top + pitch, high),
    moment.pass ? drafted(stage, moment.pass, top + 2 * pitch, high) : verdicts(data, step, stage, top, high),
  ];
  return svgKit.frame(stage.column, top + 3 * pitch, sentence(data, step, moment), parts);
}

/** @param {Stage} stage */
function axes(stage, at, balance) {
  const { left, right, top, floor } = at;
  return [
    line(left, floor, right, floor, "sv-axis"),
    line(left, top, left, floor, "sv-axis"),
    text(stage, right, floor + 15 * stage.u, "tokens per target pass", { anchor: "end", kind: "sv-mute" }),
    text(stage, left, floor + 15 * stage.u, format.probability(balance.without), { anchor: "middle", kind: "sv-mute" }),
    text(stage, left - 6, top + 10 * stage.u, "cost", { anchor: "end", kind: "sv-mute" }),
  ];
}

/**
 * What a pass of the model may cost by the published condition, by the tokens per target pass with it. The condition leaves
 * out the drafter's time and the target's wider pass; the verdict and a point's colour follow the exact form.
 * @param {Stage} stage
 */
function curve(balance, stage) {
  const { u } = stage;
  const now = balance.points[balance.points.length - 1];
  const most = 1.15 * Math.max(2 * balance.without, ...balance.points.map((point) => point.at));
  const tallest = Math.max(1.05, ...balance.points.map((point) => point.ratio * 1.15));
  const at = { left: 44 * u, right: stage.column - 8, top: 6 * u, floor: Math.max(72 * u, Math.min(150 * u, stage.tall - 280 * u)) };
  const x = (value) => at.left + ((value - balance.without) / (most - balance.without)) * (at.right - at.left);
  const y = (value) => at.floor - (Math.min(tallest, Math.max(0, value)) / tallest) * (at.floor - at.top);
  const places = Array.from({ length: 33 }, (_, step) => balance.without + ((most - balance.without) * step) / 32);
  const path = places.map((tokens) => `${svgKit.round(x(tokens))} ${svgKit.round(y(bound(balance.without, now, tokens)))}`);
  const area = `M${svgKit.round(x(balance.without))} ${at.floor}L${path.join("L")}L${svgKit.round(x(most))} ${at.floor}Z`;
  const points = balance.points.map((point) => {
    const pays = point.gain > 1;
    const place = [x(Math.max(balance.without, point.at)), y(point.ratio)];
    return [
      disc(place[0], place[1], 5.5 * u, `sv-break-even-point ${pays ? "sv-pays" : "sv-costs"} sv-${point.name}`),
      text(stage, place[0] + (point === now ? -9 : 9) * u, place[1] + (point === now ? -7 : 15) * u, point.name, {
        anchor: point === now ? "end" : "start",
        kind: "sv-halo",
      }),
    ];
  });
  const margin = bound(balance.without, now, now.at) - now.ratio;
  const short = `All times counted, the run is ${now.gain.toFixed(2)} times as fast with the intermediate model: it ${now.gain > 1 ? "pays off" : "does not pay off"} here.`;
  const summary =
    `A pass of the intermediate model costs ${format.probability(now.ratio)} of a target pass and may cost at most ` +
    `${format.probability(Math.max(0, now.ratio + margin))} by the published condition (the curve). ${short}`;
  const parts = [
    dom.s("path", { d: area, class: "sv-region" }),
    dom.s("path", { d: `M${path.join("L")}`, class: "sv-break-even-curve" }),
    axes(stage, at, balance),
    points,
  ];
  return [svgKit.frame(stage.column, at.floor + 20 * u, summary, parts), svgKit.caption(short), svgKit.more(stage, svgKit.caption(summary))];
}

/** @param {Trace.CascadeNote} note @param {Step} step @param {Stage} stage */
function draw(note, step, stage) {
  const data = read(note);
  if (!data.passes.length) return svgKit.caption("There was no room left for a draft in this step.");
  /** @type {{ key: string, label: string, pass: Data["passes"][0] | null, place: number }[]} */
  const moments = data.passes.map((pass, place) => ({ key: `pass ${place}`, label: `Intermediate pass ${place + 1}`, pass, place }));
  moments.push({ key: "target", label: "Target", pass: null, place: data.passes.length });
  const drawMoment = (moment) =>
    dom.h("div", {}, picture(data, step, stage, moment), svgKit.caption(sentence(data, step, moment)));
  const square = (kind) => box(-6, -6, 12, 12, kind);
  const key = svgKit.key(
    [square("sv-by-drafter"), "drafter's"],
    [square("sv-by-intermediate"), "intermediate model's"],
    [square("sv-not-taken"), "not taken"],
  );
  const balance = balances(note);
  const chart = balance
    ? curve(balance, stage)
    : dom.h("p", { class: "sv-mute" }, "The chain without this model was not measured here, so there is no break-even curve.");
  return dom.h("div", {}, scrubber.make(stage, "cascade", moments, drawMoment), key, chart);
}

noteRegistry.register("cascade", { title: "Cascade", draw });

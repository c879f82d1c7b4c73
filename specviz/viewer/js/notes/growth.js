// @ts-check
// A tree grown by confidence: every drafted token at its path's probability, the beam ringed, and the line of the rerank.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as labels from "../kit/labels.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as scrubber from "../kit/scrubber.js";
import * as svgKit from "../kit/svgKit.js";
import { cross, disc, line, rhombus, text } from "../kit/svgKit.js";
import { FAILED } from "../run/decode.js";

const MOST = 600;

/** @typedef {ReturnType<typeof read>} Data */

/** The note as numbers: a mark per shown node with level and log value, the beams, and where the rerank cuts. @param {Trace.GrowthNote} note @param {Step} step */
function read(note, step) {
  const { value } = note;
  const beams = note.beams.map((beam) => new Set(beam));
  const marks = step.nodes.slice(0, MOST);
  const sent = marks.filter((node) => node.id && node.status !== "pruned");
  const cut = sent.length ? Math.min(...sent.map((node) => value[node.id] || 0)) : 0;
  const levels = Math.max(1, ...marks.map((node) => node.depth));
  const lowest = Math.min(-1, ...marks.map((node) => value[node.id] || 0));
  return { value, beams, marks, sent, cut, levels, lowest, chosen: chosen(note.depth) };
}

/** Why trees are as deep as they are, if no depth was given. */
function chosen(depth) {
  if (!depth) return "";
  const { levels, gain } = depth;
  const most = format.count(levels, "level");
  return gain === null
    ? ` Trees have at most ${most}, the default depth: other depths were not measured with this drafter and beam.`
    : ` Trees have at most ${most}: the fastest depth, given the calibration and the cost of drafter and target passes here; ` +
        `the forecast is ${gain.toFixed(2)}× the target alone.`;
}

/** @param {Data} data @param {Step} step */
function moments(data, step) {
  const events = [];
  for (let level = 1; level <= data.levels; level += 1) {
    events.push({ key: `level ${level}`, label: `Expand, level ${level}`, level });
  }
  events.push({ key: "rerank", label: "Rerank" });
  if (!step.veiled) events.push({ key: "verdict", label: "Verdict" });
  return events;
}

/** @param {Data} data @param {Step} step */
function sentence(data, step, moment) {
  const { beams, marks, sent, levels } = data;
  if (moment.key === "rerank") {
    return (
      `All ${labels.drafted(step)} candidates compete by the probability of their whole path. The best ${step.counts.sent} lie above ` +
      `the line and go to the target; pruned: ${step.counts.cut}${step.more}.${data.chosen}`
    );
  }
  if (moment.key === "verdict") {
    return `The target judged ${format.count(sent.length, "token")} in one pass and kept ${step.counts.kept}, the thick line.`;
  }
  const grown = beams[moment.level - 1] ? beams[moment.level - 1].size : 0;
  const born = marks.filter((node) => node.depth === moment.level).length;
  const from =
    moment.level === 1
      ? "the last committed token"
      : `the ${format.count(grown, "ringed token")} of level ${moment.level - 1}`;
  const next = beams[moment.level] ? beams[moment.level].size : 0;
  const deeper = next && moment.level < levels;
  const on = deeper ? `The best ${next} are ringed: only they are expanded further.` : "The tree ends here.";
  return `The drafter continues ${from}: ${format.count(born, "candidate")} shown. ${on}`;
}

/** Side by side where several lie at one height: each mark's distance from the middle of its level. @param {Data} data @param {(value: number) => number} y @param {number} r @param {number} half */
function sideOffsets(data, y, r, half) {
  const offset = new Map();
  for (let level = 0; level <= data.levels; level += 1) {
    const placed = [];
    const levelNodes = data.marks.filter((node) => node.depth === level);
    for (const node of levelNodes.sort((a, b) => data.value[b.id] - data.value[a.id])) {
      const high = y(data.value[node.id] || 0);
      const near = placed.filter((neighbour) => Math.abs(neighbour.high - high) < 2 * r + 1);
      let at = 0;
      for (let turn = 0; turn < 60 && near.some((neighbour) => Math.abs(neighbour.at - at) < 2 * r + 1); turn += 1) {
        at = (turn % 2 ? -1 : 1) * Math.ceil((turn + 1) / 2) * (r + 0.6);
      }
      at = Math.max(-half, Math.min(half, at));
      placed.push({ high, at });
      offset.set(node.id, at);
    }
  }
  return offset;
}

/** @param {Data} data @param {Stage} stage */
function place(data, stage) {
  const { u } = stage;
  const width = stage.column;
  const left = 44 * u,
    top = 24 * u,
    height = Math.round(Math.min(width * 0.85, Math.max(120 * u, stage.tall - 140 * u)));
  const floor = height - 22 * u;
  const pitch = (width - left) / data.levels;
  const y = (value) => top + (floor - top) * Math.min(1, value / data.lowest);
  const r = (data.marks.length > 90 ? 3 : 4) * u;
  const offset = sideOffsets(data, y, r, pitch / 2 - 2 * r);
  const x = (node) => (node.depth ? left + (node.depth - 0.5) * pitch + offset.get(node.id) : left - 8 * u);
  return { width, height, left, floor, pitch, y, x, r };
}

/** Powers of ten of the path's probability, with as many lines as have room. @param {Data} data @param {Stage} stage */
function scale(data, at, stage) {
  const parts = [];
  const most = Math.floor(-data.lowest / Math.LN10);
  const every = Math.max(1, Math.ceil(most / 6));
  for (let power = 0; power <= most; power += every) {
    const high = at.y(-power * Math.LN10);
    const label = power < 4 ? String(1 / 10 ** power) : `1e-${power}`;
    parts.push(line(at.left - 2, high, at.width, high, "sv-grid"));
    parts.push(text(stage, at.left - 14 * stage.u, high + 4, label, { anchor: "end", kind: "sv-mute" }));
  }
  parts.push(text(stage, 0, 11 * stage.u, "probability of the path", { kind: "sv-mute" }));
  parts.push(text(stage, 0, at.height - 4, "level", { kind: "sv-mute" }));
  for (let level = 1; level <= data.levels; level += 1) {
    const x = at.left + (level - 0.5) * at.pitch;
    parts.push(text(stage, x, at.height - 4, String(level), { anchor: "middle", kind: "sv-mute" }));
  }
  return parts;
}

/** How a mark looks at a moment: hidden, fresh (just drafted), old, kept or out; and whether it is in the beam. @param {Data} data @param {TreeNode} node */
function state(data, node, moment) {
  if (moment.level) return node.depth > moment.level ? null : node.depth === moment.level ? "fresh" : "old";
  return node.status === "pruned" ? "out" : "in";
}

/** @param {Data} data @param {TreeNode} node */
function mark(data, at, node, moment) {
  const how = state(data, node, moment);
  if (!how) return null;
  const { r } = at;
  const x = at.x(node),
    y = at.y(data.value[node.id] || 0);
  const heat = (0.25 + 0.75 * (1 - Math.min(1, (data.value[node.id] || 0) / data.lowest))).toFixed(2);
  const beam = data.beams[node.depth] && data.beams[node.depth].has(node.id) && node.id;
  const parts = [];
  if (moment.key === "verdict" && how === "in") parts.push(verdict(node, x, y, r));
  else if (how === "out") parts.push(rhombus(x, y, r, "sv-pruned-mark"));
  else parts.push(disc(x, y, r, node.id ? "sv-candidate-mark" : "sv-root-mark"));
  parts[0].setAttribute("fill-opacity", how === "out" || moment.key === "verdict" ? "1" : node.id ? heat : "1");
  if (beam && moment.key !== "verdict") parts.push(disc(x, y, r + 2, "sv-beam-ring"));
  return dom.s("g", { class: `sv-candidate sv-${how}`, "data-id": node.id }, parts);
}

/** @param {TreeNode} node @param {number} x @param {number} y */
function verdict(node, x, y, r) {
  if (FAILED.has(node.status)) return cross(x, y, r);
  if (node.status === "accepted" || node.status === "relaxed") return disc(x, y, r + 1.5, "sv-accepted-mark");
  return disc(x, y, r - 0.6, node.id ? "sv-unverified-mark" : "sv-root-mark");
}

/** @param {Data} data @param {Step} step @param {TreeNode} node */
function link(data, at, step, node, moment) {
  const how = state(data, node, moment);
  const up = step.nodes[node.parent];
  if (!how || !up) return null;
  const accepted = moment.key === "verdict" && (node.status === "accepted" || node.status === "relaxed");
  const y = (one) => at.y(data.value[one.id] || 0);
  return line(at.x(up), y(up), at.x(node), y(node), `sv-tree-link sv-${how} ${accepted ? "sv-accepted-line" : ""}`);
}

/** @param {Data} data @param {Step} step @param {Stage} stage */
function picture(data, step, stage, moment) {
  const at = place(data, stage);
  const drafted = data.marks.filter((node) => node.id);
  /** @type {Child[]} */
  const parts = [scale(data, at, stage), drafted.map((node) => link(data, at, step, node, moment))];
  parts.push(data.marks.map((node) => mark(data, at, node, moment)));
  if (moment.key === "rerank" && data.marks.length > data.sent.length + 1) {
    const high = at.y(data.cut) + at.r + 2;
    parts.push(line(at.left - 8, high, at.width, high, "sv-threshold-line"));
    parts.push(text(stage, at.left, high - 5 * stage.u, `the best ${data.sent.length} lie above`, { bold: true, kind: "sv-halo" }));
  }
  const spoken = `${drafted.length} drafted tokens by level and by the probability of their path. ${moment.label}.`;
  const figure = svgKit.frame(at.width, at.height, spoken, parts);
  return svgKit.pickable(figure, stage, (id) => about(data, step.nodes[id]));
}

/** @param {Data} data @param {TreeNode} node */
const about = (data, node) => [
  format.token(node.text, 40),
  `level ${node.depth}, ${labels.of(node.status)}`,
  `q ${format.probability(node.q)} · path ${format.probability(Math.exp(data.value[node.id] || 0))}`,
];

function legend(moment) {
  if (moment.key === "verdict") {
    const quiet = [disc(0, 0, 3, "sv-unverified-mark"), "not verified"];
    return svgKit.key([disc(0, 0, 5, "sv-accepted-mark"), "accepted"], [cross(0, 0, 3.5), "rejected"], quiet);
  }
  const beam = [[disc(0, 0, 3.5, "sv-candidate-mark"), disc(0, 0, 5.5, "sv-beam-ring")], "beam, expanded"];
  const all = [disc(0, 0, 4, "sv-candidate-mark"), "candidate"];
  return moment.level ? svgKit.key(all, beam) : svgKit.key(all, beam, [rhombus(0, 0, 4, "sv-pruned-mark"), "pruned"]);
}

/** @param {Trace.GrowthNote} note @param {Step} step @param {Stage} stage */
function draw(note, step, stage) {
  const data = read(note, step);
  if (data.marks.length < 2) return svgKit.caption("Nothing was drafted in this step, so there is no tree to grow.");
  const events = moments(data, step);
  const drawMoment = (moment) =>
    dom.h(
      "div",
      {},
      picture(data, step, stage, moment),
      legend(moment),
      svgKit.caption(sentence(data, step, moment)),
    );
  return scrubber.make(stage, "growth", events, drawMoment, data.levels);
}

noteRegistry.register("growth", { title: "Expand and rerank", draw });

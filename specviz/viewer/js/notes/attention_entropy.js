// @ts-check
// Where the target's attention is least scattered, layer by layer, and which patches a drafted word was guessed from.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as promptImage from "../kit/promptImage.js";
import * as svgKit from "../kit/svgKit.js";
import { box, text } from "../kit/svgKit.js";
import { noteOf } from "../run/decode.js";

const SHADES = 6;

/** @typedef {ReturnType<typeof read>} Data */

/** @param {Trace.AttentionEntropyNote | undefined} note */
function read(note) {
  const rows = ((note && note.entropy) || []).slice(0, 128).map((row) => row.slice(0, 2000));
  const chosen = (note && note.chosen) || [];
  const middle = (note && note.middle) || [];
  return { rows, chosen, middle, columns: Math.max(0, ...rows.map((row) => row.length)) };
}

/** The tokens from the root's child down to this node. @param {Step} step */
function path(step, id) {
  const tokens = [];
  for (let at = id; at > 0; at = step.nodes[at].parent) tokens.unshift(step.nodes[at].token);
  return tokens;
}

/** The attention from which the chosen node was guessed: that of its parent's row. @param {Trace.AttentionEntropyNote} note @param {Step} step @param {Stage} stage */
function lookOf(note, step, stage) {
  const node = stage.selected;
  const parent = node && node.id !== 0 ? node.parent : 0;
  const prefix = path(step, parent).join(" ");
  const rows = note.looks;
  const own = rows.find((row) => row.tokens.join(" ") === prefix);
  return { row: own || rows[0] || null, word: own && node && node.id !== 0 ? node.text : "" };
}

/** One path for every shade: a rectangle for every cell would be thousands. @param {Data} data @param {number} wide @param {number} high */
function heat(data, left, top, wide, high) {
  const most = Math.max(1e-9, ...data.rows.map((row) => Math.max(0, ...row)));
  const shades = Array.from({ length: SHADES }, () => "");
  data.rows.forEach((row, layer) =>
    row.forEach((value, column) => {
      const shade = Math.min(SHADES - 1, Math.floor((SHADES * value) / most));
      const [x, y] = [left + column * wide, top + (data.rows.length - 1 - layer) * high].map(svgKit.round);
      const [w, h] = [wide, high].map(svgKit.round);
      shades[shade] += `M${x} ${y}h${w}v${h}h${-w}z`;
    }),
  );
  const dark = (shade) => `opacity:${(0.06 + (0.94 * shade) / (SHADES - 1)).toFixed(2)}`;
  return shades.map((d, at) => (d ? dom.s("path", { d, class: "sv-heat-cell", style: dark(at) }) : null));
}

/** @param {Data} data @param {Stage} stage */
function map(data, stage) {
  const { u } = stage;
  const [left, top] = [62 * u, 4];
  const wide = (stage.column - left - 4) / data.columns;
  const many = data.rows.length;
  const high = Math.min(14 * u, Math.max(5, (0.27 * stage.tall) / many));
  const low = top + many * high;
  const quiet = { anchor: "end", kind: "sv-mute" };
  const name = (layer) => text(stage, left - 6 * u, top + (many - layer - 0.5) * high + 4, `layer ${layer}`, quiet);
  const cell = (layer, column, kind) => box(left + column * wide, top + (many - 1 - layer) * high, wide, high, kind, 0);
  const marks = data.chosen.map((layer, column) =>
    layer >= many ? null : cell(layer, column, "sv-chosen-cell"),
  );
  const below = text(stage, left, low + 15 * u, "positions in the prompt", { kind: "sv-mute" });
  const of = `of layers ${data.middle.join(", ")} the most focused is outlined`;
  const spoken = `Entropy of attention in ${many} layers at ${data.columns} positions; ${of}.`;
  const parts = [heat(data, left, top, wide, high), marks, name(0), name(many - 1), below];
  return svgKit.frame(stage.column, low + 20 * u, spoken, parts);
}

/** A bow from the word to the middle of a patch. */
function bow(from, at, weight) {
  const [x, y] = [(from[0] + at[0]) / 2, Math.min(from[1], at[1]) - 12];
  const points = [...from, x, y, ...at].map(svgKit.round);
  const d = `M${points[0]} ${points[1]}Q${points[2]} ${points[3]} ${points[4]} ${points[5]}`;
  return dom.s("path", { d, class: "sv-arc", "stroke-width": svgKit.round(1 + 4 * weight) });
}

/** @param {Stage} stage */
function arcs(picture, look, stage, visible) {
  const { u } = stage;
  const side = Math.min(stage.column * 0.6, Math.max(100, stage.tall * 0.34));
  const [wide, high] = promptImage.fit(picture, side);
  const [x, y] = [stage.column - wide - 2, 2];
  const from = [stage.column - wide - 26 * u, high / 2];
  const rows = look.row ? look.row.at : [];
  const most = Math.max(1e-9, ...rows.map((row) => row[1]));
  const bows = rows.map(([place, weight]) => {
    const at = promptImage.middle(picture, place, x, y, side);
    return at && bow(from, at, Math.max(0, weight) / most);
  });
  const at = new Set(rows.map((row) => row[0]));
  const kind = (place) =>
    `sv-patch ${visible.has(place) ? "" : "sv-greyed"} ${at.has(place) ? "sv-attended" : ""}`.trimEnd();
  const label = format.token(look.word, 12);
  const word = text(stage, from[0] - 6 * u, from[1] + 4, look.word ? label : "next", {
    anchor: "end",
    bold: true,
    kind: "sv-word",
  });
  const parts = [promptImage.draw(picture, x, y, side, kind), bows, svgKit.disc(from[0], from[1], 3, "sv-root-mark"), word];
  return svgKit.frame(stage.column, high + 4, sentence(look), parts);
}

function sentence(look) {
  if (!look.row) return "Nothing was drafted in this step.";
  const share = Math.round(100 * look.row.picture);
  const what = look.word ? `When the drafter guessed ${format.quote(look.word)}` : "At the first word of this step";
  return `${what}, ${share} % of its attention went to the picture.`;
}

/** @param {Trace.AttentionEntropyNote} note @param {Step} step @param {Stage} stage */
function draw(note, step, stage) {
  const data = read(promptImage.first(stage, "attention_entropy"));
  const picture = promptImage.of(stage);
  const look = lookOf(note, step, stage);
  const visualNote = noteOf(step, "visual_tokens");
  const visible = new Set(promptImage.places(visualNote ? visualNote.kept : []));
  const layers = data.middle.join(", ");
  const legend = `Target: dark means scattered. The most focused of layers ${layers} is outlined; the drafter learned from it.`;
  return dom.h(
    "div",
    {},
    picture ? arcs(picture, look, stage, visible) : null,
    svgKit.caption(sentence(look)),
    data.columns ? [map(data, stage), dom.h("p", { class: "sv-mute" }, legend)] : null,
  );
}

noteRegistry.register("attention_entropy", { title: "Attention entropy", draw });

// @ts-check
// What target and drafter are shown of a prompt with a picture: the picture twice, covered where the drafter gets no patch.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as promptImage from "../kit/promptImage.js";
import * as svgKit from "../kit/svgKit.js";
import { box, text } from "../kit/svgKit.js";

const MOST = 600;

/** @typedef {ReturnType<typeof read>} Data */

/** @param {Trace.VisualTokensNote} note */
function read(note) {
  const [visual, kept, unseen] = [note.visual, note.kept, note.unseen].map((spans) => new Set(promptImage.places(spans)));
  return { target: Math.max(0, note.target), drafter: Math.max(0, note.drafter), visual, kept, unseen };
}

/** Long rows of patches are cut in the middle, in both strips alike. @param {Data} data */
function shownPlaces(data) {
  const all = Array.from({ length: Math.min(data.target, 20000) }, (_, place) => place);
  if (all.length <= MOST) return all;
  const spare = new Set([...data.visual].slice(24, -24));
  return all.filter((place) => !spare.has(place)).slice(0, MOST);
}

/** @param {Data} data */
function cell(data, place, pieces, drafter) {
  const visual = data.visual.has(place);
  const hidden = drafter && (visual ? !data.kept.has(place) : data.unseen.has(place));
  const kind = `${visual ? "sv-patch-cell" : "sv-word-cell"} ${hidden ? "sv-hidden-cell" : ""}`;
  const word = visual ? "" : format.token(pieces[place] || "", 14);
  return dom.h("span", { class: kind, title: visual ? "a patch of the picture" : null }, word);
}

/** @param {Data} data @param {string} name */
function strip(data, name, count, pieces, drafter) {
  const cells = shownPlaces(data).map((place) => cell(data, place, pieces, drafter));
  const spoken = `${name}: ${format.count(count, "token")}`;
  const head = dom.h("p", { class: "sv-explanation" }, dom.h("b", {}, name), ` reads ${format.count(count, "token")} before it starts`);
  return dom.h("div", {}, head, dom.h("div", { class: "sv-cells", role: "img", "aria-label": spoken }, cells));
}

/** @param {Data} data */
function sentence(data) {
  const gone = data.visual.size - data.kept.size;
  const share = data.target ? Math.round((100 * data.drafter) / data.target) : 0;
  if (!gone) return `The drafter is shown all ${format.count(data.visual.size, "patch", "patches")} of the picture.`;
  const all = data.kept.size ? `${gone} of ${data.visual.size} patches` : `all ${data.visual.size} patches`;
  return `Hidden from the drafter: ${all}. Its prefill is ${share} % of the target's.`;
}

/** The picture as each of the two sees it, and below it the length of the prompt that it reads. @param {Data} data @param {Stage} stage */
function pictures(data, picture, stage) {
  const { u } = stage;
  const wide = (stage.column - 14 * u) / 2;
  const shape = picture ? promptImage.fit(picture, 1) : [1, 0];
  const side = Math.max(90, Math.min(wide / shape[0], (stage.tall - 150 * u) / (shape[1] || 1)));
  const high = side * shape[1];
  const most = Math.max(1, data.target, data.drafter);
  const half = (at, name, count, look) => {
    const x = at * (wide + 14 * u);
    const bar = high + 30 * u;
    return [
      text(stage, x, 13 * u, name, { bold: true, size: 13 }),
      picture ? promptImage.draw(picture, x + 1, 20 * u, side, look) : null,
      text(stage, x, bar + 6 * u, `prompt: ${format.count(count, "token")}`, { bold: true }),
      box(x, bar + 12 * u, wide, 9 * u, "sv-tank-wall"),
      box(x, bar + 12 * u, Math.max(1, (wide * count) / most), 9 * u, "sv-heat-cell"),
    ];
  };
  const parts = [
    half(0, "Target sees", data.target, () => "sv-patch"),
    half(1, "Drafter sees", data.drafter, (place) => (data.kept.has(place) ? "sv-patch" : "sv-patch sv-greyed")),
  ];
  return svgKit.frame(stage.column, high + 54 * u, sentence(data), parts);
}

/** @param {Trace.VisualTokensNote} note @param {Step} step @param {Stage} stage */
function draw(note, step, stage) {
  const data = read(note);
  const pieces = stage.trace.run ? stage.trace.run.prompt_pieces : [];
  const picture = promptImage.of(stage);
  const strips = [strip(data, "Target", data.target, pieces, false), strip(data, "Drafter", data.drafter, pieces, true)];
  return dom.h("div", {}, pictures(data, picture, stage), svgKit.caption(sentence(data)), svgKit.more(stage, strips));
}

noteRegistry.register("visual_tokens", { title: "Visual tokens", draw });

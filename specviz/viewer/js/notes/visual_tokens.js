// What target and drafter read of a prompt with a picture: two strips, one above the other, place under place.
import * as coerce from "../kit/coerce.js";
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as promptImage from "../kit/promptImage.js";
import * as svgKit from "../kit/svgKit.js";

const MOST = 600;

function read(note) {
  const set = (name) => new Set(promptImage.places(note[name]));
  const [visual, kept, unseen] = ["visual", "kept", "unseen"].map(set);
  const target = Math.max(0, coerce.number(note.target) || 0);
  return { target, drafter: Math.max(0, coerce.number(note.drafter) || 0), visual, kept, unseen };
}

/** Long rows of patches are cut in the middle, in both strips alike. */
function shownPlaces(data) {
  const all = Array.from({ length: Math.min(data.target, 20000) }, (_, place) => place);
  if (all.length <= MOST) return all;
  const spare = new Set([...data.visual].slice(24, -24));
  return all.filter((place) => !spare.has(place)).slice(0, MOST);
}

function cell(data, place, pieces, drafter) {
  const visual = data.visual.has(place);
  const hidden = drafter && (visual ? !data.kept.has(place) : data.unseen.has(place));
  const kind = `${visual ? "sv-patch-cell" : "sv-word-cell"} ${hidden ? "sv-hidden-cell" : ""}`;
  const word = visual ? "" : format.token(pieces[place] || "", 14);
  return dom.h("span", { class: kind, title: visual ? "a patch of the picture" : null }, word);
}

function strip(data, name, count, pieces, drafter) {
  const cells = shownPlaces(data).map((place) => cell(data, place, pieces, drafter));
  const spoken = `${name}: ${format.count(count, "token")}`;
  const head = dom.h("p", { class: "sv-explanation" }, dom.h("b", {}, name), ` reads ${format.count(count, "token")} before it starts`);
  return dom.h("div", {}, head, dom.h("div", { class: "sv-cells", role: "img", "aria-label": spoken }, cells));
}

function sentence(data) {
  const gone = data.visual.size - data.kept.size;
  const share = data.target ? Math.round((100 * data.drafter) / data.target) : 0;
  if (!gone) return `The drafter is shown all ${format.count(data.visual.size, "patch", "patches")} of the picture.`;
  const all = data.kept.size ? `${gone} of ${data.visual.size} patches` : `all ${data.visual.size} patches`;
  return `Hidden from the drafter: ${all}. Its prefill is ${share} % of the target's.`;
}

function draw(note, step, stage) {
  const data = read(note);
  const pieces = coerce.list(stage.trace && stage.trace.run && stage.trace.run.prompt_pieces).map(coerce.text);
  const picture = promptImage.of(stage);
  const side = Math.min(stage.column * 0.5, 190 * stage.u);
  const look = (place) => (data.kept.has(place) ? "sv-patch" : "sv-patch sv-greyed");
  const patches = picture && promptImage.draw(picture, 1, 1, side, look);
  const figure = picture && svgKit.frame(side + 2, promptImage.fit(picture, side)[1] + 2, sentence(data), patches);
  return dom.h(
    "div",
    { class: "sv-visual-note" },
    svgKit.caption(sentence(data)),
    strip(data, "Target", data.target, pieces, false),
    strip(data, "Drafter", data.drafter, pieces, true),
    figure ? dom.h("p", { class: "sv-mute" }, "What the drafter is shown of the picture") : null,
    figure,
  );
}

noteRegistry.register("visual_tokens", { title: "Visual tokens: target vs drafter", roomy: true, draw });

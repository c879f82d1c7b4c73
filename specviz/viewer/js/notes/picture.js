// @ts-check
// The picture a run is about, as the model saw it, cut into the patches that became tokens.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as promptImage from "../kit/promptImage.js";
import * as svgKit from "../kit/svgKit.js";

const lost = () => svgKit.caption("The picture that came with this run cannot be drawn.");

/** @param {Trace.PictureNote} note @param {Step} step @param {Stage} stage */
function draw(note, step, stage) {
  const picture = promptImage.of(stage);
  if (!picture) return lost();
  const many = picture.at.size;
  const cut = picture.rows ? `${picture.rows} × ${picture.columns} patches` : "several tiles of patches";
  const once = note.encoding_ns ? ` Encoding it took ${format.time(note.encoding_ns)}, once for every method.` : "";
  const summary = `The picture as the model sees it: ${cut}. They are ${many} of the prompt's ${picture.prompt} tokens.${once}`;
  const side = Math.min(stage.column - 4, Math.max(150, stage.tall - 90));
  const [wide, high] = promptImage.fit(picture, side);
  const figure = promptImage.draw(picture, 1, 1, side, () => "sv-patch");
  return dom.h("div", {}, svgKit.frame(wide + 2, high + 2, summary, figure), svgKit.caption(summary));
}

noteRegistry.register("picture", { title: "Picture", draw });

// @ts-check
// The rows of the picture that a step changed, as the decoder draws them now.
import * as dom from "../kit/dom.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as svgKit from "../kit/svgKit.js";

/** @param {Trace.CanvasNote} note @param {Step} step @param {Stage} stage */
function draw(note, step, stage) {
  const rows = `Rows ${note.row + 1} to ${note.row + note.rows}`;
  const image = dom.h("img", {
    class: "sv-band",
    alt: `${rows} of the picture`,
    src: /^[A-Za-z0-9+/=]+$/.test(note.png) ? `data:image/png;base64,${note.png}` : "",
  });
  image.style.width = `${stage.column}px`;
  const summary = `${rows} after this step, ${note.codes} codes drawn so far.`;
  return dom.h("div", {}, image, svgKit.caption(summary));
}

noteRegistry.register("canvas", { title: "Decoded rows", draw });

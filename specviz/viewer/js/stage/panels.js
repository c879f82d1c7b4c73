// @ts-check
// Every panel of the stage, in the order in which they are drawn and read.
import * as dom from "../kit/dom.js";
import { Overview } from "../run/overview.js";
import { Tree } from "../tree/tree.js";
import { Flight } from "./flight.js";
import { Header } from "./header.js";
import { Inspector } from "./inspector.js";
import { Picture } from "./picture.js";
import { Projector } from "./projector.js";
import { Strip } from "./strip.js";
import { Transport } from "./transport.js";

/** @param {Stage} stage */
export function buildPanels(stage) {
  const header = new Header(stage);
  const strip = new Strip(stage);
  const picture = new Picture(stage);
  const tree = new Tree(stage);
  const inspector = new Inspector(stage);
  const overview = new Overview(stage);
  stage.root.append(picture.card, dom.h("div", { class: "sv-workspace" }, tree.card, inspector.card), overview.card);
  return [header, strip, picture, tree, inspector, overview, new Transport(stage), new Flight(stage, strip, tree), new Projector(stage)];
}

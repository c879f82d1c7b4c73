// @ts-check
// The Methods tab: its views and what they ask of the page. SpecvizViewer.field(element, page, props, watch, trigger) fills it.
import * as dom from "../kit/dom.js";
import { clock } from "./clock.js";
import { CSS } from "./style.js";

const ROOMS = ["#sp-stage", "#sp-see-stage", "#sp-image-stage"];

/** @param {HTMLElement} host @param {any} page @param {{ value: string }} props @param {(name: string, then: () => void) => void} watch @param {(name: string, data?: object) => void} trigger */
function field(host, page, props, watch, trigger) {
  if (!document.getElementById("specviz-field-style")) document.head.append(dom.h("style", { id: "specviz-field-style" }, CSS));

  /** Open a run on the stage of its tab, at a step. @param {string} name */
  function open(name, step = -1) {
    trigger("select", { name });
    if (step < 0) return;
    const there = () => {
      const stage = ROOMS.map(page.stage).find((one) => one && [one.feed.name, `mine:${one.feed.name}`].includes(name) && one.last >= step);
      if (!stage) return;
      document.removeEventListener("specviz:run", there);
      setTimeout(() => stage.go(step), 60);
    };
    document.addEventListener("specviz:run", there);
    setTimeout(there, 500);
  }

  const view = clock({
    open,
    race: (prompt, methods) => trigger("submit", { prompt, methods }),
    halt: () => trigger("stop"),
    lines: page.lines,
  });
  const root = dom.h("section", { class: "specviz svf", tabindex: "-1", "aria-label": "Methods" }, view.element);
  root.film = view.film;
  (host.firstElementChild || host).replaceChildren(root);
  const update = () => props.value && view.take(JSON.parse(props.value));
  watch("value", update);
  update();
}

Object.assign(globalThis.SpecvizViewer || {}, { field });

// @ts-check
// The Methods tab: its views and what they ask of the page. SpecvizViewer.field(element, page, props, watch, trigger) fills it.
import * as dom from "../kit/dom.js";
import { clock } from "./clock.js";
import { papers } from "./papers.js";
import { relaxed } from "./relaxed.js";
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

  const asked = {
    open,
    race: (prompt, methods) => trigger("submit", { prompt, methods }),
    halt: () => trigger("stop"),
    lines: page.lines,
  };
  const [lanes, map, sweep] = [clock(asked), papers(asked), relaxed()];
  const root = dom.h("section", { class: "specviz svf", tabindex: "-1", "aria-label": "Methods" });
  const views = { clock: lanes.element, papers: map.element, relaxed: sweep.element };
  const tabs = Object.entries({ papers: "Papers", clock: "One clock", relaxed: "Exact and relaxed" }).map(([name, title]) => dom.button(title, "", () => show(name), { "data-view": name }));
  const nav = dom.h("nav", { class: "svf-nav", "aria-label": "Views" }, tabs);

  function show(name, write = true) {
    const element = name ? views[name] || views.clock : views.papers;
    element.querySelector("header").prepend(nav);
    root.replaceChildren(element);
    root.film = () => (element === lanes.element ? lanes.film() : null);
    for (const tab of tabs) tab.setAttribute("aria-current", String(views[String(tab.dataset.view)] === element));
    if (!write) return;
    const url = new URL(location.href);
    url.searchParams.set("methods", name);
    history.replaceState(history.state, "", url.href);
    tabs.find((tab) => tab.dataset.view === name)?.focus();
  }

  (host.firstElementChild || host).replaceChildren(root);
  show(new URL(location.href).searchParams.get("methods") || "", false);
  // A link to the map, as in About and in the story.
  document.addEventListener("click", (event) => {
    if (dom.closest(event, 'a[href$="methods=papers"]')) show("papers", false);
  });
  const update = () => {
    if (!props.value) return;
    const value = JSON.parse(props.value);
    lanes.take(value);
    if (!value.papers) return;
    sweep.take(value.relaxed);
    if (value.linked.length) lanes.take({ ...value, lanes: value.linked, prompt: value.linked[0].prompt });
    map.take(value.papers, new Map(value.lanes.map(({ method, speedup }) => [method, speedup ? `${speedup.toFixed(2)}×` : ""])));
  };
  watch("value", update);
  update();
}

Object.assign(globalThis.SpecvizViewer || {}, { field });

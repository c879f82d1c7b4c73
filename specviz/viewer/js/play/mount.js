// @ts-check
// The playground: its levels, the address of each, and their first opening. SpecvizViewer.play(element) puts it into the page,
// SpecvizViewer.play(element, level) one level of it into a lesson.
import * as dom from "../kit/dom.js";
import { CSS } from "./measured.js";
import { chain } from "./chain.js";
import { laboratory } from "./laboratory.js";
import { measuredHere } from "./machines.js";
import { lookAlikes, oneToken } from "./one.js";
import { tree } from "./tree.js";
import { SHADES, WORDS, makeWorld } from "./world.js";

/** @typedef {import("./world.js").World} World */
/** Name in the address, title, what it begins with, and how it is made. @type {[string, string, typeof WORDS, (world: World) => import("./world.js").Level][]} */
export const LEVELS = [
  ["one", "One token", WORDS, oneToken],
  ["chain", "A chain", WORDS, chain],
  ["tree", "A tree", WORDS, tree],
  ["look-alikes", "Look-alikes", SHADES, lookAlikes],
  ["cost", "What it costs", WORDS, laboratory],
];

/** @param {HTMLElement} host @param {any} [only] the name of the only level, which then leaves the address alone */
function play(host, only) {
  if (!document.getElementById("specviz-play-style")) document.head.append(dom.h("style", { id: "specviz-play-style" }, CSS));
  /** @type {Record<string, import("./world.js").Level>} */
  const levels = {};
  let open = "";
  /** p or q have changed: bar by bar, or as a `whole`, which gives up a task unless it began that way. */
  const changed = (whole = false, begun = false) => {
    const level = levels[open];
    if (!level) return;
    if (whole && !begun) level.quest.drop();
    level.reset();
    level.show();
    if (whole && level.fit) level.fit();
    for (const { heard, preset } of worlds.values()) for (const press of heard) press(preset);
  };
  const worlds = new Map([WORDS, SHADES].map((from) => [from, makeWorld(changed, from)]));
  const inLesson = typeof only === "string";
  const room = dom.h("div", { class: "svp-room" });
  const tabs = LEVELS.map(([name, title]) => dom.button(title, "", () => show(name), { "data-level": name }));
  const nav = dom.h("nav", { class: "svp-nav", "aria-label": "Levels" }, tabs);
  const root = dom.h("section", { class: "specviz svp", tabindex: "-1", "aria-label": "Playground" }, inLesson ? null : nav, room);

  function show(name, write = true) {
    const found = LEVELS.find(([other]) => other === name) || LEVELS[0];
    levels[open]?.quest.drop();
    for (const world of worlds.values()) world.free();
    open = found[0];
    const level = (levels[open] = levels[open] || found[3](/** @type {World} */ (worlds.get(found[2]))));
    room.replaceChildren(level.element);
    for (const tab of tabs) {
      tab.setAttribute("aria-current", String(tab.dataset.level === open));
      if (tab.dataset.level === open) nav.scrollLeft = tab.offsetLeft - 60;
    }
    changed(true);
    if (!write) return;
    const url = new URL(location.href);
    url.searchParams.set("play", open);
    history.replaceState(history.state, "", url.href);
  }

  host.replaceChildren(root);
  // Since this tab was last seen, runs may have come to the page, and the machine may have timed passes.
  new IntersectionObserver(async ([seen]) => {
    if (!seen.isIntersecting) return;
    levels[open].show();
    measuredHere(await window.specvizPage.costs());
    levels[open].show();
  }).observe(host);
  show(inLesson ? only : new URL(location.href).searchParams.get("play") || "", false);
  if (inLesson) return;
  // A link to a level anywhere on the page but in a lesson, which opens it in place.
  document.addEventListener("click", (event) => {
    const link = dom.closest(event, 'a[href*="play="]');
    if (link) show(new URL(String(link.getAttribute("href")), location.href).searchParams.get("play") || "");
  });
}

Object.assign(globalThis.SpecvizViewer || {}, { play });

// @ts-check
// The story: chapters to scroll, beside one figure that follows them. SpecvizViewer.story(element) puts it into the page.
import * as dom from "../kit/dom.js";
import { Stage } from "../stage/stage.js";
import { chapters } from "./chapters.js";
import { figures } from "./figures.js";
import { STEP, ofRound, ofRun } from "./numbers.js";
import { CSS, NOTE, RUN, WEIGHTS } from "./recorded.js";

const AHEAD = [" ", "PageDown", "ArrowRight"];
const BACK = ["PageUp", "ArrowLeft"];

/** The chapter that an address names, from 0; else -1. @param {string} href */
const named = (href) => Number(new URL(href, location.href).searchParams.get("story")) - 1;

/** @param {HTMLElement} host */
function story(host) {
  if (!document.getElementById("specviz-story-style")) document.head.append(dom.h("style", { id: "specviz-story-style" }, CSS));
  const room = dom.h("div", { class: "sst-stage" });
  const stage = new Stage(room, { autoplay: false });
  stage.feed.accept(RUN);
  // The text tells what the figure shows, so the figure's own announcements stay silent.
  for (const one of room.querySelectorAll("[role=status]")) one.setAttribute("aria-live", "off");
  const { trace } = stage;
  const facts = { ...ofRun(trace, WEIGHTS), ...ofRound(trace), prompt: trace.run ? trace.run.prompt : "", note: NOTE };
  const [told, drawn] = [chapters(facts), figures(stage, room, facts)];

  let [at, frame, done, writing] = [-1, 0, 1, 0];
  const plate = dom.h("div", { class: "sst-plate" }, [...new Set(Object.values(drawn).map(({ element }) => element))]);
  const caption = dom.h("figcaption");
  const again = dom.button("", "", () => (done < 1 ? move(1) : play()));
  const figure = dom.h("figure", { class: "sst-figure" }, plate, dom.h("div", { class: "sst-under" }, caption, again));
  const links = told.map(({ title }, place) => dom.h("a", { href: `?tab=story&story=${place + 1}`, title }, dom.h("b", {}, String(place + 1)), dom.h("span", {}, title)));
  const parts = told.map(({ title, says }, place) => dom.h("section", { "data-chapter": place + 1 }, dom.h("h3", { tabindex: "-1" }, title), says.map((paragraph) => dom.h("p", {}, paragraph))));
  const machine = trace.run ? trace.run.machine : "";
  const head = dom.h("header", {}, dom.h("h2", {}, "How one pass writes several tokens"), dom.h("p", {}, `A story of five minutes. Every time and every token in it is from one recorded run of SmolLM2 135M on a small machine: ${machine}.`),
    dom.h("p", { class: "sst-hint" }, "Scroll, or press ", dom.h("kbd", {}, "Space"), "."));
  const nav = dom.h("nav", { class: "sst-nav", "aria-label": "Chapters" }, links);
  const root = dom.h("div", { class: "specviz sst", tabindex: "-1" }, nav, dom.h("article", { class: "sst-text" }, head, parts), figure);

  const now = () => drawn[told[at].figure];
  function move(to) {
    cancelAnimationFrame(frame);
    done = to;
    now().draw(to);
    dom.say(again, to < 1 ? "Skip" : "Again");
  }

  /** Let the figure move, or show its end where less motion is asked for. */
  function play() {
    const { lasts } = now();
    move(dom.calm() || !lasts ? 1 : 0);
    let before = 0;
    const tick = (time) => {
      // A tab that was hidden goes on where it stopped.
      if (before) move(Math.min(1, done + Math.min(time - before, 100) / lasts));
      before = time;
      if (done < 1) frame = requestAnimationFrame(tick);
    };
    if (done < 1) frame = requestAnimationFrame(tick);
  }

  /** Make a chapter the current one; its figure follows, and soon the address. @param {number} next */
  function enter(next) {
    if (next === at) return;
    const before = at < 0 ? "" : told[at].figure;
    at = next;
    links.forEach((one, place) => one.setAttribute("aria-current", place === at ? "step" : "false"));
    nav.scrollLeft = links[at].offsetLeft - 40;
    writeSoon();
    if (before === told[at].figure) return;
    const { element, caption: said, lasts } = now();
    for (const one of plate.children) one.toggleAttribute("hidden", one !== element);
    figure.dataset.figure = told[at].figure;
    dom.say(caption, said);
    again.hidden = !lasts || dom.calm();
    if (element === room) stage.measure();
    play();
  }

  function writeSoon() {
    clearTimeout(writing);
    writing = setTimeout(write, 300);
  }

  function write() {
    if (!root.getClientRects().length) return;
    const url = new URL(location.href);
    url.searchParams.set("story", String(at + 1));
    history.replaceState(history.state, "", url.href);
  }

  /** The last chapter whose beginning has passed the line where one reads. */
  function follow() {
    if (at < 0 || !root.getClientRects().length) return;
    const box = figure.getBoundingClientRect();
    const top = box.width > 0.9 * innerWidth ? box.bottom : 0;
    const line = top + 0.5 * (window.innerHeight - top);
    const end = document.documentElement.scrollHeight - window.innerHeight - window.scrollY < 4;
    enter(end ? parts.length - 1 : Math.max(0, parts.filter((part) => part.getBoundingClientRect().top <= line).length - 1));
  }

  /** Scroll to a chapter. @param {number} place @param {boolean} [focus] */
  function go(place, focus = false) {
    const part = parts[Math.min(Math.max(place, 0), parts.length - 1)];
    part.scrollIntoView({ behavior: dom.calm() || !focus ? "auto" : "smooth", block: "start" });
    if (focus) /** @type {HTMLElement} */ (part.firstChild).focus({ preventScroll: true });
  }

  document.addEventListener("scroll", () => requestAnimationFrame(follow), { passive: true, capture: true });
  document.addEventListener("keydown", (event) => {
    const taken = dom.closest(event, "a, button, input, select, textarea, [role=tab], .sst-figure");
    if (!root.getClientRects().length || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || (taken && !nav.contains(taken))) return;
    const by = AHEAD.includes(event.key) ? (event.key === " " && event.shiftKey ? -1 : 1) : BACK.includes(event.key) ? -1 : 0;
    if (!by || (at + by < 0 && by < 0) || at + by >= parts.length) return;
    event.preventDefault();
    go(at + by, true);
  });
  // A link to a chapter anywhere on the page; and the door to one's own prompt.
  document.addEventListener("click", (event) => {
    const link = dom.closest(event, 'a[href*="story="], a[data-own]');
    if (!link) return;
    if (link.dataset.own === undefined) setTimeout(() => go(named(String(link.getAttribute("href"))), true));
    else setTimeout(() => /** @type {HTMLElement | null} */ (document.querySelector("#sp-prompt textarea"))?.focus(), 200);
  });
  // Coming back to the tab continues where one was.
  new IntersectionObserver(([seen]) => {
    if (!seen.isIntersecting) return;
    const place = at >= 0 ? at : Math.min(Math.max(0, named(location.href) || 0), parts.length - 1);
    if (place) go(place);
    enter(place);
    writeSoon();
    // Whoever came by mouse can go on by key; whoever goes through the tabs by key stays there.
    if (!document.activeElement?.matches(":focus-visible")) root.focus({ preventScroll: true });
  }).observe(nav);

  stage.show(STEP);
  host.replaceChildren(root);
}

Object.assign(globalThis.SpecvizViewer || {}, { story });

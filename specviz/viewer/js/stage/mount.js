// @ts-check
// The entry points: SpecvizViewer.mount(element, options), and attach() for the Gradio component.
import * as dom from "../kit/dom.js";
import { CSS } from "../generated.js";
import { align } from "../run/alignment.js";
import { Race } from "../run/race.js";
import { Stage } from "./stage.js";

/** Put the stylesheet into the page once, before the first stage appears. */
function addStyle() {
  if (document.getElementById("specviz-style")) return;
  document.head.append(dom.h("style", { id: "specviz-style" }, CSS));
}

/**
 * Draw a run in `host`. Options: text, mode, autoplay, speed, tail(run, from, take, over) for the lines of a followed run.
 * Returns a handle whose update(text) takes another text.
 */
function mount(host, options = {}) {
  addStyle();
  const stage = new Stage(host, options);
  const update = (text) => stage.feed.accept(text);
  if (options.text) update(options.text);
  stage.flush();
  return {
    update,
    stage,
    go: (step, node) => stage.go(step, node ?? null),
    pick: (node) => stage.pick(node),
    play: () => stage.player.play(),
    pause: () => stage.player.pause(),
    flush: () => stage.flush(),
    destroy: () => stage.destroy(),
  };
}

/** The page's own function for a run's lines, as soon as the page has it. */
/** @param {string} path @returns {Tail} */
function tailOf(path) {
  return (run, from, take, over) => {
    /** @type {(() => void) | null} */
    let leave = null;
    let later = 0;
    const start = () => {
      if (globalThis.specvizTail) leave = globalThis.specvizTail(path, run, from, take, over);
      else later = setTimeout(start, 100);
    };
    start();
    return () => (leave ? leave() : clearTimeout(later));
  };
}

/** The Gradio side: `props.value` is the text, and the host's `data-tail` the path of a followed run's lines. @param {HTMLElement} element */
function attach(element, props, watch) {
  const host = /** @type {HTMLElement} */ (element.querySelector(".specviz-host") || element);
  const { tail, autoplay } = host.dataset;
  const handle = mount(host, { text: props.value || "", autoplay: autoplay !== "false", tail: tail ? tailOf(tail) : null });
  watch("value", () => handle.update(props.value || ""));
  host.specviz = handle;
  return handle;
}

/** A race between the runs that stages show, and their baselines. `host` names their components in data-stages. */
function race(host) {
  addStyle();
  return new Race(host);
}

globalThis.SpecvizViewer = { mount, attach, race, align };

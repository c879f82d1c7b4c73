// The way in: SpecvizViewer.mount(element, options), and attach() for the Gradio component.
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
 * Draw a run in `host`. Options: text (trace lines so far), mode, autoplay, speed, fetchRange(run, first, last) for lines
 * that were missed, tail(run, from, take) for lines as they are written. Returns a handle whose update(text) takes the text as it has grown since.
 */
function mount(host, options = {}) {
  addStyle();
  const stage = new Stage(host, options);
  stage.feed.tail = options.tail || null;
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

/**
 * The Gradio side: `props.value` is the text; `server.get_range` brings lines that a rotated segment no longer holds, and
 * the page's own `specvizTail` those of a live run as they are written, if it has one.
 */
function attach(element, props, server, watch) {
  const host = element.querySelector(".specviz-host") || element;
  const fetchRange = server && server.get_range ? (run, first, last) => server.get_range([run, first, last]) : null;
  const tail = props.tail ? (...request) => globalThis.specvizTail && globalThis.specvizTail(props.tail, ...request) : null;
  const handle = mount(host, { text: props.value || "", autoplay: props.autoplay !== false, fetchRange, tail });
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

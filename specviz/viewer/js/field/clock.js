// @ts-check
// All methods on one clock: a lane for each run, to sort, search, zoom and race; two of them open their trees side by side.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import { palette } from "../run/lanes.js";
import { comfortable } from "../run/race.js";
import { baseline, draw, moved, ordered, prepare, promise, stepAt, zoomed } from "./lanes.js";
import { pair } from "./pair.js";
import { cite } from "./papers.js";

/** @typedef {import("./lanes.js").Lane} Lane */
/** @typedef {{ lanes: import("./lanes.js").Run[], papers: import("./papers.js").Method[], prompt: string, note: string, running: string, place: string }} Value */
/** What the tab does for its views: open a run at a step, start and stop a live race, and read a run's lines. @typedef {{ open: (name: string, step?: number) => void, race: (prompt: string, methods: string[]) => void, halt: () => void, lines: (name: string) => Promise<string> }} Field */

const MOST_LIVE = 20;

/** @param {Field} field */
export function clock(field) {
  /** @type {Lane[]} */
  let lanes = [];
  /** @type {Lane | null} */
  let plain = null;
  /** @type {Record<string, Value>} */
  const values = {};
  /** @type {string[]} */
  let chosen = String(new URL(location.href).searchParams.get("trees")).split(",", 2);
  /** @type {Map<string, import("./papers.js").Method>} */
  let cited = new Map();
  /** @type {{ lane: Lane, canvas: HTMLCanvasElement, tick: HTMLInputElement | null }[]} */
  let rows = [];
  let [source, running, whole, now, frame, before] = ["recorded", "", 1, 1, 0, 0];
  let view = { from: 0, span: 1 };
  /** @type {Record<string, string>} */
  let paint = {};

  const choice = (label, options) => dom.h("select", { class: "svf-box", "aria-label": label }, Object.entries(options).map(([value, name]) => dom.h("option", { value }, name)));
  const title = dom.h("h2", {});
  const sort = choice("Order of the lanes", { time: "fastest first", tau: "most tokens a pass first", method: "by name" });
  const from = choice("Runs", { recorded: "recorded runs", live: "live runs" });
  const search = /** @type {HTMLInputElement} */ (dom.h("input", { class: "svf-box", type: "search", placeholder: "Search methods", "aria-label": "Search methods" }));
  const go = dom.button("Race", "Play the lanes at a pace to watch", () => (frame ? halt() : start()), { class: "svf-box svf-primary" });
  const zoom = (by) => () => look(by ? zoomed(view, by, middle(), whole) : { from: 0, span: whole });
  const tools = dom.h(
    "div", { class: "svf-tools" }, go, from, sort, search,
    dom.h("span", { class: "svf-key" }, dom.h("i"), "drafted and kept", dom.h("i"), "the target's own"),
    dom.h("span", { class: "svf-zoom", role: "group", "aria-label": "Zoom" }, dom.button("−", "Show more time", zoom(0.5), { class: "svf-box", "aria-label": "Zoom out" }), dom.button("Whole", "Show the whole clock", zoom(0), { class: "svf-box" }), dom.button("+", "Show less time, wider; or Ctrl and wheel", zoom(2), { class: "svf-box", "aria-label": "Zoom in" })),
  );
  const list = dom.h("ol", { class: "svf-lanes", "aria-label": "Lanes" });
  const time = /** @type {HTMLInputElement} */ (dom.h("input", { type: "range", min: 0, max: 1000, step: "any", "aria-label": "Time" }));
  const said = dom.h("output", {});
  const prompt = /** @type {HTMLInputElement} */ (dom.h("input", { class: "svf-box", "aria-label": "Prompt", maxlength: 2000 }));
  const live = /** @type {HTMLButtonElement} */ (dom.h("button", { class: "svf-box", type: "submit" }));
  const form = dom.h("form", { class: "svf-live" }, dom.h("span", {}, "Prompt"), prompt, live);
  const note = dom.h("p", { class: "svf-note", role: "status" });
  const trees = pair(field, () => choose([]));
  const element = dom.h("div", { class: "svf-clock" }, dom.h("header", {}, title, form, tools, note), list, dom.h("label", { class: "svf-time" }, dom.h("span", {}, "Time"), time, said), trees.element);

  /** The time that stays in its place: the clock's, or before and after a race the first in sight. */
  const middle = () => (now < whole && now >= view.from && now <= view.from + view.span ? now : view.from);
  const seen = () => ordered(lanes, sort.value, search.value);

  /** @param {import("./lanes.js").View} next */
  function look(next) {
    view = next;
    render();
  }

  /** The race of the lanes in sight as a film. @returns {import("../share/race.js").Film | null} */
  function film() {
    if (!rows.length) return null;
    const [left, width, tall] = [330, 1200, 28];
    const canvas = document.createElement("canvas");
    Object.assign(canvas, { width, height: 2 * Math.ceil((62 + tall * rows.length) / 2) });
    const [own, most] = [dom.pen(canvas), Math.max(...rows.flatMap(({ lane }) => lane.steps.map(([, , pieces]) => pieces.length)))];
    const draws = (/** @type {number} */ share, /** @type {import("../share/race.js").Pen} */ pen = own) => {
      pen.fillStyle = paint.card;
      pen.fillRect(0, 0, width, canvas.height);
      const write = (words, x, y, colour = paint.ink, weight = 400) => {
        Object.assign(pen, { fillStyle: colour, font: `${weight} 14px ${dom.SANS}`, textBaseline: "middle" });
        pen.fillText(words, x, y);
      };
      write(format.short(`“${values[source].prompt}”`, 130), 20, 28, paint.mute);
      rows.forEach(({ lane }, at) => {
        const y = 50 + at * tall;
        write(format.short(lane.title, 19), 20, y + tall / 2, paint.ink, 600);
        write(lane.speedup ? `${lane.speedup.toFixed(2)}×` : "–", 204, y + tall / 2);
        write(`τ ${(lane.tau || 0).toFixed(2)}`, 260, y + tall / 2, paint.mute);
        pen.save();
        pen.translate(left, y);
        draw(pen, lane, { width: width - left - 20, height: tall - 3, view: { from: 0, span: whole }, clock: share * whole, most, paint, font: `12px ${dom.SANS}` });
        pen.restore();
      });
    };
    return { canvas, seconds: whole / 1e9 / comfortable(whole), draw: draws, live: source === "live" ? rows.flatMap(({ lane }) => lane.name || []) : [] };
  }

  function render() {
    const most = Math.max(1, ...lanes.flatMap(({ steps }) => steps.map(([, , pieces]) => pieces.length)));
    const scale = devicePixelRatio || 1;
    for (const { lane, canvas } of rows) {
      const [width, height] = [canvas.clientWidth, canvas.clientHeight];
      if (!width) continue;
      Object.assign(canvas, { width: width * scale, height: height * scale });
      const pen = dom.pen(canvas);
      pen.scale(scale, scale);
      draw(pen, lane, { width, height, view, clock: now, most, paint, font: `11px ${dom.SANS}` });
      const x = ((now - view.from) / view.span) * width;
      pen.fillStyle = paint.ink;
      if (now < whole && x >= 0) pen.fillRect(x, 0, 1, height);
    }
    time.value = String((now / whole) * 1000);
    dom.say(said, format.time(now));
  }

  /** @param {Lane} lane */
  function row(lane) {
    const canvas = dom.h("canvas", { class: "svf-canvas", role: lane.name ? "slider" : "img", "aria-label": `${lane.title}: ${lane.steps.length} steps in ${format.time(lane.total)}${lane.parting && `; its text differs from the autoregressive one ${lane.parting}`}` });
    if (!lane.name) return { lane, canvas, tick: null, item: dom.h("li", { class: "svf-lane svf-plain" }, dom.h("span"), dom.h("span", { class: "svf-name" }, lane.title), dom.h("span", { class: "svf-facts" }, dom.h("b", {}, "1.00×"), dom.h("span", {}, "τ 1.00"), dom.h("span", {}, "exact")), canvas) };
    const tick = /** @type {HTMLInputElement} */ (dom.h("input", { type: "checkbox", "aria-label": `Compare the trees of ${lane.title}`, title: "Compare its trees with another method's" }));
    tick.checked = chosen.includes(lane.name);
    tick.addEventListener("change", () => choose(tick.checked ? [...chosen.slice(-1), lane.name] : chosen.filter((name) => name !== lane.name)));
    const kind = promise(lane);
    const parted = lane.parting && `Exact but for rounding: this text differs from the autoregressive one ${lane.parting}`;
    const facts = dom.h(
      "span", { class: "svf-facts" }, dom.h("b", { title: "Speed-up over the run's own autoregressive run" }, lane.speedup ? `${lane.speedup.toFixed(2)}×` : "–"),
      dom.h("span", { title: "Tokens per target pass" }, `τ ${lane.tau ? lane.tau.toFixed(2) : "–"}`), dom.h("span", { class: `svf-${kind}`, title: parted || (lane.promise === "distribution" ? "Exact in distribution" : kind) }, `${kind}${parted ? "*" : ""}`),
      cite(cited.get(lane.method)),
    );
    grip(canvas, lane);
    keys(canvas, lane);
    const name = dom.button(lane.title, `Open ${lane.title} on the stage, at this time`, () => field.open(lane.name, stepAt(lane, now)), { class: "svf-name" });
    return { lane, canvas, tick, item: dom.h("li", { class: "svf-lane" }, tick, name, facts, canvas) };
  }

  /** Keys of the lanes, of which one is a stop for Tab: arrows move the clock by a step or go to the next lane, Enter opens the step. @param {HTMLCanvasElement} canvas @param {Lane} lane */
  function keys(canvas, lane) {
    const last = lane.steps.length - 1;
    const say = () => {
      const step = stepAt(lane, now);
      const { title } = Object.assign(canvas, { title: told(lane, step) });
      for (const [name, value] of Object.entries({ valuemin: 1, valuemax: last + 1, valuenow: step + 1, valuetext: title })) canvas.setAttribute(`aria-${name}`, String(value));
    };
    Object.assign(canvas, { tabIndex: -1 });
    say();
    canvas.addEventListener("focus", () => {
      for (const one of rows) if (one.tick) one.canvas.tabIndex = one.canvas === canvas ? 0 : -1;
      say();
    });
    canvas.addEventListener("keydown", (event) => {
      const [step, at] = [stepAt(lane, now), rows.findIndex((one) => one.canvas === canvas)];
      const to = { ArrowLeft: step - 1, ArrowRight: step + 1, Home: 0, End: last }[event.key];
      const beside = { ArrowUp: rows[at - 1], ArrowDown: rows[at + 1] }[event.key];
      const by = { "+": 2, "=": 2, "-": 0.5 }[event.key];
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      if (event.key === "Enter") field.open(lane.name, step);
      else if (beside) beside.canvas.focus();
      else if (by) zoom(by)();
      else if (to === undefined) return;
      else {
        halt();
        now = lane.ends[Math.min(last, Math.max(0, to))] - 1;
        look(now < view.from || now > view.from + view.span ? moved(view, now - view.from - view.span / 2, whole) : view);
        say();
      }
      event.preventDefault();
    });
  }

  const told = (/** @type {Lane} */ { steps }, /** @type {number} */ at) => {
    const [ns, , pieces] = steps[at];
    return `Step ${at + 1} · ${format.count(pieces.length, "token")} · ${format.time(ns)}: ${format.quote(pieces.join(""))}`;
  };

  /** A click opens the step there, a drag moves the clock, and Ctrl with the wheel zooms. @param {HTMLCanvasElement} canvas @param {Lane} lane */
  function grip(canvas, lane) {
    const at = (event) => view.from + (event.offsetX / canvas.clientWidth) * view.span;
    /** @type {{ x: number, from: number } | null} */
    let held = null;
    let far = false;
    canvas.addEventListener("pointerdown", (event) => {
      [held, far] = [{ x: event.clientX, from: view.from }, false];
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      canvas.title = told(lane, stepAt(lane, at(event)));
      if (!held) return;
      const by = event.clientX - held.x;
      far ||= Math.abs(by) > 5;
      if (far) look(moved({ from: held.from, span: view.span }, (-by / canvas.clientWidth) * view.span, whole));
    });
    canvas.addEventListener("pointerup", (event) => {
      if (held && !far) field.open(lane.name, stepAt(lane, at(event)));
      held = null;
    });
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      look(zoomed(view, event.deltaY < 0 ? 1.3 : 1 / 1.3, at(event), whole));
    }, { passive: false });
  }

  /** @param {string[]} names */
  function choose(names) {
    chosen = names;
    const url = new URL(location.href);
    url.searchParams[names.length ? "set" : "delete"]("trees", names.join());
    history.replaceState(history.state, "", url.href);
    for (const { lane, tick } of rows) if (tick) tick.checked = names.includes(lane.name);
    trees.show(names.map((name) => lanes.find((lane) => lane.name === name)));
    render();
  }

  function arrange() {
    const shown = seen();
    rows = [...shown, ...(plain ? [plain] : [])].map(row);
    list.replaceChildren(...rows.map((one) => /** @type {any} */ (one).item));
    if (shown.length) rows[0].canvas.tabIndex = 0;
    const count = shown.length === lanes.length ? format.count(lanes.length, "method") : `${shown.length} of ${format.count(lanes.length, "method")}`;
    dom.say(title, `${count}, one prompt, one clock`);
    dom.say(live, running ? "Stop" : `Race ${Math.min(MOST_LIVE, shown.length)} live`);
    live.title = running ? "Stop after the methods so far" : "Run the methods in sight on this prompt, one after the other: 64 tokens each at temperature 0, from an empty memory";
    live.disabled = !running && !shown.length;
    render();
  }

  function fill() {
    const value = values[source];
    lanes = value.lanes.filter(({ steps }) => steps.length).map(prepare);
    plain = baseline(value.lanes);
    whole = Math.max(1, ...[...lanes, ...(plain ? [plain] : [])].map(({ total }) => total)) * (innerWidth > 820 ? 1.09 : 1.2); // room for the slowest lane's time
    [now, view] = [whole, { from: 0, span: whole }];
    from.value = source;
    from.hidden = !values.live;
    chosen = chosen.filter((name) => lanes.some((lane) => lane.name === name));
    arrange();
    choose(chosen);
  }

  /** Take a value of the server: the recorded runs, or the state of a live race. @param {Value} value */
  function take(value) {
    const first = !values.recorded;
    if (value.papers) cited = new Map(value.papers.map((method) => [method.name, method]));
    if (value.papers) prompt.value = value.prompt;
    running = value.running;
    const name = value.running && (values.recorded.lanes.find(({ method }) => method === value.running)?.title || value.running);
    dom.say(note, name ? `${[`${name}, ${value.place}`, value.note].filter(Boolean).join(" · ")}` : value.note);
    if (first || value.lanes.length) {
      source = first ? "recorded" : "live";
      values[source] = value;
      fill();
    } else arrange();
  }

  function start() {
    const pace = comfortable(whole);
    if (now >= whole) now = 0;
    before = 0;
    dom.say(go, "Pause");
    const tick = (/** @type {number} */ stamp) => {
      now = Math.min(whole, now + (before ? Math.min(stamp - before, 250) : 0) * 1e6 * pace);
      before = stamp;
      render();
      if (now >= whole) halt();
      else frame = requestAnimationFrame(tick);
    };
    frame = requestAnimationFrame(tick);
  }

  function halt() {
    cancelAnimationFrame(frame);
    frame = 0;
    dom.say(go, "Race");
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (running) field.halt();
    else field.race(prompt.value, seen().slice(0, MOST_LIVE).map(({ method }) => method));
  });
  time.addEventListener("input", () => {
    halt();
    now = (Number(time.value) / 1000) * whole;
    render();
  });
  for (const input of [sort, search]) input.addEventListener("input", arrange);
  from.addEventListener("input", () => {
    source = from.value;
    fill();
  });
  const dress = () => {
    const style = getComputedStyle(element);
    paint = { ...palette(element), track: style.getPropertyValue("--sv-track").trim() };
    render();
  };
  new ResizeObserver(dress).observe(list);
  for (const one of [document.documentElement, document.body]) new MutationObserver(dress).observe(one, { attributes: true, attributeFilter: ["class"] });
  return { element, take, film };
}

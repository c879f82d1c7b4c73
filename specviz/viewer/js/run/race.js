// A race: runs and their autoregressive baselines typing side by side, each at the pace that was recorded.
import * as codes from "../kit/codes.js";
import * as coerce from "../kit/coerce.js";
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import { countAt, gain, lineUp, places } from "./raceLanes.js";

const SPEEDS = [0.1, 0.25, 0.5, 1, 2];
const MOST_BURSTS = 400; // spans of one lane's text, of which only the last lines are in sight
const ORDER = ["", "1st", "2nd", "3rd", "4th"];
const seconds = (ns) => `${(ns / 1e9).toFixed(2)} s`;

/** One contestant: its name, its clock, its count, and its text or its picture so far. */
class Lane {
  constructor(lane, place) {
    Object.assign(this, { lane, place, shown: 0 });
    this.result = dom.h("span", { class: "sv-lane-result", title: `Beside ${lane.rival.name}` });
    this.tally = dom.h("span", { class: "sv-lane-tally" });
    this.clock = dom.h("b", { class: "sv-lane-clock", title: "Decoding time as it was recorded, without reading the prompt" });
    this.bar = dom.h("i");
    this.body = lane.grid ? this.canvas() : dom.h("div", { class: "sv-lane-text" });
    const name = dom.h("b", { class: "sv-lane-name", title: lane.name }, lane.name);
    const head = dom.h("div", { class: "sv-lane-head" }, name, this.result, dom.h("span", { class: "sv-lane-time" }, this.tally, this.clock));
    const bar = dom.h("div", { class: "sv-lane-bar" }, this.bar);
    const missing = lane.grid && lane.known < lane.count ? dom.h("em", { class: "sv-unknown" }, "Its own picture was not recorded.") : null;
    this.element = dom.h("div", { class: `sv-lane sv-lane-${lane.kind}${lane.grid ? " sv-lane-pictured" : ""}` }, this.body, head, bar, missing);
  }

  canvas() {
    const { grid, picture } = this.lane;
    if (picture) {
      this.picture = new Image();
      this.picture.addEventListener("load", () => this.paint());
      this.picture.src = `data:image/png;base64,${coerce.text(picture)}`;
    }
    return dom.h("canvas", { class: "sv-lane-picture", width: grid[1] * 4, height: grid[0] * 4, "aria-hidden": "true" });
  }

  draw(clock, over) {
    const { lane } = this;
    const count = countAt(lane, clock);
    const done = clock >= lane.total;
    if (count !== this.shown || !this.drawn) this.write(count);
    dom.say(this.clock, seconds(Math.min(clock, lane.total)));
    dom.say(this.tally, `${count} of ${format.count(lane.count, lane.grid ? "code" : "token")}`);
    const order = done && this.place ? ORDER[this.place] || `${this.place}th` : "";
    dom.say(this.result, [order, over ? gain(lane) : ""].filter(Boolean).join(" · "));
    this.element.classList.toggle("sv-lane-won", done && this.place === 1);
    this.bar.style.transform = `scaleX(${lane.count ? count / lane.count : 0})`;
    this.drawn = true;
  }

  /** Bring text or picture to `count` tokens; only what is new is added. */
  write(count) {
    const { lane } = this;
    if (count < this.shown || !this.drawn) {
      this.shown = 0;
      if (!lane.grid) this.body.replaceChildren();
    }
    const before = this.shown;
    this.shown = count;
    if (lane.grid) this.paint(before);
    else this.type(before, count);
  }

  type(before, count) {
    const { known, tokens, common } = this.lane;
    const { body } = this;
    const words = (from, to) => tokens.slice(from, to).map(({ text }) => format.plain(text).replace(/\n+/g, "⏎ ")).join("");
    const upto = Math.min(count, known),
      parting = Math.min(Math.max(before, common ?? upto), upto);
    for (const span of body.querySelectorAll(".sv-burst")) span.classList.remove("sv-burst");
    if (before < parting) body.append(dom.h("span", { class: "sv-burst" }, words(before, parting)));
    if (parting < upto) body.append(dom.h("span", { class: "sv-burst sv-parted", title: "Here it wrote other words than the run" }, words(parting, upto)));
    if (count > known && before <= known) {
      body.append(dom.h("em", { class: "sv-unknown" }, known ? " … other words from here on, not recorded" : "its own words were not recorded"));
    }
    while (body.childNodes.length > MOST_BURSTS) body.firstChild.remove();
    body.scrollTop = body.scrollHeight;
  }

  /** Cells from number `from`: of the finished picture where it is known, else a plain ground that says how many and no more. */
  paint(from = 0) {
    const { grid, known, tokens, trace } = this.lane;
    const { body, picture, shown } = this;
    const whole = picture && picture.complete && picture.naturalWidth;
    const side = Math.max(1, Math.round(whole ? picture.naturalWidth / grid[1] : 4));
    const width = side * grid[1];
    if (body.width !== width) Object.assign(body, { width, height: side * grid[0] });
    const pen = body.getContext("2d");
    if (!from) pen.clearRect(0, 0, body.width, body.height);
    const plain = getComputedStyle(body).color;
    for (let at = from; at < shown; at += 1) {
      const [row, column] = (tokens[at] && tokens[at].cell) || [Math.floor(at / grid[1]), at % grid[1]];
      const box = [column * side, row * side, side, side];
      if (whole && at < known) pen.drawImage(picture, ...box, ...box);
      else {
        pen.fillStyle = (at < known && tokens[at] && codes.colour(codes.of(trace.run), tokens[at].token)) || plain;
        pen.fillRect(box[0], box[1], side - Number(at >= known), side - Number(at >= known));
      }
    }
  }
}

export class Race {
  /** `host` names the components of its stages in data-stages, and under data-name what is remembered of it. */
  constructor(host) {
    Object.assign(this, { host, lanes: [], clock: 0, playing: false, waits: false, frame: 0, before: 0, speed: 1, key: [] });
    this.buttons();
    this.box = dom.h("div", { class: "sv-lanes" });
    this.heard = dom.h("div", { class: "sv-live-region", role: "status" });
    host.classList.add("specviz", "sv-race");
    host.append(this.controls, this.box, this.heard);
    this.open = this.remembered();
    this.listen = (event) => this.hear(event);
    document.addEventListener("specviz:run", this.listen);
    this.sight = new IntersectionObserver(([entry]) => this.see(entry.isIntersecting));
    this.sight.observe(host);
    this.read();
    this.draw();
  }

  buttons() {
    this.play = dom.button("", "", () => this.toggle(), { class: "sv-race-play" });
    this.again = dom.button(dom.icon("first"), "Back to the start", () => this.restart(), { "aria-label": "Back to the start" });
    const title = "Pace of the race: 1× is the time it really took";
    this.pace = dom.h("select", { "aria-label": "Pace of the race", title }, SPEEDS.map((speed) => dom.h("option", { value: speed }, `${speed}×`)));
    this.pace.value = "1";
    this.pace.addEventListener("change", () => (this.speed = Number(this.pace.value)));
    this.fold = dom.button("", "", () => this.unfold(!this.open), { class: "sv-race-fold" });
    this.tools = dom.h("span", { class: "sv-race-tools" }, this.play, this.again, this.pace);
    this.controls = dom.h("div", { class: "sv-race-controls", role: "group", "aria-label": "Race" }, this.tools, this.fold);
  }

  get stages() {
    const hosts = this.host.dataset.stages.split(" ").map((id) => document.querySelector(`${id} .specviz-host`));
    return hosts.map((host) => host && host.specviz && host.specviz.stage).filter(Boolean);
  }
  get total() {
    return Math.max(0, ...this.lanes.map(({ lane }) => lane.total));
  }
  get done() {
    return this.clock >= this.total;
  }
  get calm() {
    return matchMedia("(prefers-reduced-motion: reduce)").matches;
  }

  /** A stage has news; it is bound to its component only after its first lines. */
  hear(event) {
    if (!this.host.isConnected) this.destroy();
    else if (this.host.dataset.stages.split(" ").some((id) => event.target.closest(id))) setTimeout(() => this.read());
  }

  /** Line up anew where the stages show other runs; while one of them is running there is no race. */
  read() {
    const { stages } = this;
    const running = stages.some((stage) => stage.running);
    const key = running ? [] : stages.flatMap(({ trace }) => [trace.steps, trace.end]);
    if (key.length === this.key.length && key.every((part, place) => part === this.key[place])) return;
    this.stop();
    const lanes = running ? [] : lineUp(stages.map((stage) => stage.trace));
    const order = places(lanes);
    Object.assign(this, { key, clock: 0, lanes: lanes.map((lane, place) => new Lane(lane, order[place])) });
    this.box.replaceChildren(...this.lanes.map(({ element }) => element));
    if (this.calm) this.clock = this.total;
    // What somebody has just watched live waits to be asked for.
    else if (this.open) this.start(stages.every((stage) => stage.trace.mode === "recorded"));
    this.draw();
  }

  /** Begin once the race is in sight. */
  start(wanted) {
    this.waits = wanted && this.lanes.length > 0 && !this.seen;
    if (wanted && this.seen) this.run();
  }

  see(seen) {
    this.seen = seen;
    if (seen && this.waits) this.run();
    else if (!seen && this.playing) {
      this.stop();
      this.waits = true;
    }
    this.draw();
  }

  toggle() {
    if (this.playing) this.stop();
    else {
      if (this.done) this.clock = 0;
      this.run();
    }
    this.draw();
  }

  restart() {
    this.clock = 0;
    this.run();
    this.draw();
  }

  unfold(open) {
    this.open = open;
    try {
      localStorage.setItem(this.store, open ? "open" : "closed");
    } catch {
      // A private window keeps nothing.
    }
    this.stop();
    this.clock = this.calm ? this.total : 0;
    if (open && !this.calm) this.run();
    this.draw();
  }

  get store() {
    return `specviz-race-${this.host.dataset.name}`;
  }

  remembered() {
    try {
      const kept = localStorage.getItem(this.store);
      if (kept) return kept === "open";
    } catch {
      // As above.
    }
    return this.host.hasAttribute("data-open");
  }

  run() {
    clearTimeout(this.leaving);
    this.host.removeAttribute("data-over");
    Object.assign(this, { waits: false, playing: this.lanes.length > 0, before: 0 });
    cancelAnimationFrame(this.frame);
    if (this.playing) this.frame = requestAnimationFrame((now) => this.tick(now));
  }

  stop() {
    Object.assign(this, { waits: false, playing: false });
    cancelAnimationFrame(this.frame);
    clearTimeout(this.leaving);
  }

  tick(now) {
    // A window that was hidden comes back where it left, not far ahead.
    const passed = this.before ? Math.min(now - this.before, 250) : 0;
    this.before = now;
    this.clock = Math.min(this.total, this.clock + passed * 1e6 * this.speed);
    if (this.done) {
      this.stop();
      this.announce();
      this.leaving = setTimeout(() => this.host.setAttribute("data-over", ""), 2500);
    } else this.frame = requestAnimationFrame((next) => this.tick(next));
    this.draw();
  }

  announce() {
    const results = this.lanes.map(({ lane }) => `${lane.name}: ${seconds(lane.total)}, ${format.count(lane.count, lane.grid ? "code" : "token")}`);
    dom.say(this.heard, `${results.join("; ")}. ${gain(this.lanes[0].lane)}`);
  }

  draw() {
    const { lanes, open, playing, done, clock } = this;
    this.host.toggleAttribute("data-race", lanes.length > 0 && open);
    this.controls.hidden = !lanes.length;
    this.tools.hidden = this.box.hidden = !open || !lanes.length;
    this.label(this.fold, open ? "✕" : "▾ Race", open ? "Hide the race" : "Show the race");
    this.fold.setAttribute("aria-expanded", String(open));
    const word = playing ? "Pause" : done || !clock ? "Race" : "Go on";
    if (this.word !== word) this.play.replaceChildren(dom.icon(playing ? "pause" : "play"), ` ${word}`);
    this.word = word;
    if (open) for (const lane of lanes) lane.draw(clock, clock >= Math.max(lane.lane.total, lane.lane.rival.total));
  }

  label(button, text, title) {
    dom.say(button, text);
    button.title = title;
    button.setAttribute("aria-label", title);
  }

  destroy() {
    this.stop();
    this.sight.disconnect();
    document.removeEventListener("specviz:run", this.listen);
  }
}

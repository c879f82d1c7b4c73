// @ts-check
// A race: runs and their autoregressive baselines typing side by side, each at its recorded pace.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import { Lane, seconds } from "./raceLane.js";
import { lineUp, places, result } from "./raceLanes.js";
import * as verdict from "./verdict.js";

const SPEEDS = [0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10];
const named = (speed) => (speed === 1 ? "real time" : speed < 1 ? `slowed ${1 / speed}×` : `sped up ${speed}×`);

/** The pace at which a race can be watched: real time if that takes 1.5 to 8 s, else the one that takes closest to 4 s. @param {number} ns */
export function comfortable(ns) {
  const wait = (speed) => Math.max(1e-3, ns / 1e9) / speed;
  const off = (speed) => Math.abs(Math.log(wait(speed) / 4));
  return wait(1) >= 1.5 && wait(1) <= 8 ? 1 : SPEEDS.reduce((best, speed) => (off(speed) < off(best) ? speed : best));
}

export class Race {
  /** @type {Lane[]} */
  lanes = [];
  /** @type {any[]} */
  key = [];
  /** @type {Stage[]} */
  held = [];
  clock = 0;
  playing = false;
  waits = false;
  frame = 0;
  before = 0;
  speed = 1;
  leaving = 0;
  told = false;
  live = false;
  seen = false;
  word = "";

  /** `host` names the components of its stages in data-stages, and in data-name the key of its remembered state. @param {HTMLElement} host */
  constructor(host) {
    this.host = host;
    this.names = String(host.dataset.stages).split(" ");
    this.play = dom.button("", "", () => this.toggle(), { class: "sv-race-play" });
    this.again = dom.button(dom.icon("first"), "Back to the start", () => this.restart(), { "aria-label": "Back to the start" });
    const title = "Pace of the race, relative to the recorded time";
    this.pace = dom.h("select", { "aria-label": "Pace of the race", title }, SPEEDS.map((speed) => dom.h("option", { value: speed }, named(speed))));
    this.pace.addEventListener("change", () => (this.speed = Number(this.pace.value)));
    this.fold = dom.button("", "", () => this.unfold(!this.open), { class: "sv-race-fold" });
    this.tools = dom.h("span", { class: "sv-race-tools" }, this.play, this.again, this.pace);
    this.controls = dom.h("div", { class: "sv-race-controls", role: "group", "aria-label": "Race" }, this.tools, this.fold);
    this.box = dom.h("div", { class: "sv-lanes" });
    this.verdict = dom.h("p", { class: "sv-race-verdict", hidden: true });
    this.watch = dom.h("p", { class: "sv-race-watch", hidden: true });
    this.heard = dom.h("div", { class: "sv-live-region", role: "status" });
    host.classList.add("specviz", "sv-race");
    host.append(this.verdict, this.controls, this.box, this.watch, this.heard);
    this.open = this.remembered();
    this.listen = (event) => this.hear(event);
    document.addEventListener("specviz:run", this.listen);
    this.sight = new IntersectionObserver(([entry]) => this.see(entry.isIntersecting));
    this.sight.observe(host);
    this.read();
    this.draw();
  }

  get stages() {
    const hosts = this.names.map((id) => document.querySelector(`${id} .specviz-host`));
    return hosts.flatMap((host) => (host && host.specviz ? [host.specviz.stage] : []));
  }
  get total() {
    return Math.max(0, ...this.lanes.map(({ lane }) => lane.total));
  }
  get done() {
    return this.clock >= this.total;
  }
  /** On a phone, whose first screen belongs to the run, a race opens on demand. */
  get small() {
    return innerWidth <= 480;
  }

  /** A stage has news; it is bound to its component only after its first lines. */
  hear(event) {
    if (!this.host.isConnected) this.destroy();
    else if (this.names.some((id) => dom.closest(event, id))) setTimeout(() => this.read());
  }

  /** Line up again if the stages show other runs; while one of them is running there is no race. */
  read() {
    const { stages } = this;
    const running = stages.some((stage) => stage.running);
    const key = running ? [] : stages.flatMap(({ trace }) => [trace.steps, trace.end]);
    if (key.length === this.key.length && key.every((part, place) => part === this.key[place])) return;
    this.stop();
    this.held = [];
    const lanes = running ? [] : lineUp(stages.map((stage) => stage.trace));
    const order = places(lanes);
    Object.assign(this, { key, clock: 0, lanes: lanes.map((lane, place) => new Lane(lane, order[place])) });
    this.box.replaceChildren(...this.lanes.map(({ element }) => element));
    this.speed = comfortable(this.total);
    this.pace.value = String(this.speed);
    this.tell(stages);
    if (dom.calm()) this.clock = this.total;
    else if (this.open && lanes.length) this.start(stages);
    this.draw();
  }

  /** Begin once the race is in sight. One thing moves at a time: stages that have just opened wait until it is over. @param {Stage[]} stages */
  start(stages) {
    this.held = stages.filter((stage) => stage.player.hold());
    if (this.seen) this.run();
    else this.waits = true;
  }

  /** Let the stages that waited for the race go on. */
  release() {
    for (const stage of this.held) stage.player.begin();
    this.held = [];
  }

  /** Show the result of one run's race against its baseline, and what to watch on its stage, once it is over. */
  tell(stages) {
    const [stage] = stages;
    const found = this.lanes.length === 2 && this.lanes[1].lane.kind === "baseline" ? verdict.of(stage.trace) : null;
    this.told = found !== null;
    const watch = this.told ? stage.trace.watch : "";
    dom.say(this.watch, watch && `Watch: ${watch.split(/[.:;] /)[0].replace(/\.$/, "")}.`); // one line: the rest is its title
    this.watch.title = watch;
    this.live = this.told && stage.live;
    if (!found) return;
    const [number, ...how] = verdict.pace(found.speedup).split(" ");
    const saved = `${format.time(Math.abs(found.saved))} ${found.saved < 0 ? "lost" : "saved"} over ${format.count(found.tokens, stage.trace.run.grid ? "code" : "token")}`;
    const rest = [found.word === "level" ? "" : saved, verdict.texts(stage.trace)].filter(Boolean).join(" · ");
    this.verdict.replaceChildren(dom.h("b", {}, number), dom.h("strong", {}, ` ${how.join(" ")} as one at a time`.replace("speed as", "speed of")), rest && ` · ${rest}`);
    this.verdict.className = `sv-race-verdict sv-race-${found.word}`;
    this.verdict.title = "Time per token of the autoregressive run ÷ that of this run; the time saved is over the tokens of this run";
  }

  see(seen) {
    this.seen = seen;
    if (seen && this.waits) this.run();
    else if (!seen) {
      if (this.playing) {
        this.stop();
        this.waits = true;
      }
      this.release();
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
    this.release();
    this.clock = dom.calm() ? this.total : 0;
    if (open && !dom.calm()) this.run();
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
    return this.host.hasAttribute("data-open") && !this.small;
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
    // A window that was hidden resumes where it stopped, not far ahead.
    const passed = this.before ? Math.min(now - this.before, 250) : 0;
    this.before = now;
    this.clock = Math.min(this.total, this.clock + passed * 1e6 * this.speed);
    if (this.done) {
      this.stop();
      this.announce();
      this.leaving = setTimeout(() => {
        this.host.setAttribute("data-over", "");
        this.release();
        this.draw();
      }, 2500);
    } else this.frame = requestAnimationFrame((next) => this.tick(next));
    this.draw();
  }

  announce() {
    const results = this.lanes.map(({ lane }) => `${lane.name}: ${seconds(lane.total)}, ${format.count(lane.count, lane.grid ? "code" : "token")}`);
    dom.say(this.heard, `${results.join("; ")}. ${this.told ? this.verdict.textContent : result(this.lanes[0].lane, this.lanes[0].place)}`);
  }

  draw() {
    const { lanes, open, playing, done, clock } = this;
    this.host.toggleAttribute("data-race", lanes.length > 0 && open);
    this.controls.hidden = !lanes.length;
    this.tools.hidden = this.box.hidden = !open || !lanes.length;
    // A run that was just watched live shows its verdict even if its race was closed.
    this.verdict.hidden = !this.told || !(open ? done : this.live || this.small);
    this.watch.hidden = !open || !done || !this.watch.textContent || playing;
    this.host.toggleAttribute("data-told", !this.verdict.hidden);
    this.label(this.fold, open ? "✕" : "▾ Race", open ? "Hide the race" : "Show the race");
    this.fold.setAttribute("aria-expanded", String(open));
    const word = playing ? "Pause" : done || !clock ? "Race" : "Go on";
    if (this.word !== word) this.play.replaceChildren(dom.icon(playing ? "pause" : "play"), ` ${word}`);
    this.word = word;
    if (open) for (const lane of lanes) lane.draw(clock, clock >= Math.max(lane.lane.total, lane.lane.rival.total));
  }

  /** @param {string} text */
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

// @ts-check
// One lane of a race: a contestant's name, clock and count, and its text or its picture so far.
import * as codes from "../kit/codes.js";
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import { countAt, result } from "./raceLanes.js";

const MOST_BURSTS = 400; // spans of text in one lane, of which only the last lines are in sight
/** @param {number} ns */
export const seconds = (ns) => `${(ns / 1e9).toFixed(2)} s`;

/** One contestant: its name, its clock, its count, and its text or its picture so far. */
export class Lane {
  shown = 0;
  drawn = false;
  /** @type {HTMLImageElement | null} */
  picture = null;
  /** A canvas of a picture, else a box of text. @type {any} */
  body;

  /** @param {RaceLane} lane @param {number | null} place @param {string} [plain] the colour of unknown cells off the page */
  constructor(lane, place, plain) {
    this.lane = lane;
    this.place = place;
    this.plain = plain;
    this.result = dom.h("span", { class: "sv-lane-result", title: `Beside ${lane.rival.name}` });
    this.tally = dom.h("span", { class: "sv-lane-tally" });
    this.clock = dom.h("b", { class: "sv-lane-clock", title: "Recorded decoding time" });
    this.bar = dom.h("i");
    this.body = lane.grid ? this.canvas(lane.grid) : dom.h("div", { class: "sv-lane-text" });
    const name = dom.h("b", { class: "sv-lane-name", title: lane.name }, lane.name);
    const head = dom.h("div", { class: "sv-lane-head" }, name, this.result, dom.h("span", { class: "sv-lane-time" }, this.tally, this.clock));
    const bar = dom.h("div", { class: "sv-lane-bar" }, this.bar);
    const missing = lane.grid && lane.known < lane.count ? dom.h("em", { class: "sv-unknown" }, "Its own picture was not recorded.") : null;
    this.element = dom.h("div", { class: `sv-lane sv-lane-${lane.kind}${lane.grid ? " sv-lane-pictured" : ""}` }, this.body, head, bar, missing);
  }

  /** @param {[number, number]} grid */
  canvas(grid) {
    const { picture } = this.lane;
    if (picture) {
      this.picture = new Image();
      this.picture.addEventListener("load", () => this.paint());
      this.picture.src = `data:image/png;base64,${picture}`;
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
    dom.say(this.result, over ? result(lane, this.place) : "");
    this.element.classList.toggle("sv-lane-won", done && this.place === 1 && !result(lane).startsWith("level"));
    this.bar.style.transform = `scaleX(${count / Math.max(1, lane.count, lane.rival.count)})`;
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
    if (parting < upto) body.append(dom.h("span", { class: "sv-burst sv-parted", title: "Here its words differ from the run's" }, words(parting, upto)));
    if (count > known && before <= known) {
      body.append(dom.h("em", { class: "sv-unknown" }, known ? " … other words from here on, not recorded" : "its own words were not recorded"));
    }
    while (body.firstChild && body.childNodes.length > MOST_BURSTS) body.firstChild.remove();
    body.scrollTop = body.scrollHeight;
  }

  /** Draw cells from number `from` on: of the finished picture if it is known, else plain ones that only show how many. */
  paint(from = 0) {
    const { grid, known, tokens, trace } = this.lane;
    const { body, picture, shown } = this;
    if (!grid) return;
    const whole = picture && picture.complete && picture.naturalWidth ? picture : null;
    const side = Math.max(1, Math.round(whole ? whole.naturalWidth / grid[1] : 4));
    const width = side * grid[1];
    if (body.width !== width) Object.assign(body, { width, height: side * grid[0] });
    const pen = dom.pen(body);
    if (!from) pen.clearRect(0, 0, body.width, body.height);
    const plain = this.plain || getComputedStyle(body).color;
    for (let at = from; at < shown; at += 1) {
      const [row, column] = (tokens[at] && tokens[at].cell) || [Math.floor(at / grid[1]), at % grid[1]];
      const [x, y] = [column * side, row * side];
      if (whole && at < known) pen.drawImage(whole, x, y, side, side, x, y, side, side);
      else {
        pen.fillStyle = (at < known && tokens[at] && codes.colour(codes.of(trace.run), tokens[at].token ?? -1)) || plain;
        pen.fillRect(x, y, side - Number(at >= known), side - Number(at >= known));
      }
    }
  }
}

// @ts-check
// The teacher's side of class mode: the code to scan, the histogram, and the pace. Fetched when a class is first started.
const KEPT = "specviz-class";
const EVERY = 1000;
const SVG = "http://www.w3.org/2000/svg";

/** The room of this tab; a frame on another site may have no storage. @param {object | null} [room] undefined to read */
function stored(room) {
  try {
    if (room) sessionStorage.setItem(KEPT, JSON.stringify(room));
    else if (room === null) sessionStorage.removeItem(KEPT);
    return JSON.parse(sessionStorage.getItem(KEPT) || "null");
  } catch {
    return null;
  }
}

/** @param {string} tag @param {Record<string, any>} properties @param {...(Node | string)} children @returns {any} */
const node = (tag, properties, ...children) => {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
};

/** @param {string} text @param {() => void} act @param {string} [look] */
const button = (text, act, look = "sp-link") => node("button", { type: "button", className: look, textContent: text, onclick: act });

/** A QR code as one path, with the four quiet modules around it. @param {string[]} rows */
function picture(rows) {
  const svg = document.createElementNS(SVG, "svg");
  const path = document.createElementNS(SVG, "path");
  svg.setAttribute("viewBox", `-4 -4 ${rows.length + 8} ${rows.length + 8}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", "QR code of the address");
  path.setAttribute("d", rows.map((row, y) => [...row].map((dark, x) => (dark === "1" ? `M${x} ${y}h1v1h-1z` : "")).join("")).join(""));
  svg.append(path);
  return svg;
}

class Board {
  /** @param {HTMLElement} learn the Learn tab @param {(path: string) => string} address */
  constructor(learn, address) {
    this.learn = learn;
    this.address = address;
    /** @type {{ code: string, key: string, link: string, qr: string[] } | null} */
    this.room = null;
    this.place = "";
    this.state = "wait";
    this.timer = 0;
    this.panel = /** @type {HTMLElement} */ (learn.querySelector(".sp-class"));
    this.said = node("p", { className: "sp-class-said" });
    this.said.setAttribute("role", "status");
    this.bars = node("ol", { className: "sp-class-bars" });
    this.pace = button("", () => this.turn(), "sp-class-pace");
    this.join = node("section", { className: "sp-class-join", tabIndex: -1, onkeydown: (event) => { if (event.key === "Escape") this.invite(false); } });
    this.follow = () => this.seek();
  }

  /** Start a class, or go on with the one of this tab. */
  async start() {
    if (this.room) return this.invite(true);
    try {
      this.room = stored() || JSON.parse(await this.ask(`new?base=${encodeURIComponent(new URL(this.address(""), location.href).href)}`, {}));
      stored(this.room);
    } catch (error) {
      this.panel.replaceChildren(this.said);
      this.complain(error);
      return this.said.scrollIntoView({ block: "nearest" });
    }
    document.documentElement.classList.add("sp-teaching");
    const { code, link, qr } = /** @type {any} */ (this.room);
    this.count = node("p", { className: "sp-class-here" });
    const heading = node("h2", {}, "Join with your phone");
    this.join.setAttribute("aria-label", "Join this class");
    this.join.replaceChildren(
      node("div", {}, heading, node("p", { className: "sp-class-link" }, ...link.replace(/^https?:\/\//, "").split(/(?=\/c\/)/).map((part) => node("span", {}, part))), this.count, button("Show the lesson", () => this.invite(false), "sp-class-pace")),
      picture(qr),
    );
    this.learn.querySelector(".sp-main")?.append(this.join);
    this.end = button("End class", () => this.stop());
    const ways = node("div", { className: "sp-learned" }, node("span", {}, "Class ", node("b", {}, code)), button("Show code", () => this.invite(this.join.hidden)), button("Answers, CSV", () => this.save()), this.end);
    this.panel.replaceChildren(this.bars, this.said, ways);
    this.learn.querySelector(".sp-foot")?.prepend(this.pace);
    document.addEventListener("specviz:lesson", this.follow);
    this.invite(true);
    this.seek();
    return this.poll();
  }

  /** @param {any} error */
  complain({ message }) {
    this.said.textContent = message;
  }

  /** @param {string} path @param {object} [body] @returns {Promise<string>} */
  async ask(path, body) {
    const headers = { "x-class-key": this.room?.key || "", "Content-Type": "application/json" };
    const where = this.address(this.room ? `c/${this.room.code}/${path}` : `c/${path}`);
    const answer = await fetch(where, body ? { method: "POST", headers, body: JSON.stringify(body) } : { headers }).catch(() => null);
    if (!answer) throw new Error("The server does not answer.");
    const text = await answer.text();
    if (answer.status === 404) this.leave();
    if (!answer.ok) throw new Error(text);
    return text;
  }

  /** Ask, and show the state that comes back. @param {string} path @param {object} [body] */
  async tell(path, body) {
    try {
      this.show(JSON.parse(await this.ask(path, body)));
    } catch (error) {
      this.complain(error);
    }
  }

  async poll() {
    await this.tell("board");
    if (this.room) this.timer = setTimeout(() => this.poll(), EVERY);
  }

  /** The page on the projector has turned, or its answer is revealed: phones follow. */
  seek() {
    const at = /** @type {HTMLElement | null} */ (this.learn.querySelector(".sp-lesson[data-lesson]"));
    const place = JSON.stringify([at?.dataset.lesson, at?.dataset.at, Boolean(this.learn.querySelector(".sp-reveal"))]);
    if (!at || place === this.place) return;
    this.place = place;
    this.send(JSON.parse(place)[2] ? "shown" : "ready");
  }

  /** @param {string} state */
  send(state) {
    const [lesson, at] = JSON.parse(this.place);
    return this.tell("show", { lesson, page: Number(at) - 1, state });
  }

  turn() {
    this.send(this.state === "open" ? "closed" : "open");
  }

  /** @param {any} now */
  show(now) {
    this.state = now.state;
    const here = `${now.phones} ${now.phones === 1 ? "phone" : "phones"} here`;
    this.count.textContent = here;
    const counts = now.counts || [];
    const [sum, most] = [counts.reduce((a, b) => a + b, 0), Math.max(1, ...counts)];
    if (this.bars.children.length !== counts.length || this.bars.dataset.number !== String(now.number)) {
      this.bars.dataset.number = String(now.number);
      this.bars.replaceChildren(...(now.choices || []).map((text) => node("li", {}, node("span", {}, text), node("b", {}), node("i", {}))));
    }
    counts.forEach((count, at) => {
      const [bar, right] = [this.bars.children[at], now.answer === at];
      bar.classList.toggle("right", right);
      bar.children[1].textContent = `${count}${right ? " ✓" : ""}`;
      bar.children[2].style.width = `${100 * count / most}%`;
    });
    const answered = `${sum} of ${now.phones} answered`;
    const said = { wait: `${here}. No question on this page.`, ready: here, open: answered, closed: `${answered}, closed`, shown: `${sum} answered` }[now.state];
    if (this.said.textContent !== said) this.said.textContent = said;
    this.pace.hidden = now.state === "wait" || now.state === "shown";
    this.pace.textContent = now.state === "open" ? "Close the question" : now.state === "closed" ? "Open it again" : "Open the question";
  }

  /** @param {boolean} visible */
  invite(visible) {
    this.join.hidden = !visible;
    if (visible) this.join.focus();
    else (this.pace.hidden ? this.learn.querySelector(".sp-go button:last-child") : this.pace)?.focus();
  }

  async save() {
    try {
      const href = URL.createObjectURL(new Blob([await this.ask("answers")], { type: "text/csv" }));
      node("a", { href, download: `class-${this.room?.code}.csv` }).click();
      setTimeout(() => URL.revokeObjectURL(href), 10_000);
    } catch (error) {
      this.complain(error);
    }
  }

  /** The answers go with the room, so the first press only asks. */
  async stop() {
    if (this.end.textContent === "End class") {
      this.end.textContent = "Forget all answers and end?";
      setTimeout(() => { this.end.textContent = "End class"; }, 5000);
      return;
    }
    await this.ask("end", {}).catch(() => "");
    this.leave();
    this.panel.replaceChildren();
  }

  leave() {
    clearTimeout(this.timer);
    stored(null);
    this.room = null;
    this.place = "";
    this.join.remove();
    this.pace.remove();
    this.panel.replaceChildren(this.said);
    document.removeEventListener("specviz:lesson", this.follow);
    document.documentElement.classList.remove("sp-teaching");
  }
}

/** @type {Board | null} */
let board = null;

/** @param {HTMLElement} learn @param {(path: string) => string} address */
export function start(learn, address) {
  if (!board) document.head.append(node("link", { rel: "stylesheet", href: address("c/board.css") }));
  board ||= new Board(learn, address);
  return board.start();
}

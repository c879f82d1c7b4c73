// @ts-check
// Reads the lines of a run: a recorded run's from its text, a followed run's as they arrive.
//
// A text may begin with a control line {"kind":"stage","mode":"live"|"recorded","run":ID,"watch":NOTE}. For a live run it is
// the whole text and gives the run's current state: "message" and "fraction" before its first step, "follow" once it has lines,
// "baseline" while that is timed, "error". A recorded run with "follow" is shown once all its lines are there.
// `tail(run, from, take, over)` streams lines and returns a function that stops it.
import { STATUSES, decodeEnd, decodeNotice, decodeRun, parseStep } from "./decode.js";

const MOST_CODES = 65536; // of one picture; current models have a few thousand at most

export class Feed {
  /** @type {Recording} */
  trace;
  followed = "";
  /** @type {(() => void) | null} */
  leave = null;
  next = 0;
  name = "";
  /** @type {string | null} */
  text = null;

  /** @param {{ onReset: () => void, onChange: () => void, tail?: Tail | null, mode?: string }} options */
  constructor({ onReset, onChange, tail = null, mode = "recorded" }) {
    this.onReset = onReset;
    this.onChange = onChange;
    this.tail = tail;
    this.mode = mode;
    this.clear("");
  }

  /** @param {string} name */
  clear(name) {
    Object.assign(this, { name, text: null, next: 0 });
    this.trace = {
      mode: this.mode,
      run: null,
      steps: [],
      ends: [],
      lines: [],
      starts: [],
      end: null,
      problems: [],
      notice: null,
      baseline: "",
      watch: "",
      coming: null,
      seen: new Set(),
    };
  }

  /** @param {string} name */
  restart(name) {
    this.clear(name);
    this.onReset();
  }

  /** Take a whole text, or the state of a run whose lines arrive separately. @param {string} text */
  accept(text) {
    if (typeof text !== "string") return;
    const control = Feed.control(text);
    if (control && (control.mode === "live" || control.follow)) this.going(control);
    else {
      this.unfollow("");
      this.trace.coming = null;
      if (text !== this.text) {
        this.restart(control ? control.run : "");
        this.text = text;
        this.take(text);
      }
    }
    this.onChange();
  }

  /** Another run stays on the stage until this one has lines. */
  going(control) {
    const { run } = control;
    if (this.name !== run && !this.trace.steps.length) this.restart(run);
    this.trace.coming = this.name === run ? null : control;
    if (this.name === run) this.notice(control);
    if (!control.follow || this.followed === run || !this.tail) return;
    this.unfollow(run);
    const lines = [];
    const take = (text) => (control.mode === "live" ? this.more(control, text) : lines.push(text));
    const over = (why) => (why || lines.length) && this.more(control, lines.join("\n"), why);
    this.leave = this.tail(run, this.name === run ? this.next : 0, take, over);
  }

  /** @param {string} run */
  unfollow(run) {
    if (this.leave) this.leave();
    Object.assign(this, { followed: run, leave: null });
  }

  /** Take lines of the followed run, or the reason why no more come. A stored run is shown once complete; else the stage stays and says why. @param {string} text */
  more(control, text, why = "") {
    const { coming } = this.trace;
    if (why && control.mode === "recorded") {
      this.unfollow("");
      this.trace.coming = null;
      this.notice(decodeNotice({ error: why }));
      this.onChange();
      return;
    }
    if (this.name !== control.run) {
      this.restart(control.run);
      this.notice(coming && coming.run === control.run ? coming : control);
    }
    this.take(text);
    if (why) this.problem(why);
    this.onChange();
  }

  /** @param {string} text */
  static control(text) {
    try {
      const first = JSON.parse(text.slice(0, text.indexOf("\n") + 1 || text.length));
      return first && first.kind === "stage" ? decodeNotice(first) : null;
    } catch {
      return null;
    }
  }

  /** @param {string} text */
  take(text) {
    for (const line of text.split("\n")) if (line.trim() && !this.known(line)) this.line(line);
  }

  /** @param {string} text */
  line(text) {
    let record;
    try {
      record = JSON.parse(text);
    } catch {
      return this.problem("a line that is not JSON");
    }
    if (!record || typeof record !== "object") return undefined;
    if (record.kind === "stage") return this.notice(decodeNotice(record));
    const seq = Number.isInteger(record.seq) ? record.seq : this.next;
    if (seq < this.next) return undefined;
    if (seq > this.next) this.problem(`${seq - this.next} lines before line ${seq} never arrived`);
    this.trace.lines.push(text);
    this.use(record);
    this.next = seq + 1;
    return undefined;
  }

  /** Whether a line has been read before, by its number, without parsing the rest. @param {string} text */
  known(text) {
    const match = /^\{"v":\d+,"seq":(\d+),/.exec(text.slice(0, 40));
    return match !== null && Number(match[1]) < this.next && text.endsWith("}");
  }

  notice(line) {
    if (line.mode === "live" || line.mode === "recorded") this.trace.mode = line.mode;
    if (line.message || line.error) this.trace.notice = line;
    if (typeof line.baseline === "string") this.trace.baseline = line.baseline;
    if (typeof line.watch === "string") this.trace.watch = line.watch;
  }

  problem(what) {
    if (this.trace.problems.length < 20) this.trace.problems.push(what);
  }

  use(line) {
    const { trace } = this;
    if (line.kind === "run") trace.run = this.run(line);
    if (line.kind === "end") trace.end = decodeEnd(line);
    if (line.kind !== "step") return;
    try {
      const step = parseStep(line);
      const start = trace.ends.length ? trace.ends[trace.ends.length - 1] : 0;
      trace.steps.push(step);
      for (const status of STATUSES) if (step.counts[status]) trace.seen.add(status);
      trace.starts.push(start);
      trace.ends.push(start + step.total);
    } catch (error) {
      this.problem(`a step that cannot be drawn (${Object(error).message})`);
    }
  }

  /** The run line, made safe to read. A picture larger than any page can show is left out, with a message. */
  run(line) {
    const run = decodeRun(line);
    const [rows, columns] = run.grid || [0, 0];
    const drawn = rows > 0 && columns > 0 && rows * columns <= MOST_CODES;
    if (rows * columns > MOST_CODES) this.problem(`a picture of ${rows} × ${columns} codes, which is more than a page can draw`);
    return { ...run, grid: drawn ? run.grid : null };
  }
}

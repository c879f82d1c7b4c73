// Follows an append-only text of trace lines: keeps what it has read, asks for lines it missed, starts anew on a new run.
//
// The text may begin with a control line {"kind":"stage","mode":"live"|"recorded","run":ID,"first":SEQ} and hold more of
// them ("message", "fraction", "error") before the run line. A text that does not start with the one before it is a new
// run, unless its control line names the same run: then it is the next segment of a long one. Lines of a live run may
// reach it a second way, by `tail(run, from, take)`, which returns what ends it; whichever comes first counts.
import * as coerce from "../kit/coerce.js";
import { STATUSES, parseStep } from "./parseStep.js";

const MOST_CODES = 65536; // of one picture; those of today's models have a few thousand at most

export class Feed {
  constructor({ onReset, onChange, fetchRange = null, mode = "recorded" }) {
    Object.assign(this, { onReset, onChange, fetchRange, mode, tail: null, leave: null });
    this.clear("");
  }

  clear(name) {
    if (this.leave) this.leave();
    this.leave = null;
    Object.assign(this, { name, text: "", read: 0, next: 0, asked: -1, early: new Map() });
    this.age = (this.age || 0) + 1; // replies to questions asked before a reset are recognised by it
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

  /** Take the whole text as it is now. */
  accept(text) {
    if (typeof text !== "string") return;
    const { coming } = this.trace;
    this.trace.coming = this.announced(text);
    if (this.trace.coming || text === this.text) {
      if (coming !== this.trace.coming) this.onChange();
      return;
    }
    if (this.text === "" || !text.startsWith(this.text)) this.restart(text);
    this.text = text;
    this.drain();
    this.onChange();
    this.follow();
  }

  /** The newest word on another live run, until that has lines: what is on the stage stays there meanwhile. */
  announced(text) {
    const last = text.trimEnd().split("\n").at(-1);
    const control = Feed.control(last);
    const waits = control && control.mode === "live" && control.run !== this.name && this.trace.steps.length;
    return waits && !text.includes('"seq":') ? control : null;
  }

  /** Once a live run has begun, take its lines as they are written. */
  follow() {
    if (!this.tail || this.leave || this.trace.mode !== "live" || !this.name || !this.next || this.trace.end) return;
    this.leave = this.tail(this.name, this.next, (text) => this.more(text)) || null;
  }

  /** Lines that came by the tail. */
  more(text) {
    for (const line of text.split("\n")) this.line(line, true);
    this.onChange();
  }

  restart(text) {
    const control = Feed.control(text);
    if (control && control.run && control.run === this.name) {
      this.read = 0;
      return;
    }
    this.clear(control && control.run ? String(control.run) : "");
    this.onReset();
  }

  static control(text) {
    try {
      const first = JSON.parse(text.slice(0, text.indexOf("\n") + 1 || text.length));
      return first && first.kind === "stage" ? first : null;
    } catch {
      return null;
    }
  }

  /** Read the complete lines that have not been read. A last line without its line end counts once it is whole JSON. */
  drain() {
    let from = this.read;
    for (let to = this.text.indexOf("\n", from); to >= 0; to = this.text.indexOf("\n", from)) {
      this.line(this.text.slice(from, to), true);
      from = to + 1;
    }
    const tail = this.text.slice(from);
    if (tail.trim() && this.line(tail, false)) from = this.text.length;
    this.read = from;
  }

  line(text, whole) {
    if (!text.trim() || this.known(text)) return true;
    let record;
    try {
      record = JSON.parse(text);
    } catch {
      if (whole) this.problem("a line that is not JSON");
      return whole;
    }
    if (!record || typeof record !== "object") return true;
    record.source = text;
    this.place(record);
    return true;
  }

  /** A line that has been read, told by its number without parsing the rest. */
  known(text) {
    const match = /^\{"v":\d+,"seq":(\d+),/.exec(text.slice(0, 40));
    return Boolean(match) && Number(match[1]) < this.next && text.endsWith("}");
  }

  /** Put a line where its number says. Early lines wait while the missing ones are asked for. */
  place(line) {
    if (line.kind === "stage") return this.notice(line);
    const seq = Number.isInteger(line.seq) ? line.seq : this.next;
    if (seq < this.next) return undefined;
    if (seq > this.next && this.missing(seq)) return void this.early.set(seq, line);
    this.use(line);
    this.next = seq + 1;
    while (this.early.has(this.next)) {
      const waiting = this.early.get(this.next);
      this.early.delete(this.next);
      this.use(waiting);
      this.next += 1;
    }
    return undefined;
  }

  /** True when the lines before `seq` can be waited for. */
  missing(seq) {
    if (!this.fetchRange || !this.name) {
      this.problem(`${seq - this.next} lines before line ${seq} never arrived`);
      return false;
    }
    this.ask(this.early.size ? Math.min(seq, ...this.early.keys()) : seq);
    return true;
  }

  ask(until) {
    if (this.asked === this.next) return;
    this.asked = this.next;
    const { age, next } = this;
    Promise.resolve(this.fetchRange(this.name, next, until))
      .then((text) => this.age === age && this.answer(String(text || ""), next, until))
      .catch(() => this.age === age && this.skip(until));
  }

  answer(text, start, until) {
    for (const line of text.split("\n")) this.line(line, true);
    if (this.next === start) return this.skip(until);
    if (this.early.size) this.ask(Math.min(...this.early.keys()));
    return this.onChange();
  }

  /** The missing lines cannot be had: say so and go on with what there is. */
  skip(until) {
    this.problem(`lines ${this.next} to ${until - 1} could not be fetched`);
    const waiting = [...this.early.keys()].sort((a, b) => a - b).map((seq) => [seq, this.early.get(seq)]);
    this.early.clear();
    this.next = until;
    for (const [, line] of waiting) this.place(line);
    this.onChange();
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
    trace.lines.push(line.source);
    if (line.kind === "run") trace.run = this.run(line);
    if (line.kind === "end") trace.end = line;
    if (line.kind !== "step") return;
    try {
      const step = parseStep(line);
      const start = trace.ends.length ? trace.ends[trace.ends.length - 1] : 0;
      trace.steps.push(step);
      for (const status of STATUSES) if (step.counts[status]) trace.seen.add(status);
      trace.starts.push(start);
      trace.ends.push(start + step.total);
    } catch (error) {
      this.problem(`a step that cannot be drawn (${error.message})`);
    }
  }

  /** The run line made safe to read. A picture larger than any page can show is left out, and said so. */
  run(line) {
    const grid = coerce.list(line.grid);
    const size = grid.length === 2 && grid.every((side) => Number.isInteger(side) && side > 0) ? grid[0] * grid[1] : 0;
    if (size > MOST_CODES) this.problem(`a picture of ${grid[0]} × ${grid[1]} codes, which is more than a page can draw`);
    const pieces = coerce.list(line.prompt_pieces).map(coerce.text);
    return {
      ...line,
      grid: size && size <= MOST_CODES ? grid : null,
      prompt_pieces: pieces,
      warnings: coerce.list(line.warnings).map(coerce.text),
      prompt: coerce.text(line.prompt),
    };
  }
}

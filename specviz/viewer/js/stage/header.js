// @ts-check
// The head of the stage: what ran, on what, how exact, and prominently, whatever went wrong.
import { PAPERS } from "../generated.js";
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as verdict from "../run/verdict.js";

export class Header {
  /** @param {Stage} stage */
  constructor(stage) {
    this.stage = stage;
    this.title = dom.h("b", { class: "sv-title" });
    this.prompt = dom.h("span", { class: "sv-prompt" });
    this.facts = dom.h("div", { class: "sv-facts" });
    this.about = dom.h("details", { class: "sv-run-details" }, dom.h("summary", {}, this.title, this.prompt), this.facts);
    this.badges = dom.h("div", { class: "sv-badges" });
    this.banners = dom.h("div", { class: "sv-banners", role: "status" });
    stage.root.append(dom.h("header", { class: "sv-head" }, this.about, this.badges), this.banners);
  }

  /** @param {Set<string>} changed */
  update(changed) {
    if (["run", "data", "size"].some((part) => changed.has(part))) {
      const { run, mode, end, problems, notice, steps } = this.stage.trace;
      this.promise = run ? verdict.promise(this.stage.trace) : "";
      const key = [run, mode, end, problems.length, notice, steps.length > 0, this.promise, this.stage.size];
      if (this.key && key.every((part, place) => part === this.key[place])) return;
      this.key = key;
      this.draw();
    }
  }

  draw() {
    const { trace } = this.stage;
    const { run } = trace;
    this.about.hidden = !run;
    this.badges.replaceChildren(...(run ? this.badgeList(trace, run) : []));
    // On a phone the badges are one row that scrolls, which a keyboard reaches too: by the link in it or as a whole.
    if (this.stage.size === "phone" && !this.badges.querySelector("a")) this.badges.tabIndex = 0;
    else this.badges.removeAttribute("tabindex");
    this.banners.replaceChildren(
      ...Header.messages(trace).map(([kind, text]) => dom.h("p", { class: `sv-banner sv-${kind}` }, text)),
    );
    if (!run) return;
    dom.say(this.title, run.title || run.method || "run");
    dom.say(this.prompt, format.short(run.prompt.replace(/\s+/g, " "), 160));
    this.facts.replaceChildren(dom.h("p", { class: "sv-full-prompt" }, run.prompt), Header.table(run, trace.end));
  }

  /** @param {Recording} trace @param {Trace.Run} run */
  badgeList(trace, run) {
    const badge = (text, kind, title) => dom.h("span", { class: `sv-badge ${kind}`, title }, text);
    const [words, kind, title] = this.exactness(trace, run);
    // A sandboxed frame, as of embed code, may open no page.
    const number = globalThis.origin === "null" && window.parent !== window ? "" : PAPERS[run.method.replace(/^vllm_/, "")];
    const paper = { class: "sv-badge sv-paper", href: "https://arxiv.org/abs/" + number, target: "_blank", rel: "noopener noreferrer", title: `The paper of ${run.title}: arXiv ${number}`, "aria-label": `arXiv ${number}` };
    return [
      ...(number ? [dom.h("a", paper, "arXiv")] : []),
      badge(
        trace.mode === "live" ? "live" : "recorded",
        this.stage.running ? "sv-live" : "",
        trace.mode === "live"
          ? "Computed for you, on this server"
          : `Recorded ${run.recorded_at || "earlier"} and played back`,
      ),
      badge(
        [run.target, run.dtype, run.device, run.tier].filter(Boolean).join(" · "),
        "",
        "target · number format · device · tier",
      ),
      badge(words, kind, title),
      ...Header.busy(trace.end),
    ];
  }

  /** A chip if other programs kept the run waiting; pointing at it or opening it shows the reason. */
  static busy(end) {
    const why = end ? end.busy : "";
    if (!why) return [];
    return [
      dom.h(
        "details",
        { class: "sv-badge sv-busy", title: why },
        dom.h("summary", {}, "busy machine"),
        dom.h("p", {}, why),
      ),
    ];
  }

  /** How exact the run is and was: text, class and title of its badge. @param {Recording} trace @param {Trace.Run} run */
  exactness(trace, run) {
    if (this.promise === "relaxed") {
      // The whole first clause of the bound: cut in the middle it would mean nothing.
      const [clause] = run.bound.split(/[,:;.]\s/, 1);
      return [clause ? `relaxed · ${clause}` : "relaxed", "sv-relaxed", run.bound || "The output distribution differs from the target's own"];
    }
    if (this.promise === "distribution") return ["exact in distribution", "sv-exact", "The output follows the target's own distribution"];
    const parts = verdict.parting(trace);
    const why = `in ${run.dtype || "few digits"} a pass over many tokens rounds differently from one over a single token`;
    if (parts) return [`exact in ${verdict.finer(run.dtype)} · diverges ${parts}`, "sv-exact", `The rule keeps only the target's own choice, but ${why}: the text differs from plain decoding's ${parts}`];
    const bound = run.exactness === "relaxed" ? ` ${run.bound}` : "";
    const beside = trace.end && trace.end.baseline ? "Token for token the text that plain decoding wrote beside it." : "Every token is the target's own choice.";
    return ["exact", "sv-exact", beside + bound];
  }

  /** @param {Recording} trace */
  static messages(trace) {
    const messages = [];
    const { end, notice, run, problems } = trace;
    if (notice && notice.error) messages.push(["error", notice.error]);
    if (end) messages.push(...Header.ending(trace, end));
    for (const warning of run ? run.warnings : []) messages.push(["warning", warning]);
    if (problems.length)
      messages.push([
        "warning",
        `This trace could not be read completely: ${problems.slice(0, 3).join("; ")}${problems.length > 3 ? "; …" : ""}.`,
      ]);
    return messages;
  }

  /** @param {Recording} trace */
  static ending(trace, end) {
    const remainder = trace.steps.length
      ? ` The ${format.count(trace.steps.length, "step")} up to there are kept and can be replayed.`
      : "";
    const more = end.message ? " " + end.message : "";
    if (end.reason === "error") return [["error", `The run failed.${more}${remainder}`]];
    if (end.reason === "out_of_memory") return [["error", `The device ran out of memory.${more}${remainder}`]];
    if (end.reason === "time_limit") return [["note", `The run reached its time limit.${more}${remainder}`]];
    if (end.reason === "cancelled") return [["note", `The run was stopped.${more}${remainder}`]];
    return end.message ? [["note", end.message]] : [];
  }

  /** @param {Trace.Run} run @param {Trace.End | null} end */
  static table(run, end) {
    const { sampling } = run;
    const how =
      sampling.temperature > 0
        ? `temperature ${sampling.temperature}, top-k ${sampling.top_k || "all"}, top-p ${sampling.top_p}`
        : "greedy";
    const rows = [
      ["method", run.method],
      [
        "parameters",
        Object.entries(run.parameters)
          .map(([name, value]) => `${name} ${value}`)
          .join(" · "),
      ],
      ["target", run.target],
      ["draft", run.draft],
      ["sampling", `${how} · seed ${sampling.seed}`],
      ["earlier runs remembered", sampling.generation || ""],
      ["token budget", run.max_new_tokens],
      ["chat template", run.chat_template ? "yes" : "no"],
      ["machine", run.machine],
      ["device", [run.device, run.dtype, run.tier].filter(Boolean).join(" · ")],
      ["captured", end && end.captures ? `${format.count(end.captures, "CUDA graph")} in ${format.time(end.capture_ns)}` : ""],
      ["memory in use", end && end.memory ? `${(end.memory / 1e9).toFixed(2)} GB` : ""],
      ["bound", run.bound],
      [
        "libraries",
        Object.entries(run.libraries)
          .map(([name, value]) => `${name} ${value}`)
          .join(" · "),
      ],
      ["recorded", run.recorded_at],
    ];
    const filled = rows.filter(([, value]) => value !== "");
    return dom.h(
      "dl",
      {},
      filled.map(([name, value]) => [dom.h("dt", {}, name), dom.h("dd", {}, value)]),
    );
  }
}

// @ts-check
// Prompt lookup: where the last tokens were seen before, and what was copied from there.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as noteRegistry from "../kit/noteRegistry.js";

noteRegistry.register("copy", {
  title: "Copied from",
  /** @param {Trace.CopyNote} note @param {Step} step @param {Stage} stage */
  draw(note, step, stage) {
    const { suffix_start: start, suffix_length: length, source, length: copied } = note;
    if (!copied)
      return dom.h(
        "p",
        {},
        "The last tokens occur nowhere else in the text, so there is nothing to copy: the target adds one token of its own.",
      );
    const context = noteRegistry.contextOf(stage, step);
    const matchStart = source - length;
    const accepted = new Set(step.path.map((_, place) => place));
    const marks = (place) => {
      if (place >= matchStart && place < source) return "sv-match";
      if (place >= source && place < source + copied)
        return accepted.has(place - source)
          ? "sv-is-accepted"
          : place - source === step.path.length && !step.veiled
            ? "sv-is-rejected"
            : "sv-is-skipped";
      return "";
    };
    const ending = (place) => (place >= start && place < start + length ? "sv-match" : "");
    const earlier = excerpt(context, matchStart - 8, source + copied + 4, marks, "Earlier in the text");
    const now = excerpt(context, start - 8, start + length, ending, "Where the text is now");
    const summary =
      `The last ${format.count(length, "token")}, ${format.quote(context.slice(start, start + length).join(""))}, ` +
      `occurred earlier in the text. What followed there, ${format.count(copied, "token")}, became the draft` +
      (step.veiled ? "." : `; the target kept ${step.counts.kept}.`);
    return dom.h("div", {}, arrows(earlier, now, stage), dom.h("p", { class: "sv-explanation" }, summary));
  },
});

/** @param {string} name */
function excerpt(context, from, to, mark, name) {
  const first = Math.max(0, from),
    last = Math.min(context.length, to);
  const tokens = context
    .slice(first, last)
    .map((piece, index) => dom.h("span", { class: `sv-token ${mark(first + index)}` }, format.plain(piece)));
  return dom.h(
    "figure",
    { class: "sv-excerpt" },
    dom.h("figcaption", {}, `${name} · tokens ${first}–${last - 1}`),
    dom.h("div", { class: "sv-quote" }, first > 0 ? "… " : "", tokens, last < context.length ? " …" : ""),
  );
}

/** The two excerpts with an arrow in their margin, from the suffix up to its earlier occurrence. */
function arrows(earlier, now, stage) {
  const path = dom.s("path", { class: "sv-arrow" });
  const head = dom.s("path", { class: "sv-arrowhead" });
  const overlay = dom.s("svg", { class: "sv-overlay", "aria-hidden": "true" }, path, head);
  const box = dom.h("div", { class: "sv-copy" }, earlier, now, overlay);
  stage.settling = () => {
    const frame = box.getBoundingClientRect();
    const height = (figure) => {
      const mark = figure.querySelector(".sv-match");
      const lines = mark ? [...mark.getClientRects()].sort((a, b) => b.width - a.width) : [];
      return lines.length ? lines[0].top + lines[0].height / 2 - frame.top : null;
    };
    const up = height(earlier);
    const down = height(now);
    if (up === null || down === null || !frame.width) return;
    path.setAttribute("d", `M1 ${down}C-11 ${down} -11 ${up} -1 ${up}`);
    head.setAttribute("d", `M-3 ${up - 4}L5 ${up}L-3 ${up + 4}Z`);
  };
  return box;
}

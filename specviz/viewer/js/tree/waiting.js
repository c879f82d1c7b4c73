// @ts-check
// Messages in the tree's place before a run has a step, and over the tree while another run is still to come.
import * as dom from "../kit/dom.js";

/** Fill the boxes `empty` and `coming` for this trace; each is hidden when it has nothing to say. */
export function waiting({ run, end, notice, steps, coming: next }, empty, coming) {
  empty.hidden = steps.length > 0;
  coming.hidden = !next;
  coming.replaceChildren(...word(next));
  if (steps.length) return;
  const busy = run ? !end && { message: "The target is reading the prompt (prefill)…", fraction: null } : notice && !notice.error && notice;
  const idle = end
    ? "The run ended before its first step."
    : notice
      ? "There is nothing to draw yet."
      : "No run yet. Open a recorded run, or choose a method and press Run live.";
  empty.replaceChildren(...(busy ? word(busy) : [dom.h("p", {}, idle)]));
}

/** Progress of a run that has no step yet. @param {{ message: string, fraction: number | null } | null} notice */
function word(notice) {
  if (!notice) return [];
  const part = notice.fraction === null ? null : Math.max(0, Math.min(1, notice.fraction));
  const text = notice.message + (part === null ? "" : ` · ${Math.round(100 * part)} %`);
  const bar = part === null ? [] : [dom.h("progress", { max: 1, value: part, "aria-label": text })];
  return [dom.h("span", { class: "sv-spinner", "aria-hidden": "true" }), dom.h("p", {}, text), ...bar];
}

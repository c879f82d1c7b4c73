// @ts-check
// Where to look first: at which step a recorded run opens, and which of a step's nodes is explained.

/** @param {Step} step */
const relaxed = (step) => step.path.filter((id) => step.nodes[id].status === "relaxed");

/** A relaxed run opens at the first step that relaxes most, any other at its beginning. */
export function opening({ run, steps }) {
  const counts = run && run.exactness === "relaxed" ? steps.map((step) => relaxed(step).length) : [0];
  return Math.max(0, counts.indexOf(Math.max(...counts)));
}

/** Whether the stage shows the text in chunks, in the tree's place or on a phone below it: on demand, and first on a phone, unless a lesson or a pair asks about the tree. @param {Stage} stage */
export function reads({ reading, table, size, options, trace }) {
  const kind = trace.run ? trace.run.modality : "image";
  const first = size === "phone" && options.autoplay !== false;
  return !table && (reading ?? first) && kind !== "image";
}

/** The last node that a relaxed rule alone kept, else the last one kept, else the token that ended the step. @param {Step} step */
export function nodeToExplain(step) {
  if (!step) return null;
  return relaxed(step).at(-1) ?? step.path.at(-1) ?? (step.bonus ? "bonus" : 0);
}

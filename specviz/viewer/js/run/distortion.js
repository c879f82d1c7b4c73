// @ts-check
// What relaxation has cost so far: the mass that kept codes took from their nearest latent codes, and the bound on it.
import { noteOf } from "./decode.js";

/** Largest number of guesses that were judged at one position of this step. @param {Step} step */
function siblings(step, rows) {
  const many = new Map();
  for (const row of rows) {
    const node = step.nodes[row.node];
    if (node) many.set(node.parent, (many.get(node.parent) || 0) + 1);
  }
  return Math.max(0, ...many.values());
}

/** How far the distribution of a code can have moved, in total variation: proven above temperature 0, for the exact residual. */
function bound(note, most, sampled) {
  if (note.form !== "exact" || !sampled) return null;
  if (note.delta !== null) return 1 - (1 - note.delta) ** most;
  return note.factor === null ? null : 1 - 1 / note.factor;
}

/**
 * `mean`: mass taken over by kept latent codes, per code drawn so far. `bound`: the most that one code's distribution can have
 * moved, null if nothing is proven. `pooled`: mean mass of kept codes and their nearest latent codes, of local verification.
 * @param {Recording} trace @param {number} cursor
 */
export function until(trace, cursor) {
  let moved = 0,
    emitted = 0,
    most = 0,
    last = null,
    sampled = false;
  const pooled = [];
  for (const step of trace.steps.slice(0, cursor + 1)) {
    emitted += step.emitted.length;
    const local = noteOf(step, "local_verification");
    if (local) for (const id of step.path) if (step.nodes[id].status !== "resampled") pooled.push(local.mass[id - 1] || 0);
    const relaxedNote = noteOf(step, "relaxed");
    if (!relaxedNote) continue;
    last = relaxedNote;
    const rows = relaxedNote.nodes;
    most = Math.max(most, siblings(step, rows));
    for (const row of rows) {
      const node = step.nodes[row.node];
      sampled = sampled || Boolean(node && node.draw !== null);
      if (node && node.status === "relaxed") moved += row.moved;
    }
  }
  if (!emitted || (!last && !pooled.length)) return null;
  const mean = pooled.reduce((sum, share) => sum + share, 0) / pooled.length;
  return last ? { mean: moved / emitted, bound: bound(last, most, sampled) } : { pooled: mean };
}

export function sentence(spent) {
  if ("pooled" in spent) return `a kept code and its nearest latent codes hold ${spent.pooled.toFixed(2)} of the target's probability on average`;
  const moved = spent.bound === null ? "no bound is proven here" : `no code's distribution moved by more than ${spent.bound.toFixed(2)}`;
  const share = spent.mean ? `on average ${spent.mean.toPrecision(2)} of` : "no";
  return `a code took ${share} probability from its nearest latent codes; ${moved}`;
}

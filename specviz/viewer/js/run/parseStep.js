// Reads one wire line of kind "step" into what the panels need; refuses a line that breaks the format.
import { list, number, text } from "../kit/coerce.js";
import { MAX_PRUNED } from "../generated.js";

export const STATUSES = ["root", "accepted", "relaxed", "rejected", "skipped", "pruned", "resampled"];
export const JUDGED = new Set(["accepted", "relaxed", "rejected", "resampled"]);
export const FAILED = new Set(["rejected", "resampled"]);
export const PHASES = ["draft", "verify", "judge", "commit", "host"];
const MOST_NODES = 20000;

function node(raw, id, before) {
  const [parent, token, word, q, p, status, threshold, draw, grid] = list(raw);
  const root = id === 0;
  if (!Number.isInteger(parent) || (root ? parent !== -1 : parent < 0 || parent >= id)) {
    throw new Error(`node ${id} has parent ${parent}`);
  }
  const up = root ? null : before[parent];
  const parsed = {
    id,
    parent,
    token,
    text: text(word),
    q: number(q),
    p: number(p),
    status: root ? "root" : STATUSES.includes(status) ? status : "skipped",
    threshold: number(threshold),
    draw: number(draw),
    grid: Array.isArray(grid) ? grid : null,
    depth: root ? 0 : up.depth + 1,
    children: [],
    rank: root ? 0 : up.children.length,
  };
  if (up) up.children.push(id);
  return parsed;
}

function bonus(raw, nodes) {
  if (!Array.isArray(raw)) return null;
  const [parent, token, word, p, source, grid] = raw;
  if (!Number.isInteger(parent) || parent < 0 || parent >= nodes.length) throw new Error("the bonus hangs nowhere");
  return {
    id: "bonus",
    parent,
    token,
    text: text(word),
    p: number(p),
    source: source || "target",
    status: "bonus",
    grid: Array.isArray(grid) ? grid : null,
    depth: nodes[parent].depth + 1,
    children: [],
  };
}

/** How each emitted token came to be: the node it was drafted as, or the bonus. */
function origins(step) {
  return step.emitted.map((_, place) => {
    const id = step.path[place];
    return id === undefined ? { kind: "bonus", id: "bonus" } : { kind: step.nodes[id].status, id };
  });
}

function counts(step) {
  const counted = Object.fromEntries(STATUSES.map((status) => [status, 0]));
  for (const entry of step.nodes) counted[entry.status] += 1;
  // Of what was pruned only the best travel as nodes; a note of the growth counts all candidates. Old files may lack it.
  const considered = Math.max(0, ...step.notes.map((note) => number(note.considered) || 0));
  counted.sent = step.nodes.length - 1 - counted.pruned;
  counted.cut = Math.max(counted.pruned, considered - counted.sent);
  counted.more = !considered && counted.pruned >= MAX_PRUNED ? " or more" : "";
  counted.drafted = counted.sent + counted.cut;
  const written = step.path.slice(0, step.emitted.length);
  counted.kept = written.filter((id) => step.nodes[id].status !== "resampled").length;
  return counted;
}

/** Where the walk ended: the last accepted node, else the root. */
const last = (step) => step.nodes[step.bonus ? step.bonus.parent : step.path[step.path.length - 1] || 0];

function rows(raw) {
  return new Map(
    list(raw).map(([at, top]) => [
      at,
      list(top).map(([token, word, p]) => ({ token, text: text(word), p: number(p) })),
    ]),
  );
}

/** A step line as an object, or an Error that says what is wrong with it. */
export function parseStep(raw) {
  if (list(raw.nodes).length > MOST_NODES) throw new Error("a tree of more than 20 000 nodes");
  const nodes = [];
  list(raw.nodes).forEach((fields, id) => nodes.push(node(fields, id, nodes)));
  if (!nodes.length) throw new Error("a step without a root");
  const times = PHASES.map((_, place) => Math.max(0, number(list(raw.time)[place]) || 0));
  const step = {
    index: number(raw.index) || 0,
    position: number(raw.position) || 0,
    nodes,
    path: list(raw.path).filter((id) => Number.isInteger(id) && id > 0 && id < nodes.length),
    emitted: list(raw.emitted),
    pieces: list(raw.pieces).map(text),
    rule: text(raw.rule) || "none",
    certain: raw.certain === true,
    times,
    total: times.reduce((sum, ns) => sum + ns, 0),
    cut: raw.cut || null,
    calls: number(raw.draft_calls) || 0,
    verified: number(raw.verified) || 0,
    padded: number(raw.padded) || 1,
    rows: rows(raw.rows),
    notes: list(raw.notes).filter((note) => note && typeof note === "object"),
  };
  step.bonus = bonus(raw.bonus, nodes);
  step.origins = origins(step);
  step.counts = counts(step);
  step.end = last(step);
  // A step whose verdict is kept back, as a lesson does before its reveal.
  step.veiled = !step.bonus && !step.emitted.length;
  // The target overruled the draft: it had children to choose from where the walk ended, and took none of them.
  step.overruled = Boolean(step.bonus) && step.end.children.some((id) => FAILED.has(step.nodes[id].status));
  return step;
}

/** Node or bonus by its id in this step, or null. */
export const findNode = (step, id) => (id === "bonus" ? step.bonus : step.nodes[id] || null);

/**
 * What a rule that weighs p against q really set against each other at this node: `q` 1 for a guess that was chosen, and
 * under relaxed acceptance what earlier guesses in the same place had left of both. Null where nothing was weighed.
 */
export function weigh(step, node) {
  if (node.p === null || node.status === "pruned") return null;
  if (step.rule === "relaxed") {
    const note = step.notes.find(({ type }) => type === "relaxed");
    const row = note && list(note.nodes).find((entry) => entry && entry.node === node.id);
    if (!row || number(row.p) === null) return null;
    return { p: row.p, q: number(row.q) === null ? 1 : row.q, left: node.rank > 0 };
  }
  if (step.rule !== "ratio" && node.rank > 0) return null; // what earlier guesses left is not in the record
  return { p: node.p, q: step.certain || node.q === null ? 1 : node.q, left: false };
}

/** The children of `node` that the target was asked about. */
export const sentChildren = (step, node) => node.children.filter((id) => step.nodes[id].status !== "pruned");

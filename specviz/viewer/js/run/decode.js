// @ts-check
// Decodes a line's content, once: records and notes must match trace.d.ts, and a step becomes what the panels need. Invalid data
// gets no further than here: a record is completed, a step that breaks the format is refused.
import { MAX_PRUNED, SHAPES } from "../generated.js";

export const STATUSES = ["root", "accepted", "relaxed", "rejected", "skipped", "pruned", "resampled"];
export const JUDGED = new Set(["accepted", "relaxed", "rejected", "resampled"]);
export const FAILED = new Set(["rejected", "resampled"]);
export const PHASES = ["draft", "verify", "judge", "commit", "host"];
const MOST_NODES = 20000;

/** @type {Record<string, (value: any) => boolean>} */
const LEAVES = {
  integer: Number.isSafeInteger,
  number: Number.isFinite,
  string: (value) => typeof value === "string",
  boolean: (value) => typeof value === "boolean",
  null: (value) => value === null,
};
/** @type {Record<string, any>} */
const NOTHING = { integer: 0, number: 0, boolean: false };

/** The fields of each record, with their types in TypeScript's notation. @type {Record<string, string[][]>} */
const FIELDS = {};
for (const [name, shape] of Object.entries(SHAPES)) FIELDS[name] = shape.split(";").map((field) => field.split(":"));
/** @type {Record<string, string>} */
const NOTES = Object.fromEntries(FIELDS.Notes);

/** Matches a union and its last part, which may be a list, but not a list, tuple or record of a union. */
const UNION = /^(.+)\|([^|()<>[\]]+(?:\[\])*)$/;

/** The value if it is of this type, with complete records; else undefined. @param {string} type @param {any} value @param {boolean} patient */
function checked(type, value, patient) {
  if (type in LEAVES) return LEAVES[type](value) ? value : undefined;
  if (type in FIELDS) return isObject(value) ? record(type, value, patient) : undefined;
  const [, first, last] = type.match(UNION) || [];
  if (last) {
    const found = checked(first, value, patient);
    return found === undefined ? checked(last, value, patient) : found;
  }
  if (type.endsWith("[]")) return list(value, type.slice(0, -2).replace(/^\(|\)$/g, ""), patient);
  if (type.endsWith("]")) {
    const parts = type.slice(1, -1).split(",");
    return Array.isArray(value) && value.length === parts.length && parts.every((part, at) => LEAVES[part](value[at])) ? value : undefined;
  }
  if (type.endsWith(">")) return isObject(value) && list(Object.values(value), type.slice("Record<string,".length, -1), patient) ? value : undefined;
  return type === `"${value}"` ? value : undefined;
}

/** @param {any} value @param {string} type @param {boolean} patient */
function list(value, type, patient) {
  if (!Array.isArray(value)) return undefined;
  if (type in LEAVES) return value.every(LEAVES[type]) ? value : undefined;
  const whole = value.map((entry) => checked(type, entry, patient));
  return whole.includes(undefined) ? undefined : whole;
}

/** @param {any} value */
const isObject = (value) => Boolean(value) && typeof value === "object" && !Array.isArray(value);

/**
 * A record with every field. An invalid value becomes null where null is allowed, a missing list or text becomes empty. If
 * that is not enough, the record is undefined, but a `patient` caller gets zeros and empty texts.
 * @param {string} name @param {any} value @param {boolean} patient
 */
function record(name, value, patient) {
  const whole = { ...value };
  for (const [field, type] of FIELDS[name]) {
    const given = value[field];
    whole[field] = checked(type, given, patient);
    if (whole[field] !== undefined) continue;
    if (!patient && !type.endsWith("|null") && (given !== undefined || !/^string$|\[\]$/.test(type))) return undefined;
    whole[field] = nothing(type);
  }
  return whole;
}

/** @param {string} type */
function nothing(type) {
  if (type.endsWith("|null")) return null;
  if (type.endsWith("]")) return [];
  if (type.endsWith(">")) return {};
  return type in FIELDS ? record(type, {}, true) : NOTHING[type] ?? "";
}

/** @param {any} value */
const text = (value) => (typeof value === "string" ? value : value === null || value === undefined ? "" : String(value));

/** @param {any} value @returns {number | null} */
const number = (value) => (Number.isFinite(value) ? value : null);

/** What a control line says about a run. @param {any} line @returns {Notice} */
export const decodeNotice = (line) => ({
  ...line,
  run: text(line.run),
  message: text(line.message),
  error: text(line.error),
  fraction: number(line.fraction),
});

/** @param {any} line @returns {Trace.Run} */
export const decodeRun = (line) => record("Run", line, true);

/** @param {any} line @returns {Trace.End} */
export const decodeEnd = (line) => record("End", line, true);

/**
 * A note of a known type with its fields, or of another type unchanged. One that does not match its type gets no type, and is
 * kept as received under `source`. @param {any} note @returns {Note}
 */
function decodeNote(note) {
  const kind = Object.hasOwn(NOTES, note.type) && NOTES[note.type];
  return kind ? record(kind, note, false) || { type: null, source: note } : { ...note, type: text(note.type) };
}

/** @param {any} value @returns {any[]} */
const array = (value) => (Array.isArray(value) ? value : []);

/** Row and column in a picture. @param {any} grid @returns {number[] | null} */
const cell = (grid) => (array(grid).length === 2 && grid.every(Number.isInteger) ? grid : null);

/** @param {any} raw @param {number} id @param {TreeNode[]} before @returns {TreeNode} */
function node(raw, id, before) {
  const [parent, token, word, q, p, status, threshold, draw, grid] = array(raw);
  const root = id === 0;
  if (!Number.isInteger(parent) || (root ? parent !== -1 : parent < 0 || parent >= id)) {
    throw new Error(`node ${id} has parent ${parent}`);
  }
  const up = before[parent];
  const parsed = {
    id,
    parent,
    token: number(token) ?? -1,
    text: text(word),
    q: number(q),
    p: number(p),
    status: root ? "root" : STATUSES.includes(status) ? status : "skipped",
    threshold: number(threshold),
    draw: number(draw),
    grid: cell(grid),
    depth: up ? up.depth + 1 : 0,
    children: [],
    rank: up ? up.children.length : 0,
    source: "",
  };
  if (up) up.children.push(id);
  return parsed;
}

/** @param {TreeNode[]} nodes @returns {Bonus | null} */
function bonus(raw, nodes) {
  if (!Array.isArray(raw)) return null;
  const [parent, token, word, p, source, grid] = raw;
  if (!Number.isInteger(parent) || parent < 0 || parent >= nodes.length) throw new Error("the bonus has no parent");
  return {
    id: "bonus",
    parent,
    token: number(token) ?? -1,
    text: text(word),
    q: null,
    p: number(p),
    threshold: null,
    draw: null,
    rank: 0,
    source: text(source) || "target",
    status: "bonus",
    grid: cell(grid),
    depth: nodes[parent].depth + 1,
    children: [],
  };
}

/** How each emitted token came to be: the node it was drafted as, or the bonus. @param {Step} step */
function origins(step) {
  return step.emitted.map((_, place) => {
    const id = step.path[place];
    return id === undefined ? { kind: "bonus", id: "bonus" } : { kind: step.nodes[id].status, id };
  });
}

/** Number of the draft's candidates from a note on its growth, which may exceed the nodes in the trace; 0 without a note. @param {Step} step */
const considered = ({ notes }) => Math.max(0, ...notes.map((note) => ("considered" in note && number(note.considered)) || 0));

/** @param {Step} step @returns {Counts} */
function counts(step) {
  /** @type {any} */
  const counted = Object.fromEntries(STATUSES.map((status) => [status, 0]));
  for (const entry of step.nodes) counted[entry.status] += 1;
  const candidates = considered(step);
  const named = step.nodes.length - 1 - counted.pruned;
  counted.sent = Math.max(named, step.verified); // a server may count draft tokens that it does not name
  counted.unnamed = counted.sent - named;
  counted.cut = Math.max(counted.pruned, candidates - counted.sent);
  counted.drafted = counted.sent + counted.cut;
  const written = step.path.slice(0, step.emitted.length);
  counted.kept = written.filter((id) => step.nodes[id].status !== "resampled").length;
  return counted;
}

/** Where the walk ended: the last accepted node, else the root. @param {Step} step */
const last = (step) => step.nodes[step.bonus ? step.bonus.parent : step.path[step.path.length - 1] || 0];

function rows(raw) {
  return new Map(
    array(raw).map(([at, top]) => [
      at,
      array(top).map(([token, word, p]) => ({ token: number(token) ?? -1, text: text(word), p: number(p) })),
    ]),
  );
}

/** A step line as an object, or an Error that says what is wrong with it. @param {any} raw @returns {Step} */
export function parseStep(raw) {
  if (array(raw.nodes).length > MOST_NODES) throw new Error("a tree of more than 20 000 nodes");
  const nodes = [];
  array(raw.nodes).forEach((fields, id) => nodes.push(node(fields, id, nodes)));
  if (!nodes.length) throw new Error("a step without a root");
  const times = PHASES.map((_, place) => Math.max(0, number(array(raw.time)[place]) || 0));
  /** @type {any} */
  const step = {
    index: number(raw.index) || 0,
    position: number(raw.position) || 0,
    nodes,
    path: array(raw.path).filter((id) => Number.isInteger(id) && id > 0 && id < nodes.length),
    emitted: array(raw.emitted).map((token) => number(token) ?? -1),
    pieces: array(raw.pieces).map(text),
    rule: text(raw.rule) || "none",
    certain: raw.certain === true,
    times,
    total: times.reduce((sum, ns) => sum + ns, 0),
    cut: text(raw.cut) || null,
    calls: number(raw.draft_calls) || 0,
    verified: number(raw.verified) || 0,
    padded: number(raw.padded) || 1,
    rows: rows(raw.rows),
    notes: array(raw.notes).filter((note) => note && typeof note === "object").map(decodeNote),
  };
  step.bonus = bonus(raw.bonus, nodes);
  step.origins = origins(step);
  step.counts = counts(step);
  step.end = last(step);
  // The trace has only the best of the pruned candidates as nodes, and old files may lack the note that counts all.
  step.more = !considered(step) && step.counts.pruned >= MAX_PRUNED ? " or more" : "";
  // A step whose verdict is withheld, as in a lesson before its reveal.
  step.veiled = !step.bonus && !step.emitted.length;
  // The target overruled the draft: it had children to choose from where the walk ended, and took none of them.
  const failed = step.end.children.some((id) => FAILED.has(step.nodes[id].status));
  step.overruled = Boolean(step.bonus) && (failed || step.notes.some((note) => "untold" in note && Number(note.untold) > 0));
  return step;
}

/**
 * The step's note of a type, or undefined.
 * @template {keyof Trace.Notes} K
 * @param {Step} step
 * @param {K} type
 * @returns {Trace.Notes[K] | undefined}
 */
export function noteOf({ notes }, type) {
  /** @type {any[]} */
  const any = notes;
  return any.find((note) => note.type === type);
}

/** Node or bonus by its id in this step, or null. @param {Step} step */
export const findNode = (step, id) => (id === "bonus" ? step.bonus : step.nodes[id] || null);

/**
 * The p and q that a ratio rule actually compared at this node: `q` is 1 for a guess that was chosen, and under relaxed
 * acceptance both are what earlier guesses at the same position left. Null if nothing was compared.
 * @param {Step} step @param {AnyNode} node
 */
export function weigh(step, node) {
  if (node.p === null || node.status === "pruned") return null;
  if (step.rule === "relaxed") {
    const note = noteOf(step, "relaxed");
    const row = note && note.nodes.find((entry) => entry.node === node.id);
    return row ? { p: row.p, q: row.q, left: node.rank > 0 } : null;
  }
  if (step.rule !== "ratio" && node.rank > 0) return null; // what earlier guesses left is not in the record
  return { p: node.p, q: step.certain || node.q === null ? 1 : node.q, left: false };
}

/** The children of `node` that were sent to the target. @param {Step} step @param {AnyNode} node */
export const sentChildren = (step, node) => node.children.filter((id) => step.nodes[id].status !== "pruned");

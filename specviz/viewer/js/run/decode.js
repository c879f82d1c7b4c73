// @ts-check
// Checks the content of a line, once: records and notes must match trace.d.ts. Invalid data gets no further than here.
import { SHAPES } from "../generated.js";

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
export const text = (value) => (typeof value === "string" ? value : value === null || value === undefined ? "" : String(value));

/** @param {any} value @returns {number | null} */
export const number = (value) => (Number.isFinite(value) ? value : null);

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
export function decodeNote(note) {
  const kind = Object.hasOwn(NOTES, note.type) && NOTES[note.type];
  return kind ? record(kind, note, false) || { type: null, source: note } : { ...note, type: text(note.type) };
}

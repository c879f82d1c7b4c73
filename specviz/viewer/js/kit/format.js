// @ts-check
// Formats token text and numbers for people to read. Text in, text out: no markup is ever made here.

const MARKS = { " ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍", "\u00a0": "⍽", "\u3000": "□" };
// Control, bidirectional-override and invisible characters: a hostile token must not reorder or hide its neighbours.
const ODD =
  /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
const OVERRIDES = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

const code = (char) => "\\u" + char.codePointAt(0).toString(16).padStart(4, "0");

/** Token text with its whitespace made visible, as nodes show it. @param {string} text */
export function visible(text) {
  if (text === "") return "∅";
  return text.replace(/[ \n\t\r\u00a0\u3000]/g, (char) => MARKS[char]).replace(ODD, code);
}

/** Text for the strip: unchanged, but unable to change the writing direction of the text after it. @param {string} text */
export const plain = (text) => text.replace(OVERRIDES, "");

/** At most `limit` characters, the cut marked. Never splits a surrogate pair. @param {string} text @param {number} limit */
export function short(text, limit) {
  const letters = text.length > limit ? Array.from(text) : null;
  return letters && letters.length > limit ? letters.slice(0, limit - 1).join("") + "…" : text;
}

/** @param {string} text */
export const token = (text, limit = 18) => short(visible(text), limit);
/** @param {string} text */
export const quote = (text) => "“" + token(text, 24) + "”";

/** A probability: at most four digits, and in words if these would wrongly round it to 0 or 1. @param {number | null | undefined} value */
export function probability(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0 || value === 1) return String(value);
  if (value > 0 && value < 0.00005) return "almost 0";
  if (value > 0.99995 && value < 1) return "almost 1";
  if (value < 0.001 || (value >= 0.995 && value < 1)) return value.toFixed(4);
  return value < 0.1 ? value.toPrecision(2) : value.toFixed(value > 10 ? 0 : 2);
}

/** Nanoseconds as µs, ms or s. @param {number} ns */
export function time(ns) {
  if (ns < 1e4) return (ns / 1e3).toFixed(1) + " µs";
  if (ns < 1e6) return Math.round(ns / 1e3) + " µs";
  if (ns < 1e9) return (ns / 1e6).toFixed(ns < 1e7 ? 2 : ns < 1e8 ? 1 : 0) + " ms";
  return (ns / 1e9).toFixed(2) + " s";
}

export const count = (number, noun, plural = noun + "s") => `${number} ${number === 1 ? noun : plural}`;

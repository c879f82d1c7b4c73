// Values of a trace line made safe to use: whatever a line holds, the drawings get a number, a list or a text.

export const number = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);
export const amount = (value) => number(value) || 0;
export const list = (value) => (Array.isArray(value) ? value : []);
export const numbers = (values) => list(values).map(number);
export const text = (value) =>
  typeof value === "string" ? value : value === null || value === undefined ? "" : String(value);

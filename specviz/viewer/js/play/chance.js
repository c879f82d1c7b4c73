// @ts-check
// The accept rules of specviz/acceptance over a handful of tokens. Everything is enumerated; only the throws at the end are drawn.

/** @typedef {number[]} Law A distribution: one probability a token. */
/** @typedef {{ token: number, share: number, limit: number, coin: number, kept: boolean, r: Law, q: Law }} Trial A drafted token and its coin. */

const ROUNDING = 1e-12;

/** @param {Law} law */
export const sum = (law) => law.reduce((total, one) => total + one, 0);

/** Scaled to 1; what has no mass stays as it is. @param {Law} law @returns {Law} */
export function scaled(law) {
  const total = sum(law);
  return total > 0 ? law.map((one) => one / total) : law;
}

/** The mass that p and q share, token by token: what is accepted. @param {Law} p @param {Law} q @returns {Law} */
export const shared = (p, q) => p.map((one, at) => Math.min(one, q[at]));

/** The mass of `one` above `other`, token by token. @param {Law} one @param {Law} other @returns {Law} */
export const above = (one, other) => one.map((mass, at) => Math.max(mass - other[at], 0));

/** Total variation. @param {Law} one @param {Law} other */
export const distance = (one, other) => one.reduce((total, mass, at) => total + Math.abs(mass - other[at]), 0) / 2;

/** The chance that a drafted token is accepted: min(1, p / q). @param {number} p @param {number} q */
export const threshold = (p, q) => (q > 0 ? Math.min(1, p / q) : Number(p > 0));

/** Both distributions after a rejection: the target's without what the drafter covers, the drafter's without `token`. @param {Law} r @param {Law} q @param {number} token */
export const rejected = (r, q, token) => ({ r: scaled(above(r, q)), q: without(q, token) });

/** @param {Law} law @param {number} token @returns {Law} */
const without = (law, token) => scaled(law.map((one, at) => (at === token ? 0 : one)));

/** One probability changed and the others scaled with it, so that they still sum to 1. Those in `fixed` do not move. @param {Law} law @param {number} at @param {number} value @param {boolean[]} [fixed] @returns {Law} */
export function changed(law, at, value, fixed = []) {
  const free = law.map((_, place) => place !== at && !fixed[place]);
  const held = sum(law.filter((_, place) => place !== at && fixed[place]));
  const now = Math.min(Math.max(value, 0), 1 - held);
  const rest = sum(law.filter((_, place) => free[place]));
  const many = free.filter(Boolean).length;
  if (!many) return law;
  return law.map((one, place) => {
    if (place === at) return now;
    if (!free[place]) return one;
    return (1 - held - now) * (rest > ROUNDING ? one / rest : 1 / many);
  });
}

/**
 * A node with `many` siblings, drawn from q without replacement and judged in that order, over all orders: what is emitted, and the
 * chance that the first, second … is accepted. `naive` judges each of them by p, as if none had failed before: not exact.
 * @param {Law} p @param {Law} q @param {number} many @param {boolean} [naive]
 */
export function siblings(p, q, many, naive = false) {
  const emitted = p.map(() => 0);
  /** @type {number[]} */
  const accepted = Array(many).fill(0);
  function judge(r, left, weight, round) {
    if (weight <= 0) return;
    if (round === many || sum(left) <= 0) {
      const rest = naive ? scaled(above(p, q)) : r;
      (sum(rest) > 0 ? rest : p).forEach((mass, token) => (emitted[token] += weight * mass));
      return;
    }
    left.forEach((share, token) => {
      if (share <= 0) return;
      const pass = threshold(r[token], share);
      emitted[token] += weight * share * pass;
      accepted[round] += weight * share * pass;
      const next = rejected(r, left, token);
      judge(naive ? p : next.r, next.q, weight * share * (1 - pass), round + 1);
    });
  }
  judge(p, q, 1, 0);
  return { emitted, accepted };
}

/** The chance that one of the drafter's `many` likeliest tokens is accepted, each a certain guess. @param {Law} p @param {Law} q @param {number} many */
export function likeliest(p, q, many) {
  const order = q.map((_, token) => token).sort((one, other) => q[other] - q[one]);
  return sum(order.slice(0, many).map((token) => p[token]));
}

/** The look-alikes whose mass a token may count as its own: the longest nearest-first list within (λ − 1) p. @param {Law} p @param {number} token @param {number[]} near @param {number} factor */
export function region(p, token, near, factor) {
  const most = (factor - 1) * p[token];
  if (most <= 0) return [];
  let mass = 0;
  const end = near.findIndex((other) => (mass += p[other]) > most + ROUNDING);
  return near.slice(0, end < 0 ? near.length : end);
}

/** Relaxed acceptance of one drawn token: its mass with its look-alikes', what is accepted and what is emitted. `near` lists each token's. @param {Law} p @param {Law} q @param {number[][]} near @param {number} factor */
export function relaxed(p, q, near, factor) {
  const pooled = p.map((mass, token) => mass + sum(region(p, token, near[token], factor).map((other) => p[other])));
  const accepted = shared(pooled, q);
  const left = above(p, q);
  const rest = sum(left) > ROUNDING ? scaled(left) : p;
  const emitted = accepted.map((mass, token) => mass + (1 - sum(accepted)) * rest[token]);
  return { pooled, accepted, emitted };
}

/** Each token's `many` nearest others by their `places` on a line, nearest first. @param {number[]} places @param {number} many */
export const nearest = (places, many) =>
  places.map((place, token) =>
    places
      .map((_, other) => other)
      .filter((other) => other !== token)
      .sort((one, other) => Math.abs(places[one] - place) - Math.abs(places[other] - place))
      .slice(0, many),
  );

/** @param {Law} law @param {number} coin from 0 to 1 */
export function drawn(law, coin) {
  let left = coin * sum(law);
  const token = law.findIndex((one) => (left -= one) < 0);
  return token >= 0 ? token : law.findLastIndex((one) => one > 0);
}

/**
 * One step at a node with `many` siblings: its trials, and the emitted token. `pooled` relaxes the rule, `naive` is as above.
 * @param {Law} p @param {Law} q @param {{ many?: number, pooled?: Law | null, naive?: boolean, random?: () => number }} [how]
 */
export function thrown(p, q, { many = 1, pooled = null, naive = false, random = Math.random } = {}) {
  /** @type {Trial[]} */
  const trials = [];
  let [r, left] = [p, q];
  while (trials.length < many && sum(left) > 0) {
    const token = drawn(left, random());
    const limit = threshold((pooled || r)[token], left[token]);
    const coin = random();
    trials.push({ token, share: left[token], limit, coin, kept: coin < limit, r, q: left });
    if (coin < limit) return { trials, token };
    const next = rejected(r, left, token);
    [r, left] = [naive ? p : next.r, next.q];
  }
  const rest = naive ? scaled(above(p, q)) : r;
  return { trials, token: drawn(sum(rest) > 0 ? rest : p, random()) };
}

// @ts-check
// A tree that is too deep for one row wraps like text: in bands of depths, one below the other, whose edges turn at each end.
import { curve, edges } from "./edges.js";
import { MARGIN } from "./items.js";

const MOST_TURNS = 4; // more lines from one band to the next could not be told apart
const BETWEEN = 8; // from one band to the next; the turns run there and where items have no bars above them
const LOOSE = 26; // additional distance in a tall frame

/**
 * First depth of every band, or null if the tree fits one band or has no depth narrow enough to be cut at. `widths` are those
 * of its columns, `counts` how many items each holds.
 */
function cut(widths, counts, gap, room) {
  const starts = [0];
  const right = room.width - MARGIN.right - 18 * room.u;
  let x = MARGIN.left;
  for (let depth = 0; depth < widths.length; depth += 1) {
    if (x + widths[depth] > right && depth > starts[starts.length - 1]) {
      let at = depth;
      while (counts[at] > MOST_TURNS) at -= 1;
      if (at <= starts[starts.length - 1]) return null;
      starts.push(at);
      x = indent(room);
      depth = at;
    }
    x += widths[depth] + gap;
  }
  return starts.length > 1 ? starts : null;
}

const indent = (room) => MARGIN.left + 18 * room.u;

/** Sets x, y and band of every item, whose y so far is that of one long row. Null if the tree cannot be cut. */
export function plan({ items, widths, gap }, drawing, room) {
  const counts = widths.map((_, depth) => items.filter((item) => item.depth === depth).length);
  const starts = cut(widths, counts, gap, room);
  if (!starts) return null;
  const bands = starts.map((start, at) => items.filter((item) => item.depth >= start && !(item.depth >= starts[at + 1])));
  const heights = bands.map((band) => Math.max(...band.map(bottom)) - Math.min(...band.map(top)));
  const least = heights.reduce((sum, height) => sum + height, 0) + (bands.length - 1) * BETWEEN * room.u;
  const spare = room.height - MARGIN.top - MARGIN.bottom - least;
  const between = BETWEEN * room.u + Math.min(LOOSE * room.u, Math.max(0, spare / bands.length));
  const tall = least + (bands.length - 1) * (between - BETWEEN * room.u);
  const height = Math.max(room.height, tall + MARGIN.top + MARGIN.bottom);
  let y = Math.max(MARGIN.top, (height - tall) / 2);
  const ends = bands.map((band, at) => {
    const from = Math.min(...band.map(top));
    let x = at ? indent(room) : MARGIN.left;
    const lefts = widths.map((width, depth) => (depth < starts[at] ? 0 : (x += width + gap) - width - gap));
    for (const item of band) Object.assign(item, { band: at, x: lefts[item.depth], y: item.y - from + y });
    const lane = y - between / 2 + 3 * room.u;
    y += heights[at] + between;
    return { lane, right: Math.max(...band.map((item) => item.x + item.w)) };
  });
  return { width: room.width, height, fits: spare >= 0, form: "bands", edges: links(drawing, ends, room.u) };
}

/** @param {Item} item */
const top = (item) => item.y - item.tall / 2;
/** @param {Item} item */
const bottom = (item) => item.y + item.tall / 2;

/** @param {number} u */
function links(drawing, ends, u) {
  const turns = new Map();
  return edges(drawing.items, u).map((link) => {
    const [from, to] = [drawing.items.get(link.from), link.item];
    if (from.band === to.band) return link;
    const place = turns.get(to.band) || 0;
    turns.set(to.band, place + 1);
    return { ...link, path: turn(from, to, ends[from.band].right + (9 + 3 * place) * u, ends[to.band].lane + 3 * place * u, u) };
  });
}

/** Out of the band's end, down between the bands, back to the left, into the next band's start. @param {number} u */
function turn(from, to, right, lane, u) {
  const r = 7 * u,
    left = to.x - 11 * u;
  return (
    `${curve(from, { x: right - r, y: from.y })}Q${right} ${from.y} ${right} ${from.y + r}V${lane - r}` +
    `Q${right} ${lane} ${right - r} ${lane}H${left + r}Q${left} ${lane} ${left} ${lane + r}` +
    `V${Math.max(lane + r, to.y - r)}Q${left} ${to.y} ${left + r} ${to.y}H${to.x}`
  );
}

// A draft without branches that is too long for one row is written like text: in rows, with a turn at each row's end.
import { curve } from "./edges.js";
import { FORMS, MARGIN, measureItem } from "./items.js";

const GAP = 24;
const PITCH = 46;
const LANE = 37; // how far below its row a bonus token hangs when the row goes on without it

/** The chain's items in order, or null when the tree branches. */
export function line(drawing) {
  const items = [];
  for (let item = drawing.root; item;) {
    items.push(item);
    const next = item.children.filter((child) => child.kind !== "bonus");
    if (next.length > 1 || (next[0] && next[0].kind === "chip")) return null;
    item = next[0];
  }
  return items;
}

export function needsRows(drawing, room) {
  const items = line(drawing);
  if (!items || items.length < 5) return false;
  for (const item of drawing.items.values()) measureItem(item, FORMS[0], room);
  const bonus = drawing.items.get("bonus");
  const tail = bonus && bonus.depth === items.length ? bonus.w + GAP : 0;
  const width = items.reduce((sum, item) => sum + item.w + FORMS[0].gap * room.u, tail);
  return width + MARGIN.left + MARGIN.right > room.width;
}

export function plan(drawing, room) {
  const items = line(drawing);
  const bonus = drawing.items.get("bonus");
  const hangs = bonus && bonus.depth < items.length;
  const row = hangs || !bonus ? items : [...items, bonus];
  const rows = place(row, room);
  if (hangs) {
    const beside = items[bonus.depth];
    Object.assign(bonus, { x: beside.x, row: beside.row, lane: true });
  }
  const height = lines(drawing, rows, hangs ? bonus : null, room);
  const width = Math.max(
    room.width,
    MARGIN.right + Math.max(...[...drawing.items.values()].map((item) => item.x + item.w)),
  );
  return { width, height, edges: links(drawing, room) };
}

/** x and row of each item, left to right, a new row when the next does not fit. Returns the number of rows. */
function place(items, room) {
  const indent = MARGIN.left + 16 * room.u;
  let x = MARGIN.left,
    row = 0;
  for (const item of items) {
    if (x + item.w + 18 * room.u > room.width && x > indent) {
      x = indent;
      row += 1;
    }
    Object.assign(item, { x, row });
    x += item.w + GAP * room.u;
  }
  return row + 1;
}

function lines(drawing, rows, bonus, room) {
  const { top, bottom } = MARGIN;
  const extra = bonus ? LANE * room.u : 0;
  const spare = room.height - top - bottom - extra - rows * PITCH * room.u;
  const pitch = PITCH * room.u + Math.min(26 * room.u, Math.max(0, spare / rows));
  const total = rows * pitch + extra;
  const start = Math.max(top, (room.height - total) / 2) + pitch / 2;
  for (const item of drawing.items.values()) {
    item.y = start + item.row * pitch + (bonus && item.row > bonus.row ? extra : 0) + (item.lane ? LANE * room.u : 0);
  }
  return Math.max(room.height, total + top + bottom);
}

function links(drawing, room) {
  return [...drawing.items.values()]
    .filter((item) => item.parent !== -1)
    .map((item) => {
      const from = drawing.items.get(item.parent);
      return {
        from: item.parent,
        to: item.id,
        item,
        path: from.row === item.row ? curve(from, item) : turn(from, item, room),
      };
    });
}

/** Out of the row's end, down between the rows, back to the left, into the next row's start. */
function turn(from, to, room) {
  const r = 8 * room.u,
    right = from.x + from.w + 10 * room.u,
    left = to.x - 12 * room.u;
  const middle = to.y - (to.lane ? LANE * room.u : 0) - 22 * room.u;
  return (
    `M${from.x + from.w} ${from.y}H${right - r}Q${right} ${from.y} ${right} ${from.y + r}V${middle - r}` +
    `Q${right} ${middle} ${right - r} ${middle}H${left + r}Q${left} ${middle} ${left} ${middle + r}` +
    `V${to.y - r}Q${left} ${to.y} ${Math.min(left + r, to.x)} ${to.y}H${to.x}`
  );
}

// @ts-check
// The paths from parents to children: curves, or a trunk they share where curves would run side by side.

/** @param {number} value */
const round = (value) => Math.round(value * 10) / 10;
/** @param {number} x @param {number} y */
const at = (x, y) => `${round(x)} ${round(y)}`;

/** The curve from a parent's right side to a child's left side. */
export function curve(from, to) {
  const x = from.x + from.w;
  const middle = (x + to.x) / 2;
  if (Math.abs(from.y - to.y) < 0.5) return `M${at(x, from.y)}H${round(to.x)}`;
  return `M${at(x, from.y)}C${at(middle, from.y)} ${at(middle, to.y)} ${at(to.x, to.y)}`;
}

/** Along a trunk shared by all siblings, then into the child: many steep curves side by side would make a smear. @param {number} u */
function elbow(from, to, u) {
  const x = from.x + from.w;
  const trunk = to.x - Math.min(14 * u, (to.x - x) / 2); // beyond its siblings, which may be wider
  const r = Math.min(6 * u, Math.abs(to.y - from.y) / 2, to.x - trunk);
  if (r < 0.5) return curve(from, to);
  const down = r * Math.sign(to.y - from.y);
  const out = `M${at(x, from.y)}H${round(trunk - r)}Q${at(trunk, from.y)} ${at(trunk, from.y + down)}`;
  return `${out}V${round(to.y - down)}Q${at(trunk, to.y)} ${at(trunk + r, to.y)}H${round(to.x)}`;
}

/** True when the children of `item` spread so far that curves to them would run side by side. @param {Item} item */
function steep(item) {
  const away = item.children.map((child) => Math.abs(child.y - item.y));
  return item.children.length > 4 && Math.max(...away) > 1.8 * (item.children[0].x - item.x - item.w);
}

/** @param {Map<number | string, any>} items @param {number} u @returns {Link[]} */
export function edges(items, u) {
  const trunks = new Set(
    [...items.values()].filter((item) => item.children.length && steep(item)).map((item) => item.id),
  );
  return [...items.values()]
    .filter((item) => item.parent !== -1)
    .map((item) => {
      const from = items.get(item.parent);
      return {
        from: item.parent,
        to: item.id,
        item,
        path: trunks.has(item.parent) ? elbow(from, item, u) : curve(from, item),
      };
    });
}

// @ts-check
// Makes the drawn tree a tree for keyboards and screen readers: one node in the tab order, arrows walk the branches.
import * as dom from "../kit/dom.js";
import { Tip } from "../kit/tip.js";
import { PRUNED_CHIP } from "./layout.js";

export class Roving {
  constructor(tree) {
    this.tree = tree;
    this.current = null;
    tree.svg.addEventListener("keydown", (event) => this.key(event));
    tree.scroller.addEventListener("focusin", (event) => this.focus(dom.closest(event, "[data-id]")));
  }

  /** Give a node's group its role, level, place among its siblings and spoken name. @param {Item} item @param {Step} step @param {Map<number | string, Item>} items */
  describe(group, item, step, items) {
    const up = items.get(item.parent);
    const siblings = up ? up.children : [item];
    const values = {
      role: "treeitem",
      tabindex: "-1",
      "aria-level": item.depth + 1,
      "aria-setsize": siblings.length,
      "aria-posinset": siblings.indexOf(item) + 1,
      "aria-selected": "false",
    };
    for (const [name, value] of Object.entries(values)) group.setAttribute(name, value);
    this.name(group, item, step);
    if (item.kind === "chip") group.setAttribute("aria-expanded", "false");
    else if (item.children.length) group.setAttribute("aria-expanded", "true");
    return group;
  }

  /** The spoken name of an item, as far as the step is known. A node that is not drafted yet is neither announced nor clickable. @param {Item} item @param {Step} step */
  name(group, item, step) {
    const node = item.kind === "bonus" ? step.bonus : item.kind === "node" ? step.nodes[item.id] : item.node;
    const coming = !node || node.status === "coming";
    const spoken = item.kind === "chip" ? `${Roving.count(item)}, press Enter to open` : coming ? "" : Tip.about(step, node).join(", ");
    if (group.getAttribute("aria-label") === spoken) return;
    group.setAttribute("aria-label", spoken);
    if (coming) group.setAttribute("aria-hidden", "true");
    else group.removeAttribute("aria-hidden");
  }

  /** What a count in the tree stands for. @param {Item} item */
  static count(item) {
    return item.id === PRUNED_CHIP
      ? `${item.node.text} before the pass`
      : `${item.hidden} more drafted tokens`;
  }

  /** After drawing or selecting: the chosen node is the one Tab reaches; focus that was in the tree stays there. */
  settle(group, focused) {
    const first = group || this.tree.svg.querySelector("[data-id]");
    if (!first) return;
    if (this.current) this.current.setAttribute("tabindex", "-1");
    first.setAttribute("tabindex", "0");
    this.current = first;
    if (focused) first.focus({ preventScroll: true });
  }

  focus(group) {
    if (!group || group === this.current) return;
    this.settle(group, false);
    // Nothing may move under the pointer: a node that slips away between press and release would lose the click.
    if (group.matches(":focus-visible")) this.reveal(group);
  }

  reveal(group) {
    const { scroller, plan } = this.tree;
    const item = this.item(group, plan);
    if (!item) return;
    const right = item.x + item.w + 20,
      left = item.x - 20;
    if (left < scroller.scrollLeft) scroller.scrollLeft = left;
    else if (right > scroller.scrollLeft + scroller.clientWidth) scroller.scrollLeft = right - scroller.clientWidth;
    if (item.y - 24 < scroller.scrollTop) scroller.scrollTop = item.y - 24;
    else if (item.y + 24 > scroller.scrollTop + scroller.clientHeight)
      scroller.scrollTop = item.y + 24 - scroller.clientHeight;
  }

  item(group, plan) {
    const name = group.dataset.id;
    return plan.items.get(/^\d+$/.test(name) ? Number(name) : name);
  }

  /** The item an arrow leads to. Left and right change depth; up and down go to the nearest item of the same depth. @param {Item} item @param {Map<number | string, Item>} items */
  toward(key, item, items) {
    if (key === "ArrowRight") return item.children.find((child) => child.on) || item.children[0];
    if (key === "ArrowLeft") return items.get(item.parent);
    if (key === "Home") return items.get(0);
    if (key === "End") return items.get("bonus") || [...items.values()].pop();
    const down = key === "ArrowDown" ? 1 : -1;
    const beside = [...items.values()].filter((other) => other.depth === item.depth && (other.y - item.y) * down > 0);
    return beside.sort((a, b) => (a.y - b.y) * down)[0];
  }

  key(event) {
    const group = dom.closest(event, "[data-id]");
    if (!group || event.ctrlKey || event.metaKey || event.altKey) return;
    const { key } = event;
    if (key === "Enter") this.tree.take(group.dataset.id);
    else if (["ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown", "Home", "End"].includes(key)) this.walk(key, group);
    else return;
    event.preventDefault();
  }

  walk(key, group) {
    const { items } = this.tree.plan;
    const item = this.item(group, this.tree.plan);
    const next = item && this.toward(key, item, items);
    if (!next) return;
    const target = this.tree.svg.querySelector(`[data-id="${next.id}"]`);
    target.focus({ preventScroll: true });
    if (next.kind !== "chip") this.tree.take(String(next.id));
  }
}

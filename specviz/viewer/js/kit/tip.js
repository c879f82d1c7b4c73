// @ts-check
// The tooltip: a few lines of numbers beside the pointer. Everything in it is also in the inspector.
import * as codes from "./codes.js";
import * as dom from "./dom.js";
import * as format from "./format.js";
import * as labels from "./labels.js";

export class Tip {
  /** @param {Stage} stage */
  constructor(stage) {
    this.box = dom.h("div", { class: "sv-tooltip", "aria-hidden": "true", hidden: true });
    this.stage = stage;
    stage.root.append(this.box);
  }

  /** `lines`: the first is set in bold. `event` gives the pointer's position. */
  show(lines, event) {
    const key = lines.join("\n");
    if (key !== this.key) {
      const book = codes.of(this.stage.trace.run);
      const code = /^#(\d+)$/.exec(lines[0]);
      const title = code && codes.titled(book, { grid: [0, 0], token: Number(code[1]) });
      const words = title ? [...lines, codes.ABOUT] : lines;
      this.box.replaceChildren(
        ...words.map((line, index) => dom.h(index ? "div" : "b", {}, (!index && title) || codes.named(book, line))),
      );
      this.key = key;
    }
    this.box.hidden = false;
    const frame = this.stage.root.getBoundingClientRect();
    const { width, height } = this.box.getBoundingClientRect();
    const x = event.clientX - frame.left,
      y = event.clientY - frame.top;
    const left = Math.max(4, Math.min(x + 14, frame.width - width - 8));
    const top = y + 18 + height > frame.height ? y - height - 12 : y + 18;
    this.box.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  }

  hide() {
    this.box.hidden = true;
  }

  /** Show what `find(event)` returns while the pointer is over `element`; hide when it returns nothing. @param {HTMLElement | SVGElement} element */
  over(element, find) {
    /** @param {any} event */
    const move = (event) => {
      if (event.pointerType === "touch") return;
      const lines = find(event);
      if (lines) this.show(lines, event);
      else this.hide();
    };
    element.addEventListener("pointermove", move);
    element.addEventListener("pointerleave", () => this.hide());
  }

  /** Lines of the tooltip over a drafted node or the bonus. @param {Step} step @param {AnyNode} node */
  static about(step, node) {
    const word =
      node.status === "bonus"
        ? node.source === "residual"
          ? "bonus, from what was left"
          : step.overruled
            ? "bonus, instead of a rejected guess"
            : "bonus"
        : labels.of(node.status);
    /** @type {[string, number | null][]} */
    const named = [
      ["p", node.p],
      ["q", node.q],
      ["threshold", node.threshold],
      ["draw", node.draw],
    ];
    const numbers = named
      .filter(([, value]) => value !== null)
      .map(([name, value]) => `${name} ${format.probability(value)}`);
    return [
      format.token(node.text, 40),
      `${word}, depth ${node.depth}`,
      ...(numbers.length ? [numbers.join(" · ")] : []),
    ];
  }
}

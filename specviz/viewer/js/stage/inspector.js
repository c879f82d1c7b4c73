// @ts-check
// The proof of a verdict: what was decided about the chosen node, why, and every number that entered the decision.
import * as codes from "../kit/codes.js";
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as labels from "../kit/labels.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import { sentChildren, weigh } from "../run/decode.js";
import * as phases from "../tree/phases.js";
import * as rules from "../tree/rules.js";

const RATIOS = new Set(["ratio", "without_replacement", "relaxed", "traversal"]);

/** @param {(Element | null)[]} parts */
const given = (parts) => parts.flatMap((part) => part || []);

export class Inspector {
  /** @param {Stage} stage */
  constructor(stage) {
    this.stage = stage;
    this.words = (text) => codes.named(codes.of(stage.trace.run), text);
    const id = { verdict: dom.id("verdict"), method: dom.id("method") };
    this.panes = {
      verdict: dom.h("div", {
        class: "sv-pane",
        role: "tabpanel",
        tabindex: "0",
        id: id.verdict,
        "aria-label": "Verdict",
      }),
      method: dom.h("div", {
        class: "sv-pane",
        role: "tabpanel",
        tabindex: "0",
        id: id.method,
        "aria-label": "Method",
      }),
    };
    this.tabs = {
      verdict: this.tab("verdict", "Verdict", id.verdict),
      method: this.tab("method", "Method", id.method),
    };
    this.bar = dom.h("div", { class: "sv-tabs", role: "tablist", "aria-label": "Inspector" }, Object.values(this.tabs));
    this.card = dom.h("div", { class: "sv-card sv-inspector" }, this.bar, ...Object.values(this.panes));
    this.bar.addEventListener("keydown", (event) => this.arrows(event));
    this.bar.addEventListener("click", (event) => event.target === this.bar && stage.set({ picked: !stage.picked }));
    for (const pane of Object.values(this.panes))
      pane.addEventListener(
        "scroll",
        () => {
          this.scrolled = true;
        },
        { passive: true },
      );
  }

  /** On a phone the panes are a sheet, which a tab opens and the open tab closes. @param {string} name @param {string} text */
  tab(name, text, controls) {
    const { stage } = this;
    const show = () => stage.set({ picked: !(stage.size === "phone" && stage.picked && stage.tab === name), tab: name });
    return dom.button(text, "", show, { role: "tab", "aria-controls": controls });
  }

  arrows(event) {
    if (!event.key.startsWith("Arrow")) return;
    event.preventDefault();
    const other = this.stage.tab === "verdict" ? "method" : "verdict";
    this.stage.set({ tab: other });
    this.stage.flush();
    this.tabs[other].focus();
  }

  /** @param {Set<string>} changed */
  update(changed) {
    const { stage } = this;
    const moved = stage.step !== this.step || changed.has("node") || changed.has("run");
    if (!moved && !changed.has("ui") && !changed.has("size")) return;
    // Verdicts that follow each other faster than they are read would cost frames for nothing.
    const phase = stage.step && [stage.step.index, stage.tab, stage.moment === null || stage.player.phase].join();
    if (stage.player.hurries && phase === this.phase) return;
    this.phase = phase;
    this.anew = moved;
    this.rising = stage.picked && !stage.root.hasAttribute("data-picked");
    stage.root.toggleAttribute("data-picked", stage.picked);
    this.step = stage.step;
    const any = stage.trace.steps.some((step) => step.notes.length);
    this.tabs.method.hidden = !any;
    dom.say(this.tabs.method, noteRegistry.title(noteRegistry.chosen(stage)));
    const tab = any ? stage.tab : "verdict";
    for (const name of Object.keys(this.tabs)) {
      this.tabs[name].setAttribute("aria-selected", String(name === tab));
      this.tabs[name].setAttribute("tabindex", name === tab ? "0" : "-1");
      this.panes[name].hidden = name !== tab;
    }
    // A note's picture gets the height of the tree and the overview beside it, if there are enough columns.
    const columns = { compact: 1, phone: 1, narrow: 2 }[stage.size] || 3;
    const needed = stage.projector ? Infinity : stage.root.hasAttribute("data-image") ? 3 : 2;
    stage.root.toggleAttribute("data-roomy", tab === "method" && columns >= needed);
    if (tab === "method") this.drawNote();
    else this.draw();
  }

  /** The method's note reveals verdicts too, so it waits for them while the step moves. */
  drawNote() {
    const { stage } = this;
    const pane = this.panes.method;
    if (stage.moment !== null && stage.shown.veiled) return this.drawPhase(pane);
    return noteRegistry.draw(pane, stage, stage.moment === null ? [] : [phases.card(stage)]);
  }

  draw() {
    const { step, shown, selected } = this.stage;
    const pane = this.panes.verdict;
    if (this.stage.moment !== null && shown.veiled) return this.drawPhase(pane);
    if (!step || !selected)
      return pane.replaceChildren(dom.h("p", { class: "sv-mute" }, "Click a node to see the proof of its verdict."));
    pane.replaceChildren(
      ...given([
        this.stage.moment === null ? null : phases.card(this.stage),
        this.head(step, selected),
        dom.h("p", { class: "sv-explanation" }, this.words(rules.explain(step, selected))),
        this.coin(selected),
        this.siblings(step, selected),
        this.target(step, selected),
        this.numbers(step, selected),
      ]),
    );
    return undefined;
  }

  /** For a moving step: what is going on, and the proof of a verdict once it has been reached. */
  drawPhase(pane) {
    const { step, shown, selected: node } = this.stage;
    const drafted = node && node.status !== "coming";
    const judged = drafted && node.status !== "drafted";
    const parts = [
      phases.card(this.stage),
      drafted ? this.head(shown, node) : null,
      ...(judged ? [dom.h("p", { class: "sv-explanation" }, rules.explain(step, node)), this.coin(node), this.siblings(shown, node)] : []),
      drafted ? this.numbers(shown, node) : null,
    ];
    pane.replaceChildren(...given(parts));
  }

  /**
   * What needs the finished layout: arrows between lines of text, and back to the top for a new node (only after a
   * scroll, since touching the position makes the browser lay out the page).
   */
  settle() {
    if (this.rising && this.stage.size === "phone") this.uncover();
    this.rising = false;
    if (this.stage.settling) this.stage.settling();
    if (!this.scrolled || !this.anew) return;
    for (const pane of Object.values(this.panes)) pane.scrollTop = 0;
    this.scrolled = this.anew = false;
  }

  /** The sheet rises over the lower half of a phone: the node it explains moves out from under it. */
  uncover() {
    const node = this.stage.root.querySelector('.sv-tree [aria-selected="true"]');
    const hidden = node ? node.getBoundingClientRect().bottom + 20 - this.card.getBoundingClientRect().top : 0;
    if (hidden > 0) window.scrollBy({ top: hidden, behavior: "smooth" });
  }

  /** @param {Step} step @param {AnyNode} node */
  head(step, node) {
    const drafted = node.parent >= 0 && node.id !== "bonus" && node.status !== "pruned";
    const among = drafted ? sentChildren(step, step.nodes[node.parent]).length : 0;
    const word = labels.of(node.status);
    const where = [
      word[0].toUpperCase() + word.slice(1),
      `depth ${node.depth}`,
      among > 1 ? `guess ${node.rank + 1} of ${among}` : null,
    ];
    return dom.h(
      "div",
      { class: `sv-verdict sv-is-${node.status}` },
      dom.h("h3", {}, codes.titled(codes.of(this.stage.trace.run), node) || format.token(node.text, 40)),
      dom.h("p", {}, where.filter(Boolean).join(" · ")),
    );
  }

  /** The draw on a line from 0 to 1, with the accepting part shaded. @param {AnyNode} node */
  coin(node) {
    if (node.draw === null || node.draw === undefined || node.threshold === null) return null;
    const { s } = dom;
    const bar = Math.min(1, Math.max(0, node.threshold)) * 200,
      dot = Math.min(1, Math.max(0, node.draw)) * 200;
    const sign = node.draw < node.threshold ? "<" : "≥";
    const text = `draw ${format.probability(node.draw)} ${sign} ${format.probability(node.threshold)}`;
    return dom.h(
      "div",
      { class: "sv-draw-chart" },
      s(
        "svg",
        { viewBox: "-8 -10 216 22", role: "img", "aria-label": text },
        s("rect", { x: 0, y: -4, width: 200, height: 8, rx: 2, class: "sv-reject-range" }),
        s("rect", { x: 0, y: -4, width: bar, height: 8, rx: 2, class: "sv-accept-range" }),
        s("path", { d: `M${bar} -8V8`, class: "sv-threshold-mark" }),
        s("circle", { cx: dot, cy: 0, r: 5, class: "sv-draw" }),
      ),
      dom.h("p", {}, text),
    );
  }

  bars(rows, title, keyed) {
    const part = (value, kind) => dom.h("i", { class: kind, style: `width:${Math.min(100, value * 100).toFixed(1)}%` });
    const tableRows = rows.map(({ text, q, p, chosen, status, id }) =>
      dom.h(
        "tr",
        { class: `${chosen ? "sv-chosen" : ""} sv-is-${status || "none"}`, "data-id": id },
        dom.h("th", { scope: "row" }, this.words(format.token(text, 14))),
        dom.h(
          "td",
          { class: "sv-bar-pair" },
          q === null || q === undefined ? null : part(q, "sv-q"),
          p === null ? null : part(p, "sv-p"),
        ),
        keyed ? dom.h("td", {}, format.probability(q)) : null,
        dom.h("td", {}, format.probability(p)),
      ),
    );
    const heads = ["token", "", keyed ? "q" : null, "p"].filter((name) => name !== null);
    return dom.h(
      "div",
      { class: "sv-bars" },
      dom.h("h4", {}, this.words(title)),
      dom.h(
        "table",
        {},
        dom.h(
          "thead",
          {},
          dom.h(
            "tr",
            {},
            heads.map((name) => dom.h(name ? "th" : "td", name ? { scope: "col" } : {}, name)),
          ),
        ),
        dom.h("tbody", {}, tableRows),
      ),
    );
  }

  /** @param {Step} step @param {AnyNode} node */
  siblings(step, node) {
    if (node.parent < 0) return null;
    const all = step.nodes[node.parent].children.map((id) => step.nodes[id]);
    if (!all.length) return null;
    const at = Math.max(0, all.findIndex(({ id }) => id === node.id));
    const from = Math.max(0, Math.min(at - 3, all.length - 7));
    const visible = all.slice(from, from + 7);
    const title =
      all.length > visible.length
        ? `Guesses after ${format.quote(step.nodes[node.parent].text)} (${visible.length} of ${all.length})`
        : `Guesses after ${format.quote(step.nodes[node.parent].text)}`;
    const table = this.bars(
      visible.map((sibling) => ({ ...sibling, chosen: sibling === node })),
      title,
      visible.some((sibling) => sibling.q !== null),
    );
    table.addEventListener("click", (event) => {
      const row = dom.closest(event, "tr[data-id]");
      if (row) this.stage.pick(Number(row.dataset.id));
    });
    return table;
  }

  /** The target's own best tokens at this node's position. @param {Step} step @param {AnyNode} node */
  target(step, node) {
    const at = node.status === "root" ? 0 : node.parent;
    const rows = step.rows.get(at);
    if (!rows || !rows.length) return null;
    const candidates = rows
      .slice(0, 6)
      .map((row) => ({ ...row, chosen: node.status !== "root" && row.token === node.token }));
    return this.bars(candidates, `What the target says after ${format.quote(step.nodes[at].text)}`, false);
  }

  /** @param {Step} step @param {AnyNode} node */
  numbers(step, node) {
    const { run } = this.stage.trace;
    const root = node.status === "root";
    const rule = rules.of(step);
    const formatted = (value) => (value === null || value === undefined ? null : format.probability(value));
    const guess = !root && node.id !== "bonus";
    const weighed = guess && RATIOS.has(step.rule) ? weigh(step, node) : null;
    const sampled = weighed && weighed.q < 1;
    const drafter = guess ? formatted(node.q) || (run && /^(served|vllm)_/.test(run.method) ? "not reported" : "none: a certain guess") : null;
    const chosen = guess && node.q !== null && (step.certain || (weighed && !sampled));
    const rows = [
      ["rule", root ? null : rule.title],
      ["p, target", formatted(node.p)],
      [chosen ? "drafter's confidence" : "q, drafter", drafter],
      ["q, as judged", chosen ? "1: chosen, not drawn" : weighed && weighed.left && sampled ? formatted(weighed.q) : null],
      ["r, rest of p", weighed && weighed.left ? formatted(weighed.p) : null],
      [weighed && weighed.left ? "min(1, r/q)" : "min(1, p/q)", sampled ? formatted(Math.min(1, weighed.p / weighed.q)) : null],
      ["threshold", formatted(node.threshold)],
      ["draw", formatted(node.draw)],
      ["token id", node.token],
      ["position", String(step.position + node.depth)],
      ["grid", node.grid ? node.grid.join(", ") : null],
    ].filter(([, value]) => value !== null);
    const listed = rows.map(([name, value]) => [dom.h("dt", {}, name), dom.h("dd", {}, value)]);
    const formula = rule.formula && !root ? [dom.h("p", { class: "sv-rule-words" }, rule.words), dom.h("code", {}, rule.formula)] : [];
    return dom.h("div", { class: "sv-numbers" }, ...formula, dom.h("dl", {}, listed));
  }
}

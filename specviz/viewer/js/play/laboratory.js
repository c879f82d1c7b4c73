// @ts-check
// The cost laboratory: acceptance, draft, machine and batch to move, the speed-up of every draft length, and the bill of one step.
import * as dom from "../kit/dom.js";
import * as costs from "./bill.js";
import * as plots from "./plots.js";
import { chips, slider, task, two } from "./dials.js";
import { HERE, MACHINES, SCENES, roof } from "./machines.js";
import { page } from "./world.js";

/** Runs that the page's stages have shown in this visit and that were timed beside their autoregressive run. */
function runsOnPage() {
  const found = window.specvizPage.runs().map(costs.ofRun);
  return found.flatMap((run, at) => (run && run.accept.length && found.findIndex((other) => other && other.title === run.title && other.measured === run.measured) === at ? [run] : []));
}
/** @typedef {NonNullable<ReturnType<typeof costs.ofRun>>} Run */

/** The machine of a run, by the run's own passes; null if no pass was wide. @param {Run} run @returns {import("./machines.js").Machine | null} */
function machineOf(run) {
  const curve = costs.curveOf(run.passes);
  return curve && { name: "page", words: "", source: `measured in this page’s run of ${run.title} on ${run.device}`, curve, upto: curve.rows[curve.rows.length - 1] };
}

/** @returns {import("./world.js").Level} */
export function laboratory() {
  let [scene, machine, at] = [SCENES[0], MACHINES[0], 3];
  /** @type {import("./bill.js").Setting} */
  let setting;
  /** @type {Run[]} */
  let runs = [];
  /** @type {Set<number> | null} */
  let seen = null;
  let isChosen = false;

  const gains = plots.gains((depth) => (seen?.add(depth), (at = depth), draw()));
  const handles = plots.handles((depth, value) => {
    setting.accept = setting.accept.map((one, place) => (place === depth ? value : one));
    scenes.press("");
    draw();
  });
  const [clock, roofline] = [plots.clock(), plots.roofline()];
  const formula = dom.h("p", { class: "svp-formula", role: "status" });
  const [why, source] = [dom.h("p", { class: "svp-why" }), dom.h("p", { class: "svp-source" })];
  const says = dom.h("span");
  const own = dom.h("div", { class: "svp-own" });

  function draw() {
    const { gains: all, best: length } = costs.speedups(setting);
    at = Math.min(at, setting.accept.length);
    const now = costs.terms(setting, at);
    gains.show({ all, best: length, at, seen, runs, dots: scene.dots || [] });
    handles.show({ accept: setting.accept, at });
    clock.show({ ...now, at });
    roofline.show({ machine, batch: setting.batch, rows: now.rows });
    const term = (kind, words, value) => dom.h("span", { class: kind }, `${words} ${two(value)}`);
    formula.replaceChildren(
      dom.h("b", {}, `${two(now.speedup)}×`), " = ", term("svp-term-tau", "τ", now.tau), " ÷ ( ", term("svp-term-draft", "draft", now.draft), " + ",
      term("svp-term-verify", "verify", now.verify), " + ", term("svp-term-rest", "rest", now.rest), " )",
    );
    const rows = setting.batch * now.rows;
    // A run's own curve is of single steps, so the difference of two neighbours is mostly noise.
    const [few, many] = machine.name === "page" && at ? [setting.batch, rows] : [rows, rows + setting.batch];
    const [low, high, alone] = [few, many, setting.batch].map((wide) => costs.passCost(setting.curve, wide));
    const each = two((((high - low) / alone) * setting.batch) / (many - few));
    const price = few < rows ? `each guess costs ${each} of a pass` : `one more guess would cost ${each} of a pass`;
    const hidden = { gpu: "the launches of many short kernels", here: "what one row takes anyway" }[machine.name] || "the reading of the weights";
    const said = now.verify < 1.12
      ? `Nearly free: ${rows} rows take little longer than ${setting.batch}, because their arithmetic hides behind ${hidden}`
      : `${now.verify < 1.5 ? "Not quite free" : "Not free"}: the arithmetic of ${rows} rows no longer hides behind ${hidden}`;
    dom.say(why, machine.name === "flat" ? "Here the price of a level includes the cost of verifying." : `${said}; ${price}.`);
    dom.say(source, `Pass cost: ${machine.source}.`);
    second.element.toggleAttribute("inert", setting.width < 2);
    ridge.element.hidden = machine.name !== "roof";
  }

  function use(name) {
    const own = name === "page" ? runs.map(machineOf).find(Boolean) : null;
    machine = own || [...HERE, ...MACHINES].find((one) => one.name === name) || MACHINES[0];
    if (machine.name === "roof") machine = roof(100), ridge.set(100);
    setting.curve = machine.curve;
    choice.value = machine.name;
  }

  function begin(name) {
    scene = SCENES.find((one) => one.name === name) || SCENES[0];
    const { accept, draft, rest, width, batch } = scene;
    setting = { accept: [...accept], draft, rest, width, second: 0.3, batch, curve: machine.curve };
    use(HERE.length && scene.machine === "cores" ? "here" : scene.machine);
    sync();
    dom.say(says, scene.says);
    scenes.press(scene.name);
    draw();
  }

  /** Take the figures of a run: its acceptance by depth, its draft's cost, its passes. @param {Run} run */
  function take(run) {
    const depth = Math.max(1, Math.round(run.depth));
    const own = machineOf(run);
    const mean = own ? run.passes.reduce((sum, { rows }) => sum + rows, 0) / run.passes.length : 2;
    const width = Math.min(8, Math.max(1, Math.round((mean - 1) / depth)));
    scene = { ...SCENES[0], name: "" };
    machine = own || machine;
    setting = { accept: run.accept.slice(0, 12), draft: run.draft / depth, rest: run.rest, width, second: 0, batch: 1, curve: machine.curve };
    at = Math.min(depth, setting.accept.length);
    choice.value = machine.name;
    sync();
    dom.say(says, `${run.title} on this page: measured ${two(run.measured)}×, predicted ${two(run.predicted)}× (τ ${two(run.tau)} ÷ (${two(run.draft)} + ${two(run.verify)} + ${two(run.rest)})).`);
    scenes.press("");
    draw();
  }

  const sync = () => {
    draft.set(setting.draft);
    width.set(setting.width);
    second.set(setting.second);
    batch.set(Math.log2(setting.batch));
  };
  const scenes = chips("Initial settings", SCENES.map(({ name, words }) => [name, words]), begin);
  const draft = slider("Drafting, per level", { min: 0, max: 0.6, step: 0.01, value: 0, show: two, title: "In target passes" }, (value) => ((setting.draft = value), draw()));
  const width = slider("Siblings per level", { min: 1, max: 8, value: 1 }, (value) => ((setting.width = value), draw()));
  const second = slider("Second chance", { min: 0, max: 0.8, step: 0.05, value: 0.3, show: two, title: "The share that each further sibling catches of what the earlier ones missed" }, (value) => ((setting.second = value), draw()));
  const batch = slider("Requests per pass", { min: 0, max: 7, value: 0, show: (value) => String(2 ** value) }, (value) => ((setting.batch = 2 ** value), draw()));
  const ridge = slider("Rows that one read hides", { min: 4, max: 256, step: 4, value: 100 }, (value) => ((machine = roof(value)), (setting.curve = machine.curve), draw()));
  const here = dom.h("option", { value: "here" });
  const measured = dom.h("option", { value: "page" }, "Measured: the run on this page");
  const choice = dom.h("select", { "aria-label": "What a pass costs" }, here, MACHINES.map(({ name, words }) => dom.h("option", { value: name }, words)), measured);
  choice.addEventListener("change", () => (use(choice.value), (isChosen = true), draw()));

  const guess = dom.button("It pays most here", "", () => {
    const { gains: all, best: length } = costs.speedups(setting);
    if (at === length) {
      seen = null;
      guess.hidden = true;
      quest.check(true);
      draw();
    } else dom.say(formula, `γ = ${at} gives ${two(all[at])}×. There is a better one.`);
  });
  guess.hidden = true;
  const quest = task("The curve is hidden. At which γ does drafting pay most?", () => {
    begin(SCENES[Math.floor(Math.random() * 3)].name);
    setting.accept = setting.accept.map((one) => one * (0.85 + 0.15 * Math.random()));
    at = 1;
    seen = new Set([at]);
    guess.hidden = false;
    draw();
  }, "Found. Left of it a pass is worth more guesses; right of it the last guess costs more than it brings.", () => {
    seen = null;
    guess.hidden = true;
  });
  quest.element.append(guess);

  begin("head");
  return {
    element: page({
      question: "How many tokens should a drafter guess before the target checks?",
      text: says,
      figure: [
        gains.host, formula,
        dom.h("div", { class: "svp-pair" }, dom.h("div", {}, clock.host, dom.h("p", { class: "svp-why" }, "Time as length, in target passes over one row. The dots are what is saved. ", dom.h("a", { href: "?tab=story&story=3" }, "Why a wide pass is nearly free, and when it is not"), ".")), dom.h("div", {}, roofline.host, why, source)),
      ],
      tools: [scenes.element, own, dom.h("p", { class: "svp-why" }, "Acceptance by depth: drag"), handles.host, dom.h("div", { class: "svp-two" }, draft.element, batch.element, width.element, second.element), dom.h("div", { class: "svp-two" }, dom.h("label", { class: "svp-slider" }, dom.h("span", {}, "What a pass costs"), choice), ridge.element), quest.element],
    }),
    quest,
    reset() {},
    show() {
      runs = runsOnPage();
      measured.hidden = !runs.some(machineOf);
      here.disabled = !HERE.length;
      here.textContent = HERE.length ? HERE[0].words : "This machine, not measured yet";
      if (HERE.length && (machine.name === "here" || (machine.name === "cores" && !isChosen))) use("here");
      own.replaceChildren(...runs.map((run) => dom.button(`${run.title}: ${two(run.measured)}×`, "Use this run's own numbers", () => take(run), { class: "svp-run" })));
      draw();
    },
  };
}

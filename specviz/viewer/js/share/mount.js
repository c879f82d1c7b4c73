// @ts-check
// The Share menu: a link, the step as a picture or a clip, the run as one page, and the code that embeds it. SpecvizViewer.share(page)
// fills it when it is first opened.
import * as dom from "../kit/dom.js";
import { gif } from "./gif.js";
import { clip, clips, film, picture, png, svg } from "./picture.js";
import { lastMoment, race } from "./race.js";

/** What the page lends: its visible stage, if it has a run, the run's name, links, the clipboard, and a promise to keep the run. @typedef {{ stage: () => Stage | null, name: () => string, own: () => string, keep: (name?: string) => Promise<string>, link: () => string, address: (path: string) => string, copy: (text: string) => Promise<void> }} Page */

/** @param {Blob} blob @param {string} name */
function save(blob, name) {
  const href = URL.createObjectURL(blob);
  dom.h("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10000);
  return `${name}, ${Math.ceil(blob.size / 1024)} kB.`;
}

/** @param {Stage} stage */
const stem = ({ trace, cursor }) => `${(trace.run ? trace.run.method : "run").replace(/[^a-z0-9]+/gi, "-")}-step-${cursor + 1}`;

/** @param {string} words */
const quoted = (words) => words.replace(/&/g, "&amp;").replace(/"/g, "&quot;").replace(/</g, "&lt;");

/** @param {HTMLElement} box @param {HTMLElement} button @param {Page} page */
function share(box, button, page) {
  const status = dom.h("p", { class: "sp-linked", id: "sp-linked", role: "status" });
  const field = /** @type {HTMLInputElement} */ (dom.h("input", { readonly: "", "aria-label": "Copied text", class: "sp-shared" }));
  const own = dom.h("p", { class: "sp-summary" });

  /** Copy a text and show it, for browsers that refuse. @param {string} text @param {string} what @param {string} before */
  async function copied(text, what, before) {
    field.value = text;
    field.hidden = false;
    try {
      await page.copy(text);
      return `${before}${what} copied.`;
    } catch {
      field.select();
      return `${before}The browser does not let this page copy: copy it from the field.`;
    }
  }

  async function link() {
    // The address of a pair names recorded runs only; that of the Methods tab may name the lanes of a live race.
    const pair = page.stage()?.root.closest(".sp-pair");
    const names = filmed()?.live || [];
    let before = pair ? "" : await page.keep();
    for (const name of names) before = (await page.keep(name)) || before;
    const url = new URL(page.link());
    if (names.length) url.searchParams.set("methods", names.join());
    const mine = pair && [...pair.querySelectorAll(".specviz-host")].some(({ specviz }) => specviz?.stage.live || specviz?.stage.feed.name.startsWith("mine:"));
    return copied(url.href, "Link", mine ? "Your own run is not in a link to a pair: share it from its tab. " : before);
  }

  async function embed() {
    const [before, stage] = [await page.keep(), page.stage()];
    const query = new URLSearchParams({ kind: "embed", run: page.name(), step: String((stage ? stage.cursor : 0) + 1) });
    const source = new URL(page.address(`specviz/file?${query}`), location.href).href;
    const title = stage?.trace.run ? `${stage.trace.run.title} on ${stage.trace.run.target}` : "specviz";
    const look = 'width="100%" height="680" style="border:0" loading="lazy" sandbox="allow-scripts" allowfullscreen';
    return copied(`<iframe src="${quoted(source)}" title="${quoted(title)}" ${look}></iframe>`, "Embed code", before);
  }

  /** @param {(stage: Stage) => Promise<string>} work */
  const drawn = (work) => async () => {
    const stage = page.stage();
    if (!stage) return "";
    stage.player.pause();
    stage.set({ table: false, reading: false });
    stage.flush();
    return work(stage);
  };
  const asSvg = drawn(async (stage) => save(svg(picture(stage)), `${stem(stage)}.svg`));
  const asPng = drawn(async (stage) => save(await png(picture(stage)), `${stem(stage)}.png`));
  const progress = (/** @type {number} */ done) => dom.say(status, `Drawing, ${Math.round(100 * done)} %`);
  /** @param {typeof film} make @param {string} ending */
  const asClip = (make, ending) => drawn(async (stage) => save(await clip(stage, progress, make), `${stem(stage)}.${ending}`));

  /** The race in sight: of the Methods tab, else of the visible stages. */
  const filmed = () => {
    const seen = (/** @type {Element} */ one) => one.getClientRects().length > 0;
    const [field] = [...document.querySelectorAll(".svf")].filter(seen);
    return field?.film ? field.film() : race([...document.querySelectorAll(".specviz-host")].filter(seen).flatMap((host) => host.specviz?.stage || []));
  };
  /** @param {typeof film} make @param {string} ending */
  const asRace = (make, ending) => async () => {
    const shown = filmed();
    await shown?.ready?.();
    return shown ? save(await make(shown, progress), `specviz-race.${ending}`) : "";
  };

  async function raceSvg() {
    const shown = filmed();
    await shown?.ready?.();
    return shown ? save(svg(lastMoment(shown)), "specviz-race.svg") : "";
  }

  async function asPage() {
    const query = new URLSearchParams({ run: page.own() || page.name(), kind: "html" });
    dom.h("a", { href: page.address(`specviz/file?${query}`), download: "" }).click();
    return "The page is being created; your browser will save it.";
  }

  /** @type {[string, string, () => Promise<string>, "any" | "stage" | "run" | "race"][]} */
  const items = [
    ["Copy link", "opens what you see", link, "any"],
    ["Picture, SVG", "this step, at any size", asSvg, "stage"],
    ["Picture, PNG", "this step, for slides", asPng, "stage"],
    ["Clip, GIF", "this step in motion", asClip(gif, "gif"), "stage"],
    ["Race, SVG", "all lanes at the end", raceSvg, "race"],
    ["Race, GIF", "all lanes at a pace to watch", asRace(gif, "gif"), "race"],
    ["One-file page", "the run, plays offline", asPage, "run"],
    ["Copy embed code", "for your own page", embed, "run"],
  ];
  if (clips()) items.splice(6, 0, ["Clip, WebM", "sharper, where video plays", asClip(film, "webm"), "stage"], ["Race, WebM", "sharper, where video plays", asRace(film, "webm"), "race"]);
  const buttons = items.map(([name, about, work, needs]) => {
    const item = /** @type {HTMLButtonElement} */ (dom.h("button", { type: "button", "data-needs": needs }, name, dom.h("span", {}, about)));
    item.addEventListener("click", async () => {
      for (const one of buttons) one.disabled = true;
      field.hidden = true;
      dom.say(status, "One moment …");
      try {
        dom.say(status, await work());
      } catch (error) {
        dom.say(status, Object(error).message || "That did not work.");
      }
      refresh();
      item.focus();
    });
    return item;
  });
  box.append(dom.h("div", { class: "sp-ways", role: "group", "aria-label": "Ways to share" }, buttons), own, field, status);

  function refresh() {
    const stage = page.stage();
    const has = { any: true, stage: Boolean(stage), run: Boolean(page.name() || page.own()), race: Boolean(filmed()) };
    for (const one of buttons) one.disabled = !has[/** @type {keyof typeof has} */ (one.dataset.needs)];
    own.textContent = page.own() || filmed()?.live?.length ? "A link or embed code keeps your run, with its prompt, on this server for some days; anyone who has it can open the run." : "";
  }

  /** @param {boolean} open */
  function toggle(open) {
    box.hidden = !open;
    button.setAttribute("aria-expanded", String(open));
    if (!open) return;
    field.hidden = true;
    status.textContent = "";
    refresh();
    buttons[0].focus();
  }

  button.addEventListener("click", () => toggle(box.hidden));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || box.hidden) return;
    toggle(false);
    button.focus();
  });
  document.addEventListener("pointerdown", ({ target }) => {
    if (!box.hidden && !box.contains(/** @type {Node} */ (target)) && !button.contains(/** @type {Node} */ (target))) toggle(false);
  });
  toggle(true);
}

Object.assign(globalThis.SpecvizViewer || {}, { share });

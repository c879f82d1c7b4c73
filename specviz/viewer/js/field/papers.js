// @ts-check
// A map of the methods by family and year of their papers: a name opens a recorded run, a number its paper.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";

/** @typedef {{ name: string, title: string, summary: string, modality: string[], published: string[], exactness: string, family: string, run: string | null, url: string, paper: { title: string, authors: string, year: number, arxiv: string, venue: string } | null }} Method */

/** The number of a method's paper, as a link. @param {Method} [method] */
export function cite(method) {
  if (!method?.paper || !method.url) return null;
  const { title, paper, url } = method;
  const about = `${paper.title}. ${paper.authors} ${paper.year}${paper.venue && `, ${paper.venue}`}`;
  return dom.h("a", { class: "svf-cite", href: url, target: "_blank", rel: "noopener noreferrer", title: about, "aria-label": `${title} on arXiv, ${paper.arxiv}` }, paper.arxiv);
}

const MODALITIES = { text: "", vision_language: "pictures read", image: "pictures drawn" };

/** What a method is for, beyond text. @param {Method} method */
function uses({ modality, published }) {
  const found = modality.length ? modality : published;
  return found.includes("text") ? "" : MODALITIES[/** @type {keyof typeof MODALITIES} */ (found[0])] || "";
}

/** @param {import("./clock.js").Field} field */
export function papers(field) {
  const title = dom.h("h2", {});
  const search = /** @type {HTMLInputElement} */ (dom.h("input", { class: "svf-box", type: "search", placeholder: "Search methods and papers", "aria-label": "Search methods and papers" }));
  const table = dom.h("table", { class: "svf-map" });
  const element = dom.h("div", { class: "svf-papers" }, dom.h("header", {}, title, search, dom.h("p", { class: "svf-note" }, "A name opens a recorded run, a number its paper on arXiv; × is the speed-up here, on the prompt of the one clock.")), dom.h("div", { class: "svf-room" }, table));

  /** @param {Method} method @param {string} speed */
  function chip(method, speed) {
    const { paper, run } = method;
    const about = run ? method.summary : `${method.summary} No run of it is recorded.`;
    const name = /** @type {HTMLButtonElement} */ (dom.button(method.title, about, () => run && field.open(run), { class: `svf-chip svf-is-${method.exactness}` }));
    name.disabled = !run;
    const link = cite(method);
    const words = [method.title, method.name, method.family, paper && `${paper.title} ${paper.authors} ${paper.arxiv} ${paper.year} ${paper.venue}`].join(" ").toLowerCase();
    return dom.h("p", { "data-words": words }, name, dom.h("span", {}, link, [speed, uses(method)].filter(Boolean).map((one) => dom.h("i", {}, one))));
  }

  function find() {
    const asked = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const one of table.querySelectorAll("p")) one.classList.toggle("svf-away", !asked.every((word) => String(one.dataset.words).includes(word)));
  }

  /** @param {Method[]} methods @param {Map<string, string>} speeds measured speed-ups in words, by method */
  function take(methods, speeds) {
    const dated = methods.filter(({ paper }) => paper);
    const years = [...new Set(dated.map(({ paper }) => (paper ? paper.year : 0)))].sort();
    const families = [...new Set(dated.map(({ family }) => family))];
    dom.say(title, `${format.count(dated.length, "method")}, ${years[0]} to ${years[years.length - 1]}`);
    const cell = (family, year) => dom.h("td", { "data-year": year }, dated.filter((one) => one.family === family && one.paper?.year === year).map((one) => chip(one, speeds.get(one.name) || "")));
    table.replaceChildren(
      dom.h("thead", {}, dom.h("tr", {}, dom.h("td"), years.map((year) => dom.h("th", { scope: "col" }, String(year))))),
      dom.h("tbody", {}, families.map((family) => dom.h("tr", {}, dom.h("th", { scope: "row" }, family), years.map((year) => cell(family, year))))),
    );
    find();
  }
  search.addEventListener("input", find);
  return { element, take };
}

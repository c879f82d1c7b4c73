// @ts-check
// Progress through the lessons. Finished lessons and predictions stay in this browser, under KEY.
const KEY = "specviz-lessons";
const select = element.querySelector("select");
const path = element.querySelector(".sp-path");
const learn = element.closest(".sp-learn");
const [status, forget] = [element.querySelector("[role=status]"), element.querySelector("[data-do=forget]")];

const node = (tag, properties, ...children) => {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
};

for (const [group, lessons] of JSON.parse(select.dataset.groups)) {
  select.append(node("optgroup", { label: group }, ...lessons.map(([title, name]) => new Option(title, name))));
  if (lessons[0][1].startsWith("run-")) continue; // recorded runs to predict, beside the course
  path.append(node("span", { title: group }, ...lessons.map(([title, name]) => {
    const mark = node("button", { type: "button", tabIndex: -1, title });
    mark.dataset.lesson = name;
    return mark;
  })));
}
const marks = [...path.querySelectorAll("button")];
const titles = new Map([...select.options].map((option) => [option.value, option.textContent]));
const course = marks.map((mark) => mark.dataset.lesson);
const bare = (name) => name.replace(/^\d+/, "");
let learned = {};
try {
  // A lesson's number is its place in the course, which may have changed since.
  const now = new Map([...titles.keys()].map((name) => [bare(name), name]));
  for (const [name, entry] of Object.entries(JSON.parse(localStorage.getItem(KEY) || "null") || {})) learned[now.get(bare(name)) || name] = entry;
} catch { /* a private window keeps nothing */ }

const keep = () => {
  try {
    localStorage.setItem(KEY, JSON.stringify(learned));
  } catch { /* likewise */ }
};

const done = (name) => Boolean(learned[name] && learned[name].done);

function show() {
  select.value = props.value;
  for (const mark of marks) {
    mark.classList.toggle("done", done(mark.dataset.lesson));
    mark.classList.toggle("here", mark.dataset.lesson === props.value);
  }
  for (const option of select.options) option.textContent = `${done(option.value) ? "✓ " : ""}${titles.get(option.value)}`;
  const guesses = course.flatMap((name) => Object.values((learned[name] || {}).guesses || {}));
  const finished = course.filter(done).length;
  const right = guesses.filter(Boolean).length;
  status.textContent = `${finished} of ${course.length} done` + (guesses.length ? ` · ${right} of ${guesses.length} right` : "");
  status.title = "Lessons finished, and predictions that were right the first time; stored only in this browser";
  forget.hidden = !finished && !guesses.length;
}

/** A page was shown: { lesson, page, right, done }, where right is null unless a prediction was just judged. The first prediction counts. */
function take({ lesson, page, right, done: over }) {
  const entry = learned[lesson] || (learned[lesson] = { done: false, guesses: {} });
  if (right !== null && !(page in entry.guesses)) entry.guesses[page] = right;
  entry.done = entry.done || over;
  keep();
  show();
}

function choose(name) {
  props.value = name;
  trigger("input");
}

/** Print a lesson's sheet, or the teacher's notes for no name: a document of its own, from a hidden frame. */
async function print(name) {
  const html = await server.sheet(name);
  if (!html) {
    status.textContent = "There are no notes in this folder of lessons.";
    return;
  }
  let frame = element.querySelector("iframe");
  if (frame) frame.remove();
  frame = document.createElement("iframe");
  frame.title = "Printable sheet";
  frame.addEventListener("load", () => frame.contentWindow.print());
  frame.srcdoc = html;
  frame.hidden = true;
  element.append(frame);
}

/** Start a class whose phones answer the questions of the lesson, or go on with it after a reload. */
async function teach() {
  const { start } = await import(new URL(window.specvizPage.address("c/board.js"), location.href).href);
  start(element.closest(".sp-learn"), window.specvizPage.address);
}

/** Show a level of the playground in place of the recorded run, until the page is turned; without a level, the run again. */
function play(level) {
  learn.classList.toggle("sp-trying", Boolean(level));
  learn.querySelector(".sp-try")?.remove();
  if (!level) return;
  const [back, room] = [node("button", { type: "button", className: "sp-link" }, "Back to the recorded run"), node("div", {})];
  const box = node("div", { className: "sp-try" }, back, room);
  learn.querySelector(".sp-front").prepend(box);
  back.addEventListener("click", () => play(""));
  const script = /** @type {HTMLElement} */ (document.querySelector("[data-play]"));
  window.specvizPage.load(script.dataset.play, () => {
    window.SpecvizViewer?.play?.(room, level);
    back.focus();
    box.scrollIntoView({ block: "nearest" });
  });
}

select.addEventListener("change", () => choose(select.value));
learn.addEventListener("click", (event) => {
  const link = event.target.closest('a[href*="play="]');
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  event.stopPropagation(); // elsewhere such a link opens the Play tab
  play(new URL(link.href).searchParams.get("play"));
});
element.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.lesson) choose(button.dataset.lesson);
  if (button.dataset.do === "print") print(props.value);
  if (button.dataset.do === "notes") print("");
  if (button.dataset.do === "class") teach();
  if (button.dataset.do !== "forget") return;
  learned = {};
  keep();
  show();
});
document.addEventListener("specviz:lesson", (event) => {
  take(event.detail);
  play("");
});
watch("value", show);
show();
try {
  if (sessionStorage.getItem("specviz-class")) teach();
} catch { /* as above */ }

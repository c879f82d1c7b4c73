// @ts-check
// The step on the stage as a picture of its own: title, legend and tree in one SVG with every style inside, and as a PNG or a clip.
import * as dom from "../kit/dom.js";
import { SANS } from "../kit/dom.js";
import * as promptImage from "../kit/promptImage.js";
import * as motion from "../run/motion.js";

/** What a mark looks like. Other properties change nothing in an SVG of ours. */
const LOOKS = [
  "fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-opacity", "opacity",
  "font-family", "font-size", "font-weight", "text-anchor", "visibility", "display", "transform", "stroke-dashoffset",
];
const PAD = 16;
const LINE = 22;
const SIDE = 256;

/** A copy of an SVG element with its looks as computed, and without what only the page needs. @param {Element} element @returns {Element} */
function still(element) {
  const copy = /** @type {SVGElement} */ (element.cloneNode(true));
  const marks = [element, ...element.querySelectorAll("*")];
  const copies = [copy, ...copy.querySelectorAll("*")];
  copies.forEach((one, place) => {
    const looks = getComputedStyle(marks[place]);
    for (const name of LOOKS) {
      const value = looks.getPropertyValue(name);
      // A moving mark's place is in its style; a still one's is in its attribute.
      if (name !== "transform" || /** @type {SVGElement} */ (marks[place]).style.transform) /** @type {SVGElement} */ (one).style.setProperty(name, value);
    }
    for (const { name } of [...one.attributes]) if (/^(class|role|tabindex|aria-|data-)/.test(name)) one.removeAttribute(name);
  });
  marks.forEach((mark, place) => {
    const ring = mark.classList.contains("sv-ring") && getComputedStyle(mark).stroke === "none";
    if (mark.classList.contains("sv-hit") || ring || copies[place].getAttribute("style")?.includes("display: none")) copies[place].remove();
  });
  return copy;
}

/** @param {number} x @param {number} y @param {string} words @param {string} colour */
const text = (x, y, words, colour, size = 13, weight = 400) =>
  dom.s("text", { x, y, fill: colour, "font-family": SANS, "font-size": size, "font-weight": weight }, words);

/** Width of words in the picture's own font. @param {string} words @param {number} size */
function widthOf(words, size, weight = 400) {
  const pen = dom.pen(document.createElement("canvas"));
  pen.font = `${weight} ${size}px ${SANS}`;
  return pen.measureText(words).width;
}

/** The words of a step: which run, and what became of its draft. @param {Stage} stage @returns {[string, string]} */
function title(stage) {
  const { run } = stage.trace;
  const head = stage.root.querySelector(".sv-tree-card h2");
  return [run ? `${run.title} on ${run.target}` : "specviz", head && head.textContent ? head.textContent : ""];
}

/** The entries of the legend in lines no wider than the picture. @param {Stage} stage @param {number} wide @param {string} ink @returns {{ marks: Element[], lines: number }} */
function legend(stage, wide, ink) {
  /** @type {[string, Element][]} */
  const entries = [];
  for (const entry of stage.root.querySelectorAll(".sv-tree-card .sv-legend > span:not(.sv-legend-extra)")) {
    const sample = entry.querySelector("svg");
    if (sample) entries.push([entry.textContent || "", still(sample)]);
  }
  for (const [kind, words] of [["q", "q drafter"], ["p", "p target"]]) {
    const bar = stage.root.querySelector(`svg.sv-tree .sv-${kind}`);
    if (bar) entries.push([words, dom.s("rect", { x: 4, y: 7, width: 14, height: 3, fill: getComputedStyle(bar).fill })]);
  }
  /** @type {Element[]} */
  const marks = [];
  let [x, line] = [0, 0];
  for (const [words, sample] of entries) {
    const needs = 26 + widthOf(words, 12) + 14;
    if (x && x + needs > wide) [x, line] = [0, line + 1];
    marks.push(dom.s("g", { transform: `translate(${PAD + x} ${line * LINE})` }, sample, text(26, 13, words, ink, 12)));
    x += needs;
  }
  return { marks, lines: marks.length ? line + 1 : 0 };
}

/** @param {Stage} stage @returns {SVGSVGElement} */
const treeOf = (stage) => /** @type {any} */ (stage.root.querySelector("svg.sv-tree"));

/** A copy of an SVG at a place. @param {Element} element @param {Record<string, any>} place */
function placed(element, place) {
  const copy = still(element);
  for (const [name, value] of Object.entries(place)) copy.setAttribute(name, String(value));
  return copy;
}

/** The picture beside the tree: the one that was asked about, or what an image run has drawn so far, with its marks. @param {Stage} stage @param {{ x: number, y: number }} corner */
function painting(stage, corner) {
  const asked = promptImage.of(stage);
  const [width, height] = asked ? promptImage.fit(asked, SIDE) : [SIDE, SIDE];
  const place = { ...corner, width, height };
  if (asked) return [dom.s("image", { ...place, href: asked.address })];
  const box = stage.trace.run?.grid && stage.root.querySelector(".sv-picture-box");
  return box ? [dom.s("image", { ...place, href: /** @type {any} */ (box.firstChild).toDataURL(), style: "image-rendering: pixelated" }), placed(/** @type {Element} */ (box.lastChild), place)] : [];
}

/** The picture of what the stage shows, an SVG that needs no page around it. `part` of the tree is drawn, by default all that is marked. @param {Stage} stage @returns {SVGSVGElement} */
export function picture(stage, part = treeOf(stage).getBBox()) {
  const colours = getComputedStyle(stage.root);
  const [ink, mute, ground] = ["ink", "mute", "card"].map((name) => colours.getPropertyValue(`--sv-${name}`).trim());
  const size = { width: Math.ceil(part.width) + 4, height: Math.ceil(part.height) + 4 };
  const [what, how] = title(stage);
  const beside = stage.trace.run?.grid || promptImage.of(stage) ? SIDE + PAD : 0;
  const wide = Math.ceil(Math.max(beside + size.width, 420, widthOf(what, 15, 650), widthOf(how, 12.5)));
  const { marks, lines } = legend(stage, wide, mute);
  const top = PAD + 2 * LINE + 6;
  const down = top + lines * LINE + 6;
  const [width, height] = [wide + 2 * PAD, Math.ceil(down + Math.max(size.height, beside - PAD) + PAD)];
  const place = { x: PAD + beside, y: down, ...size, viewBox: `${part.x - 2} ${part.y - 2} ${size.width} ${size.height}` };
  const view = { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}`, role: "img" };
  return /** @type {any} */ (dom.s(
    "svg",
    { ...view, "aria-label": `${what}. ${how}` },
    dom.s("title", {}, `${what}. ${how}`),
    dom.s("rect", { width, height, fill: ground }),
    text(PAD, PAD + 14, what, ink, 15, 650),
    text(PAD, PAD + 14 + LINE, how, mute, 12.5),
    dom.s("g", { transform: `translate(0 ${top})` }, marks),
    painting(stage, { x: PAD, y: down }),
    placed(treeOf(stage), place),
  ));
}

/** @param {SVGSVGElement} drawn */
export const svg = (drawn) => new Blob([new XMLSerializer().serializeToString(drawn)], { type: "image/svg+xml" });

/** A canvas for a picture, with even sides, as video wants them, and what draws one on it. @param {SVGSVGElement} first @param {number} scale */
function easel(first, scale) {
  const [width, height] = ["width", "height"].map((side) => Number(first.getAttribute(side)));
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: 2 * Math.ceil((width * scale) / 2), height: 2 * Math.ceil((height * scale) / 2) });
  const pen = dom.pen(canvas);
  const ground = first.querySelector("rect")?.getAttribute("fill") || "";
  /** @param {HTMLImageElement} image */
  const draw = (image) => {
    pen.fillStyle = ground;
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.drawImage(image, 0, 0, image.width * scale, image.height * scale);
  };
  return { canvas, draw };
}

/** @param {SVGSVGElement} drawn @returns {Promise<HTMLImageElement>} */
async function imageOf(drawn) {
  const address = URL.createObjectURL(svg(drawn));
  const image = new Image();
  image.src = address;
  await image.decode();
  URL.revokeObjectURL(address);
  return image;
}

/** @param {SVGSVGElement} drawn @returns {Promise<Blob>} */
export async function png(drawn, scale = 2) {
  const { canvas, draw } = easel(drawn, scale);
  draw(await imageOf(drawn));
  return new Promise((done, fail) => canvas.toBlob((blob) => (blob ? done(blob) : fail(new Error("no picture was made"))), "image/png"));
}

const PER_SECOND = 12;
const WEBM = "video/webm";
export const clips = () => Boolean(globalThis.MediaRecorder?.isTypeSupported(WEBM) && HTMLCanvasElement.prototype.captureStream);

/** The current step in motion, as what `make` makes of a film. Its frames are drawn first, since a stage cannot be drawn as fast as it plays. @param {Stage} stage @param {(share: number) => void} progress @param {typeof film} make @returns {Promise<Blob>} */
export async function clip(stage, progress, make) {
  const { cursor } = stage;
  const count = Math.round((motion.pace(motion.of(stage.trace.steps[cursor])) / 1000) * PER_SECOND);
  const frames = [];
  /** @param {number} within */
  const show = (within) => {
    stage.seek(cursor, within * 0.999); // a finished step may be laid out otherwise
    stage.flush();
  };
  /** @type {DOMRect[]} */
  const boxes = [];
  for (let at = 0; at <= count; at += 1) {
    show(at / count);
    boxes.push(treeOf(stage).getBBox());
  }
  const [left, top] = [Math.min(...boxes.map(({ x }) => x)), Math.min(...boxes.map(({ y }) => y))];
  /** @type {any} */
  const part = { x: left, y: top, width: Math.max(...boxes.map(({ x, width }) => x + width)) - left, height: Math.max(...boxes.map(({ y, height }) => y + height)) - top };
  const { canvas, draw } = easel(picture(stage, part), 1.5);
  try {
    for (let at = 0; at <= count; at += 1) {
      show(at / count);
      frames.push(await imageOf(picture(stage, part)));
      progress(at / count);
    }
  } finally {
    stage.go(cursor);
    stage.flush();
  }
  return make({ canvas, seconds: count / PER_SECOND, draw: (share) => draw(frames[Math.round(share * count)]) }, () => {});
}

/** A film as a video, recorded while it is drawn; its last moment stays for a second. @param {import("./race.js").Film} film @param {(share: number) => void} progress @returns {Promise<Blob>} */
export async function film({ canvas, seconds, draw }, progress) {
  draw(0);
  const recorder = new MediaRecorder(canvas.captureStream(PER_SECOND), { mimeType: WEBM, videoBitsPerSecond: 4_000_000 });
  /** @type {Blob[]} */
  const parts = [];
  recorder.ondataavailable = ({ data }) => parts.push(data);
  const over = new Promise((done) => { recorder.onstop = done; });
  recorder.start();
  const count = Math.max(1, Math.round(seconds * PER_SECOND));
  for (let at = 0; at <= count + PER_SECOND; at += 1) {
    draw(Math.min(1, at / count));
    progress(Math.min(1, at / count));
    await new Promise((done) => setTimeout(done, 1000 / PER_SECOND));
  }
  recorder.stop();
  await over;
  return new Blob(parts, { type: WEBM });
}

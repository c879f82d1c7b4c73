// @ts-check
// What the story says, chapter by chapter, and the figure beside each. Numbers and words of the run are filled in from its record.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";

/** @typedef {ReturnType<typeof import("./numbers.js").ofRun> & ReturnType<typeof import("./numbers.js").ofRound> & { prompt: string, note: string }} Facts */
/** @typedef {{ title: string, figure: string, says: Child[][] }} Chapter Paragraphs beside a figure of figures.js. */

const token = (/** @type {string} */ text) => dom.h("code", {}, format.plain(text.trim()));
const b = (/** @type {string | number} */ text) => dom.h("b", {}, String(text));
const link = (/** @type {string} */ href, /** @type {string} */ words) => dom.h("a", { href }, words);
const one = (/** @type {number} */ value) => value.toFixed(1);
/** "a, b and c". @param {Child[]} items @returns {Child[]} */
const listed = (items) => items.flatMap((item, at) => [at === 0 ? "" : at === items.length - 1 ? " and " : ", ", item]);
const time = (/** @type {number} */ ns) => format.time(ns).replace(" ", "\u00a0");
const ms = (/** @type {number} */ ns) => (ns / 1e6).toPrecision(3);
/** @param {number} bytes */
export const megabytes = (bytes) => `${Math.round(bytes / 1e6)} MB`;
/** @param {number} bytes per ns */
export const rate = (bytes) => `${Math.round(bytes)} GB/s`;

/** @param {Facts} n @returns {Chapter[]} */
export const chapters = (n) => [
  {
    title: "One token at a time",
    figure: "lane",
    says: [
      ["A language model writes in tokens: words, or pieces of words. This one, SmolLM2, was asked: “", n.prompt, "”"],
      ["Each token takes one pass through the whole model, and no pass can begin before the previous one has ended, because it needs the token that came out. So ", b(`${n.tokens} tokens are ${n.tokens} passes`), ", one after another: ", b(time(n.plain)), "."],
    ],
  },
  {
    title: "What a pass gives",
    figure: "odds",
    says: [
      ["A pass does not give a word. It gives a ", b("probability for every token"), " the model knows: how likely each is to come next."],
      ["At temperature 0, as here, the likeliest is written: ", token(n.bonus), ". At temperature 1 one would be drawn with these odds."],
      ["Whatever we do to be faster, this must not change."],
    ],
  },
  {
    title: "The weights’ journey",
    figure: "journey",
    says: [
      ["Where do the ", b(time(n.alone)), " of a pass go? The model is ", b(`${one(n.weights / 1e6)} million weights`), " of two bytes each, more than fits beside the arithmetic units. So every pass fetches all ", b(megabytes(n.bytes)), " from memory; that is ", rate(n.rate), "."],
      ["For one token each weight is then used once, in one multiplication and one addition: little work after so long a journey. The arithmetic mostly waits. Such a pass is bound by ", b("memory bandwidth"), " rather than by computing."],
    ],
  },
  {
    title: "One journey for many",
    figure: "wide",
    says: [
      ["A weight that has arrived can serve several tokens. Passes over ", b(`${n.rows} tokens at once`), " took ", b(time(n.pass)), ` in this run: each token beyond the first added ${time(n.each)}, ${one((100 * n.each) / n.alone)} % of a pass. The rest is paid once: the journey, and the starting of each operation.`],
      ["It is not free without end. Every token brings its own arithmetic; at this price some ", b(Math.round(n.doubled)), " more double the pass. On paper an H100 computes 295 rows in the time it reads its 16-bit weights, but a busy server fills these rows with other people’s requests. ", link("?tab=play&play=cost", "Try other machines"), "."],
      ["One question is left. A pass needs the token before it. Where would ", n.rows, " tokens come from?"],
    ],
  },
  {
    title: "A guess",
    figure: "draft",
    says: [
      ["Someone guesses. A ", b("drafter"), ", small and fast, writes down what the model will probably say. Here it is EAGLE-3, trained for this very model."],
      [`It guesses ${n.levels} tokens deep, and where it is unsure it keeps several ways open, so its guesses are a tree. Of ${n.weighed} that it weighed it sends the best `, b(n.sent), ". Time: ", b(time(n.guessing)), "."],
      ["Nothing of this is written yet. A guess, a pass and a verdict are one ", b("step"), "."],
    ],
  },
  {
    title: "One pass over all guesses",
    figure: "verify",
    says: [
      [`The last written token and all ${n.sent} guesses go through the model together: ${n.rows} rows, `, b("one journey of the weights"), `, ${time(n.verifying)}.`],
      ["A mask lets each guess see only what it follows from. So the model answers, at every guess, as if the text had gone exactly that way: here is what I would write next."],
    ],
  },
  {
    title: "The verdict",
    figure: "judge",
    says: [
      ["Now walk from the left. At each place the model has named its own next token. If it is among the guesses, that guess is not merely good, it is ", b("what would have been written anyway"), ": keep it, go on."],
      [...listed(n.kept.map(token)), ": ", b(`${n.kept.length} kept`), ". After ", token(n.last), " the drafter had guessed ", ...listed(n.wrong.map(token)), ". The model says ", token(n.bonus), ". Those guesses fall, and all that hangs on them."],
      ["At higher temperatures a weighted coin decides, such that the text keeps the model’s odds: ", link("?tab=play&play=one", "drop the coins"), "."],
    ],
  },
  {
    title: "The bonus",
    figure: "commit",
    says: [
      ["The pass has already computed the token after the last kept guess: ", token(n.bonus), ". It is the model’s own word, and it comes with the pass."],
      ["So a pass never writes less than one token. Were all guesses wrong, only time would be lost: that of guessing, and of the wider pass. Here it wrote ", b(`${n.kept.length} guesses + 1 bonus = ${n.kept.length + 1} tokens`), "."],
    ],
  },
  {
    title: "The bill",
    figure: "bill",
    says: [
      [`${n.rounds} such steps wrote the ${n.tokens} tokens, the same ones: `, b(`τ = ${n.tau.toFixed(2)}`), " a step. One at a time, the tokens of a step would cost ", dom.h("span", { class: "sst-product" }, "τ · t", dom.h("sub", {}, "alone")), ". Divide this by what the step did cost:"],
      [dom.h("span", { class: "sst-formula" }, dom.h("span", {}, "τ · t", dom.h("sub", {}, "alone"), " ÷ (t", dom.h("sub", {}, "draft"), " + t", dom.h("sub", {}, "pass"), " + t", dom.h("sub", {}, "rest"), ")"),
        dom.h("span", {}, `= ${n.tau.toFixed(2)} · ${ms(n.alone)} ms ÷ (${ms(n.draft)} + ${ms(n.pass)} + ${ms(n.rest)}) ms`), dom.h("b", {}, `= ${n.speedup.toFixed(2)}×`))],
      ["It does not always pay: a drafter that is wrong too often or too slow, or a machine with no room for wide passes, can make it a loss. And this run is a good one. ", n.note],
    ],
  },
  {
    title: "Your turn",
    figure: "bill",
    says: [
      ["That is speculative decoding. Methods differ in who guesses, in what shape, and in how strictly it is judged. Over twenty of them are recorded here."],
      [dom.h("span", { class: "sst-doors" },
        link("?tab=text", "Watch a run, step by step"), link("?tab=play&play=one", "Play with the odds"), link("?tab=learn", "Take the lessons"), link("?tab=methods&methods=papers", "See the papers, year by year"), dom.h("a", { href: "?tab=text", "data-own": "" }, "Run your own prompt"))],
    ],
  },
];

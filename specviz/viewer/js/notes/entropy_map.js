// Where the target looks least scattered, layer by layer, and which patches a drafted word was guessed from.
const entropyMap = (() => {
  const SHADES = 6;
  const { text, box } = sketch;

  function read(note) {
    const rows = study.list(note && note.entropy).slice(0, 128).map((row) => study.list(row).slice(0, 2000).map((one) => study.number(one) || 0));
    const chosen = study.list(note && note.chosen).map(study.number);
    const middle = study.list(note && note.middle).map(study.number);
    return { rows, chosen, middle, columns: Math.max(0, ...rows.map((row) => row.length)) };
  }

  /** The tokens from the root's child down to this node. */
  function path(step, id) {
    const found = [];
    for (let at = id; at > 0; at = step.nodes[at].parent) found.unshift(step.nodes[at].token);
    return found;
  }

  /** The look from which the chosen node was guessed: that of its parent's row. */
  function looked(note, step, stage) {
    const node = stage.selected;
    const parent = node && node.id !== 0 ? node.parent : 0;
    const wanted = path(step, parent).join(" ");
    const rows = study.list(note.looks);
    const found = rows.find((one) => study.list(one.tokens).join(" ") === wanted) || rows[0] || null;
    return { found, word: found && node && node.id !== 0 && study.list(found.tokens).join(" ") === wanted ? node.text : "" };
  }

  /** One path for every shade: a rectangle for every cell would be thousands. */
  function heat(told, left, top, wide, high) {
    const most = Math.max(1e-9, ...told.rows.map((row) => Math.max(0, ...row)));
    const shades = Array.from({ length: SHADES }, () => "");
    told.rows.forEach((row, layer) =>
      row.forEach((value, column) => {
        const shade = Math.min(SHADES - 1, Math.floor((SHADES * value) / most));
        const [x, y] = [left + column * wide, top + (told.rows.length - 1 - layer) * high];
        shades[shade] += `M${sketch.round(x)} ${sketch.round(y)}h${sketch.round(wide)}v${sketch.round(high)}h${-sketch.round(wide)}z`;
      }),
    );
    return shades.map((d, shade) => (d ? dom.s("path", { d, class: "sv-heatcell", style: `opacity:${(0.06 + (0.94 * shade) / (SHADES - 1)).toFixed(2)}` }) : null));
  }

  function map(told, stage) {
    const { u } = stage;
    const [left, top] = [62 * u, 4];
    const wide = (stage.column - left - 4) / told.columns;
    const high = Math.min(14 * u, (0.34 * stage.tall) / told.rows.length);
    const low = top + told.rows.length * high;
    const name = (layer) => text(stage, left - 6 * u, top + (told.rows.length - layer - 0.5) * high + 4, `layer ${layer}`, { anchor: "end", kind: "sv-mute" });
    const marks = told.chosen.map((layer, column) =>
      layer === null || layer >= told.rows.length ? null : box(left + column * wide, top + (told.rows.length - 1 - layer) * high, wide, high, "sv-chosencell", 0),
    );
    const names = [name(0), name(told.rows.length - 1)];
    const below = text(stage, left, low + 15 * u, "prompt, from its first token to its last but one", { kind: "sv-mute" });
    const spoken = `Entropy of attention in ${told.rows.length} layers at ${told.columns} places; the least scattered of layers ${told.middle.join(", ")} is outlined.`;
    return sketch.frame(stage.column, low + 20 * u, spoken, heat(told, left, top, wide, high), marks, names, below);
  }

  function arcs(picture, look, stage, kept) {
    const { u } = stage;
    const side = Math.min(stage.column * 0.62, Math.max(120, stage.tall * 0.5));
    const [wide, high] = sight.fit(picture, side);
    const [x, y] = [stage.column - wide - 2, 2];
    const from = [stage.column - wide - 26 * u, high / 2];
    const rows = study.list(look.found && look.found.at).filter((one) => study.number(one && one[0]) !== null);
    const most = Math.max(1e-9, ...rows.map((one) => study.number(one[1]) || 0));
    const lines = rows.map(([place, weight]) => {
      const at = sight.middle(picture, place, x, y, side);
      if (!at) return null;
      const d = `M${sketch.round(from[0])} ${sketch.round(from[1])}Q${sketch.round((from[0] + at[0]) / 2)} ${sketch.round(Math.min(from[1], at[1]) - 12 * u)} ${sketch.round(at[0])} ${sketch.round(at[1])}`;
      return dom.s("path", { d, class: "sv-arc", "stroke-width": sketch.round(1 + (4 * (study.number(weight) || 0)) / most) });
    });
    const at = new Set(rows.map((one) => one[0]));
    const kind = (place) => `sv-patch ${kept.has(place) ? "" : "sv-greyed"} ${at.has(place) ? "sv-lookedat" : ""}`;
    const word = text(stage, from[0] - 6 * u, from[1] + 4, words.token(look.word, 12) || "next", { anchor: "end", bold: true, kind: "sv-word" });
    return sketch.frame(stage.column, high + 4, sentence(look), sight.draw(picture, x, y, side, kind), lines, sketch.disc(...from, 3, "sv-rootmark"), word);
  }

  function sentence(look) {
    if (!look.found) return "Nothing was drafted in this step.";
    const share = words.chance(study.number(look.found.picture) || 0);
    const what = look.word ? `When the drafter guessed ${words.quote(look.word)}` : "When the drafter guessed the first word of this step";
    return `${what}, ${share} of its look across went to the picture. Arcs lead to the patches it looked at most; greyed ones it never got.`;
  }

  function draw(note, step, stage) {
    const told = read(sight.first(stage, "entropy_map"));
    const picture = sight.of(stage);
    const look = looked(note, step, stage);
    const seen = step.notes.find((one) => one.type === "visual_tokens");
    const kept = new Set(sight.places(seen && seen.kept));
    const said = `Dark is scattered, pale is focused. Of layers ${told.middle.join(", ")} the most focused one (outlined) taught the drafter's middle.`;
    return dom.h(
      "div",
      {},
      sketch.caption(sentence(look)),
      picture ? arcs(picture, look, stage, kept) : null,
      told.columns ? [sketch.caption(said), map(told, stage)] : null,
    );
  }

  return { draw };
})();

notebook.register("entropy_map", { title: "Where it looks", roomy: true, draw: entropyMap.draw });

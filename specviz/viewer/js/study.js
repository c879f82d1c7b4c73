// Reads one wire line of kind "step" into what the panels need; refuses a line that breaks the format.
const study = (() => {
  const STATUSES = ["root", "accepted", "relaxed", "rejected", "skipped", "pruned", "resampled"];
  const JUDGED = new Set(["accepted", "relaxed", "rejected", "resampled"]);
  const FAILED = new Set(["rejected", "resampled"]);
  const PHASES = ["draft", "verify", "judge", "commit", "host"];
  const MOST_NODES = 20000;

  const number = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);
  const list = (value) => (Array.isArray(value) ? value : []);
  const text = (value) =>
    typeof value === "string" ? value : value === null || value === undefined ? "" : String(value);

  function node(raw, id, before) {
    const [parent, token, word, q, p, status, threshold, draw, grid] = list(raw);
    const root = id === 0;
    if (!Number.isInteger(parent) || (root ? parent !== -1 : parent < 0 || parent >= id)) {
      throw new Error(`node ${id} has parent ${parent}`);
    }
    const up = root ? null : before[parent];
    const made = {
      id,
      parent,
      token,
      text: text(word),
      q: number(q),
      p: number(p),
      status: root ? "root" : STATUSES.includes(status) ? status : "skipped",
      threshold: number(threshold),
      draw: number(draw),
      grid: Array.isArray(grid) ? grid : null,
      depth: root ? 0 : up.depth + 1,
      children: [],
      rank: root ? 0 : up.children.length,
    };
    if (up) up.children.push(id);
    return made;
  }

  function bonus(raw, nodes) {
    if (!Array.isArray(raw)) return null;
    const [parent, token, word, p, source, grid] = raw;
    if (!Number.isInteger(parent) || parent < 0 || parent >= nodes.length) throw new Error("the bonus hangs nowhere");
    return {
      id: "bonus",
      parent,
      token,
      text: text(word),
      p: number(p),
      source: source || "target",
      status: "bonus",
      grid: Array.isArray(grid) ? grid : null,
      depth: nodes[parent].depth + 1,
      children: [],
    };
  }

  /** How each emitted token came to be: the node it was drafted as, or the bonus. */
  function origins(step) {
    return step.emitted.map((_, place) => {
      const id = step.path[place];
      return id === undefined ? { kind: "bonus", id: "bonus" } : { kind: step.nodes[id].status, id };
    });
  }

  function counts(step) {
    const found = Object.fromEntries(STATUSES.map((status) => [status, 0]));
    for (const one of step.nodes) found[one.status] += 1;
    found.drafted = step.nodes.length - 1;
    const said = step.path.slice(0, step.emitted.length);
    found.kept = said.filter((id) => step.nodes[id].status !== "resampled").length;
    return found;
  }

  /** Where the walk ended: the last accepted node, else the root. */
  const last = (step) => step.nodes[step.bonus ? step.bonus.parent : step.path[step.path.length - 1] || 0];

  function rows(raw) {
    return new Map(
      list(raw).map(([at, top]) => [
        at,
        list(top).map(([token, word, p]) => ({ token, text: text(word), p: number(p) })),
      ]),
    );
  }

  /** A step line as an object, or an Error that says what is wrong with it. */
  function step(raw) {
    if (list(raw.nodes).length > MOST_NODES) throw new Error("a tree of more than 20 000 nodes");
    const nodes = [];
    list(raw.nodes).forEach((one, id) => nodes.push(node(one, id, nodes)));
    if (!nodes.length) throw new Error("a step without a root");
    const times = PHASES.map((_, place) => Math.max(0, number(list(raw.time)[place]) || 0));
    const made = {
      index: number(raw.index) || 0,
      position: number(raw.position) || 0,
      nodes,
      path: list(raw.path).filter((id) => Number.isInteger(id) && id > 0 && id < nodes.length),
      emitted: list(raw.emitted),
      pieces: list(raw.pieces).map(text),
      rule: text(raw.rule) || "none",
      certain: raw.certain === true,
      times,
      total: times.reduce((sum, one) => sum + one, 0),
      cut: raw.cut || null,
      calls: number(raw.draft_calls) || 0,
      verified: number(raw.verified) || 0,
      padded: number(raw.padded) || 1,
      rows: rows(raw.rows),
      notes: list(raw.notes).filter((note) => note && typeof note === "object"),
    };
    made.bonus = bonus(raw.bonus, nodes);
    made.origins = origins(made);
    made.counts = counts(made);
    made.end = last(made);
    // A step whose verdict is kept back, as a lesson does before its reveal.
    made.veiled = !made.bonus && !made.emitted.length;
    // The target overruled the draft: it had children to choose from where the walk ended, and took none of them.
    made.overruled = Boolean(made.bonus) && made.end.children.some((id) => FAILED.has(made.nodes[id].status));
    return made;
  }

  /** Node or bonus by its id in this step, or null. */
  const find = (made, id) => (id === "bonus" ? made.bonus : made.nodes[id] || null);

  /**
   * What a rule that weighs p against q really set against each other at this node: `q` 1 for a guess that was chosen, and
   * under relaxed acceptance what earlier guesses in the same place had left of both. Null where nothing was weighed.
   */
  function weighed(made, node) {
    if (node.p === null || node.status === "pruned") return null;
    if (made.rule === "relaxed") {
      const told = made.notes.find((note) => note.type === "relaxed");
      const row = told && list(told.nodes).find((one) => one && one.node === node.id);
      if (!row || number(row.p) === null) return null;
      return { p: row.p, q: number(row.q) === null ? 1 : row.q, left: node.rank > 0 };
    }
    if (made.rule !== "ratio" && node.rank > 0) return null; // what earlier guesses left is not in the record
    return { p: node.p, q: made.certain || node.q === null ? 1 : node.q, left: false };
  }

  /** The children of `node` that the target was asked about. */
  const sent = (made, node) => node.children.filter((id) => made.nodes[id].status !== "pruned");

  return { step, find, sent, weighed, JUDGED, FAILED, PHASES, STATUSES, number, list, text };
})();

// A method's own story about a step. Each note type has a small drawing of its own; an unknown one is listed as it is.
const notebook = (() => {
  const known = new Map();

  /** `drawing` has a title and draw(data, step, stage) returning elements. One file in js/notes/ for each note type. */
  const register = (type, drawing) => known.set(type, drawing);

  const title = (note) => (known.has(note.type) ? known.get(note.type).title : "Method");

  function draw(pane, stage, notes) {
    if (!notes.length)
      return pane.replaceChildren(dom.h("p", { class: "sv-mute" }, "The method left no note on this step."));
    stage.column = Math.max(230, pane.clientWidth - 26);
    const several = notes.length > 1 || !known.has(notes[0].type);
    pane.replaceChildren(
      ...notes.map((note) =>
        dom.h("section", { class: "sv-note" }, several ? dom.h("h3", {}, heading(note)) : null, one(note, stage)),
      ),
    );
    return undefined;
  }

  const heading = (note) =>
    known.has(note.type) ? known.get(note.type).title : `Note “${words.short(study.text(note.type), 40)}”`;

  function one(note, stage) {
    if (known.has(note.type)) {
      try {
        return known.get(note.type).draw(note, stage.step, stage);
      } catch {
        // A note that is not as its type promises is shown as it is, like one of an unknown type.
      }
    }
    return listed(note);
  }

  function listed(note) {
    const rows = Object.entries(note)
      .filter(([name]) => name !== "type")
      .slice(0, 12);
    return dom.h(
      "dl",
      { class: "sv-raw" },
      rows.map(([name, value]) => [
        dom.h("dt", {}, words.short(name, 40)),
        dom.h("dd", {}, words.short(JSON.stringify(value) || "", 240)),
      ]),
    );
  }

  /** Of a note's rows, the one about the chosen node's place: its own, else its parent's, else the first. */
  function focus(rows, stage) {
    const { selected } = stage;
    const at = (id) => rows.find((row) => row.node === id);
    return (selected && (at(selected.id) || at(selected.parent))) || rows[0];
  }

  /** Buttons that choose the row to look at, by picking its node in the tree. */
  function chooser(rows, shown, stage) {
    if (rows.length < 2) return null;
    return dom.h(
      "div",
      { class: "sv-chooser" },
      rows.map((row) => {
        const node = stage.step.nodes[row.node];
        return dom.button(
          words.token(node ? node.text : String(row.node), 10),
          `the row used after this node`,
          () => stage.pick(row.node),
          { "aria-pressed": String(row === shown) },
        );
      }),
    );
  }

  /** The verdict on the child of `node` that carries `token`, or null when it was not drafted there. */
  function verdict(step, node, token) {
    const up = step.nodes[node];
    const found = up && up.children.map((id) => step.nodes[id]).find((child) => child.token === token);
    return found ? found.status : null;
  }

  return { register, title, draw, focus, chooser, verdict };
})();

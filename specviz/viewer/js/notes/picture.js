// The picture a run is about, as the model saw it, cut into the patches that became tokens.
const pictureNote = (() => {
  const lost = () => sketch.caption("The picture that came with this run cannot be drawn.");

  function draw(note, step, stage) {
    const picture = sight.of(stage);
    if (!picture) return lost();
    const many = picture.at.size;
    const cut = picture.rows ? `${picture.rows} × ${picture.columns} patches` : "several tiles of patches";
    const took = study.number(note.encoding_ns);
    const once = took ? ` Encoding it took ${words.time(took)}, once for every method.` : "";
    const said = `The picture as the model sees it: ${cut}. They are ${many} of the prompt's ${picture.prompt} tokens.${once}`;
    const side = Math.min(stage.column - 4, Math.max(150, stage.tall - 90));
    const [wide, high] = sight.fit(picture, side);
    const drawn = sight.draw(picture, 1, 1, side, () => "sv-patch");
    return dom.h("div", {}, sketch.caption(said), sketch.frame(wide + 2, high + 2, said, drawn));
  }

  return { draw };
})();

notebook.register("picture", { title: "Picture", draw: pictureNote.draw });

// The rows of the picture that a step changed, as the decoder draws them now.
const canvas = (() => {
  function draw(note, step, stage) {
    const image = dom.h("img", {
      class: "sv-band",
      alt: `Rows ${Number(note.row) + 1} to ${Number(note.row) + Number(note.rows)} of the picture`,
      src: /^[A-Za-z0-9+/=]+$/.test(note.png) ? `data:image/png;base64,${note.png}` : "",
    });
    image.style.width = `${stage.column}px`;
    const said = `Rows ${Number(note.row) + 1} to ${Number(note.row) + Number(note.rows)} after this step, ${note.codes} codes drawn so far.`;
    return dom.h("div", {}, sketch.caption(said), image);
  }

  return { draw };
})();

notebook.register("canvas", { title: "Rows so far", draw: canvas.draw });

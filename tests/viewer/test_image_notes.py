"""What the viewer makes of image runs: codes and colours, cells by verdict, distortion, and judging a step again."""

from __future__ import annotations

import pytest
from tests.image_runs import GRID, image_trace
from tests.viewer.conftest import Evaluate

from specviz.trace import store

READ = """
const { codes, distortion, relaxed } = SpecvizViewer.parts;
const taken = feed({});
taken.accept(given.text);
const trace = taken.trace;
"""


def told(method: str) -> dict[str, object]:
    return {"text": "".join(line + "\n" for line in store.lines(image_trace(method)))}


def test_the_codebook_comes_out_of_the_run_line_as_it_went_in(node: Evaluate) -> None:
    from specviz.views.code_map import codes_of

    body = READ + """
    const book = codes.of(trace.run);
    return [book.size, codes.colour(book, 7), book.x(7), book.y(7), codes.colour(book, 999)];
    """
    size, colour, x, y, beyond = node(body, told("lantern_pp"))
    known = codes_of(image_trace("lantern_pp").run)
    assert size == 60 and beyond is None
    assert colour.replace(" ", ",") == known.colours[7]
    assert (x, y) == pytest.approx(known.places[7], abs=1e-4)


def test_a_damaged_codebook_draws_grey_and_breaks_nothing(node: Evaluate) -> None:
    body = "const { codes } = SpecvizViewer.parts; return codes.of({ codebook: { size: 9, places: '***', colours: 'x' } });"
    assert node(body) is None


@pytest.mark.parametrize("method", ["lantern_pp", "lantern"])
def test_judging_again_under_the_recorded_limit_finds_the_recorded_path(node: Evaluate, method: str) -> None:
    body = (
        READ
        + """
    return trace.steps.map((step) => {
      const note = step.notes.find((one) => one.type === "relaxed");
      if (!note) return [step.path.length, step.path.length];
      const delta = typeof note.delta === "number";
      return [step.path.length, relaxed.again(note, step, delta ? "δ" : "λ", delta ? note.delta : note.factor).count];
    });
    """
    )
    pairs = node(body, told(method))
    assert sum(kept for kept, _ in pairs) > 10
    wrong = [pair for pair in pairs if pair[0] != pair[1]]
    assert len(wrong) <= 1, "numbers are rounded to five digits in the file, which may tip a coin"


def test_a_stricter_limit_never_keeps_more_of_a_recorded_step(node: Evaluate) -> None:
    body = (
        READ
        + """
    return trace.steps.map((step) => {
      const note = step.notes.find((one) => one.type === "relaxed");
      return note ? [1, 2, 4, 8, 16].map((limit) => relaxed.again(note, step, "λ", limit)) : [];
    });
    """
    )
    loosened = 0
    for found in node(body, told("lantern_pp")):
        for strict, loose in zip(found, found[1:], strict=False):
            # A walk that turned into a branch nobody judged is marked as unsure, and may be shorter.
            assert loose["unsure"] or loose["count"] >= strict["count"]
            loosened += loose["count"] > strict["count"]
    assert loosened


def test_distortion_is_the_mass_moved_by_relaxed_codes(node: Evaluate) -> None:
    trace = image_trace("lantern")
    moved = 0.0
    for step in trace.steps:
        for note in step.notes:
            if note.type == "relaxed":
                moved += sum(one["moved"] for one in note.data["nodes"] if step.nodes[one["node"]].status == "relaxed")
    found = node(READ + "return distortion.until(trace, trace.steps.length - 1);", told("lantern"))
    assert moved > 0
    assert found["mean"] == pytest.approx(moved / GRID**2, rel=1e-3)
    assert found["most"] == pytest.approx(0.3)
    assert node(READ + "return distortion.until(trace, trace.steps.length - 1);", told("autoregressive")) is None


def test_cells_drawn_again_are_not_counted_as_accepted(node: Evaluate) -> None:
    trace = image_trace("mulo_sd")
    counts = node(READ + "return trace.steps.map((step) => step.counts.kept);", told("mulo_sd"))
    assert counts == [step.accepted for step in trace.steps]

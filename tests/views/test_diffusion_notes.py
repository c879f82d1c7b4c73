"""The stories of blocks that are filled at once: masks, guesses, verdicts; beams through a lattice, the fence, the gauge."""

from __future__ import annotations

from dataclasses import replace

from specviz import views
from specviz.trace.schema import Node
from tests.views.made import SILENT, TREE, labels, trace, with_note
from tests.views.test_notes import DATA, noted

CHAIN = replace(
    TREE,
    nodes=(
        Node(-1, 1, " the", status="root"),
        Node(0, 3, " sea", 0.3, 0.6, "accepted"),
        Node(1, 5, " was", 0.3, 0.01, "rejected"),
    ),
    path=(1,),
    bonus=replace(TREE.bonus, parent=1),
    emitted=(3, 8),
    pieces=(" sea", " blue"),
    verified=2,
)


def test_masks_stand_above_what_they_became_and_the_lengths_of_the_run_below() -> None:
    step = with_note(CHAIN, "denoised", DATA["denoised"])
    figure = views.denoised(trace(step, TREE, TREE), 0)
    assert figure.layout.title.text == "Step 1 · 2 masks resolved in one forward, 1 accepted"
    said = labels(figure)
    assert {"mask 1", "mask 2", "·sea", "·was"} <= set(said)
    assert said.count("·sky") == 1 and "0.60" in said, "the likeliest token of the place, which was not the one drawn"
    bars = {
        one.name: [x for x in one.x if x is not None]
        for one in figure.data
        if one.name in ("steps", "this step's length")
    }
    assert bars["steps"][1] - bars["steps"][0] == 2 * (bars["this step's length"][1] - bars["this step's length"][0])


def test_the_best_beam_is_followed_back_through_its_parents() -> None:
    figure = views.lattice(trace(with_note(CHAIN, "lattice", DATA["lattice"])), 0)
    assert figure.layout.title.text == "Step 1 · 2 tokens through 2 columns, 1 accepted"
    pills = sum(shape.path.count("Z") for shape in figure.layout.shapes if shape.fillcolor and shape.fillcolor != "")
    lines = {one.name: one for one in figure.data if one.name in ("beams", "drafted path")}
    assert len(lines["beams"].x) == 6 and len(lines["drafted path"].x) == 3
    # The path goes from the second row (" sea") to the second (" was"), though both likeliest tokens are in the first.
    assert lines["drafted path"].y[0] == lines["drafted path"].y[1]
    assert pills >= 2 and "end of the text" in labels(figure) and "+6 more" in labels(figure)


def test_the_gauge_tells_masks_and_means() -> None:
    figure = views.lattice(noted("lattice"), 0)
    said = labels(figure)
    assert {"length of the draft (adapts)", "masks now", "accepted, mean", "between 2 and 8", "1.25", "3.50"} <= set(
        said
    )
    fixed = DATA["lattice"] | {"gauge": {**DATA["lattice"]["gauge"], "adaptive": False}, "fence": None}
    figure = views.lattice(noted("lattice", fixed), 0)
    assert "length of the draft (fixed)" in labels(figure) and "end of the text" not in labels(figure)


def test_without_a_block_it_says_so() -> None:
    assert (
        "nothing was drafted"
        in views.denoised(trace(with_note(SILENT, "denoised", {"places": []})), 0).layout.title.text
    )
    empty = DATA["lattice"] | {"columns": [], "beams": [], "fence": None}
    assert "nothing was drafted" in views.lattice(trace(with_note(SILENT, "lattice", empty)), 0).layout.title.text

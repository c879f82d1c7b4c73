"""What the viewer makes of image runs: codes and colours, cells by verdict, distortion, and judging a step again."""

import base64
import collections
import io
import struct

import pytest
from msgspec.structs import replace
from PIL import Image

from specviz.trace import store
from tests.support.traces.image_runs import GRID, image_trace
from tests.support.viewer import cases

READ = """
const [codes, distortion, relaxed] = ["kit/codes", "run/distortion", "notes/relaxed"].map((name) => modules[name]);
const taken = feed({});
taken.accept(given.text);
const trace = taken.trace;
"""


def told(method):
    return {"text": "".join(line + "\n" for line in store.lines(image_trace(method)))}


def test_the_codebook_comes_out_of_the_run_line_as_it_went_in(node):
    body = (
        READ
        + """
    const book = codes.of(trace.run);
    return [book.size, codes.colour(book, 7), book.x(7), book.y(7), codes.colour(book, 999)];
    """
    )
    size, colour, x, y, beyond = node(body, told("lantern_pp"))
    book = image_trace("lantern_pp").run.codebook
    assert size == 60 and beyond is None
    paints, places = base64.b64decode(book.colours), struct.unpack_from("<2H", base64.b64decode(book.places), 4 * 7)
    assert colour == "rgb({} {} {})".format(*paints[21:24])
    assert (x, y) == pytest.approx([place / 65535 for place in places], abs=1e-4)


def test_a_code_s_patch_is_a_picture_of_its_pixels(node):
    book = image_trace("lantern_pp").run.codebook
    pixels = base64.b64decode(book.patches)
    side = round((len(pixels) / 3 / book.size) ** 0.5)
    address = node(READ + "return codes.address(codes.of(trace.run), 7);", told("lantern_pp"))
    drawn = Image.open(io.BytesIO(base64.b64decode(address.removeprefix("data:image/bmp;base64,"))))
    assert drawn.size == (side, side)
    assert drawn.convert("RGB").tobytes() == pixels[7 * side * side * 3 : 8 * side * side * 3]


@pytest.mark.parametrize("patches", ["", "AAAA", "***"])
def test_without_whole_patches_codes_keep_their_numbers(node, patches):
    trace = image_trace("lantern_pp")
    run = replace(trace.run, codebook=replace(trace.run.codebook, patches=patches))
    text = "".join(line + "\n" for line in store.lines(replace(trace, run=run)))
    body = "const book = codes.of(trace.run); return [codes.named(book, 'after “#7”'), codes.address(book, 7)];"
    assert node(READ + body, {"text": text}) == [["after “#7”"], None]


def test_a_damaged_codebook_draws_grey_and_breaks_nothing(node):
    body = "return modules['kit/codes'].of({ codebook: { size: 9, places: '***', colours: 'x' } });"
    assert node(body) is None


@pytest.mark.spread(1)
@pytest.mark.parametrize("method", ["lantern_pp", "lantern"])
def test_judging_again_under_the_recorded_limit_finds_the_recorded_path(node, method):
    body = (
        READ
        + """
    return trace.steps.map((step) => {
      const note = step.notes.find((one) => one.type === "relaxed");
      if (!note) return [step.path.length, step.path.length];
      const delta = typeof note.delta === "number";
      return [step.path.length, relaxed.replayPath(note, step, delta ? "δ" : "λ", delta ? note.delta : note.factor).count];
    });
    """
    )
    pairs = node(body, told(method))
    assert sum(kept for kept, _ in pairs) > 10
    wrong = [pair for pair in pairs if pair[0] != pair[1]]
    assert len(wrong) <= 1, "numbers are rounded to five digits in the file, which may tip a uniform draw"


def test_a_stricter_limit_never_keeps_more_of_a_recorded_step(node):
    body = (
        READ
        + """
    return trace.steps.map((step) => {
      const note = step.notes.find((one) => one.type === "relaxed");
      return note ? [1, 2, 4, 8, 16].map((limit) => relaxed.replayPath(note, step, "λ", limit)) : [];
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


def test_distortion_is_the_mass_moved_by_relaxed_codes(node):
    trace = image_trace("lantern")
    moved = 0.0
    for step in trace.steps:
        for note in step.notes:
            if note.type == "relaxed":
                moved += sum(one["moved"] for one in note.data["nodes"] if step.nodes[one["node"]].status == "relaxed")
    found = node(READ + "return distortion.until(trace, trace.steps.length - 1);", told("lantern"))
    assert moved > 0
    assert found["mean"] == pytest.approx(moved / GRID**2, rel=1e-3)
    most = max(
        collections.Counter(step.nodes[one["node"]].parent for one in note.data["nodes"]).most_common(1)[0][1]
        for step in trace.steps
        for note in step.notes
        if note.type == "relaxed"
    )
    assert most > 1 and found["bound"] == pytest.approx(1 - 0.7**most)
    assert node(READ + "return distortion.until(trace, trace.steps.length - 1);", told("autoregressive")) is None


def test_a_limit_is_only_called_proven_where_it_is(node):
    """The exact residual above temperature 0: 1 - 1/lambda; the published code's form has no bound, nor has temperature 0."""
    body = (
        READ
        + """
    const bounds = [];
    for (const change of [(step, note) => {}, (step, note) => { note.form = "repository"; },
      (step, note) => { for (const one of step.nodes) one.draw = null; }]) {
      const again = feed({});
      again.accept(given.text);
      for (const step of again.trace.steps) {
        const note = step.notes.find((one) => one.type === "relaxed");
        if (note) change(step, note);
      }
      const spent = distortion.until(again.trace, again.trace.steps.length - 1);
      bounds.push([spent.bound, distortion.sentence(spent)]);
    }
    return bounds;
    """
    )
    (proven, said), (none, unsaid), (greedy, _) = node(body, told("lantern_pp"))
    assert proven == pytest.approx(1 - 1 / 4) and "by more than 0.75" in said
    assert none is None and greedy is None and "no bound is proven" in unsaid


@pytest.mark.parametrize("method", ["lantern", "lantern_pp"])
def test_the_proof_of_a_relaxed_code_says_that_the_strict_rule_rejects_it(node, method):
    body = (
        READ
        + """
    const found = [];
    for (const step of trace.steps) for (const one of step.nodes)
      if (["accepted", "relaxed"].includes(one.status)) found.push([one.status, rules.explain(step, one)]);
    return found;
    """
    )
    found = node(body, told(method))
    kinds = collections.Counter(status for status, _ in found)
    assert kinds["relaxed"] > 2 and kinds["accepted"] > 2
    for status, said in found:
        assert ("would have been rejected" if status == "relaxed" else "would have been kept too") in said
        assert ("chosen, not drawn" in said) == (method == "lantern")


SIBLINGS = [cases.node(-1, "a", "root"), cases.node(0, "b", "accepted", None, 0.3), cases.node(0, "c", "skipped")]
JUDGED = {"node": 1, "p": 0.3, "q": 1.0, "limit": 0.4, "count": 1, "moved": 0.3, "near": [], "mass": [], "sums": [[1, 0.3]]}
NOTE = {"type": "relaxed", "form": "exact", "delta": 0.4, "k": 2, "nodes": [JUDGED]}


def test_a_walk_that_needs_a_sibling_nobody_judged_is_unsure(node):
    """Under a stricter limit the accepted child fails, and the next one was never asked about."""
    step = cases.step(0, [[*one, None, None][:7] + [0.5] for one in SIBLINGS], [1], [1, 9, "d", 0.4, "target"], notes=[NOTE])
    body = """
    const relaxed = modules["notes/relaxed"];
    const step = parseStep(given);
    return [0.4, 0].map((limit) => [
      relaxed.replayPath(step.notes[0], step, "δ", limit),
      relaxed.pathChanges(step.notes[0], step, "δ", limit),
    ]);
    """
    recorded, stricter = node(body, step)
    assert recorded == [{"path": [1], "count": 1, "unsure": False}, {"kept": [], "lost": []}]
    assert stricter == [{"path": [], "count": 0, "unsure": True}, {"kept": [], "lost": [1]}]


def test_a_limit_tried_on_one_run_is_forgotten_on_the_next_and_on_another_parameter(node):
    body = """
    const relaxed = modules["notes/relaxed"];
    const [first, second] = [{}, {}];
    const at = (run) => ({ trace: { run }, moments: { limit: { run: first, name: "λ", value: 8 } } });
    return [relaxed.triedLimit(at(first), "λ"), relaxed.triedLimit(at(first), "δ"), relaxed.triedLimit(at(second), "λ")];
    """
    assert node(body) == [8, None, None]


@pytest.mark.parametrize("rule", ["match", "greedy", "relaxed"])
def test_a_bonus_in_the_place_of_rejected_guesses_is_a_cell_drawn_again_whatever_the_rule(node, rule):
    tried = [cases.node(-1, "a", "root"), cases.node(0, "b", "accepted", None, 0.3), cases.node(1, "c", "rejected")]
    steps = [
        cases.step(0, tried, [1], [1, 9, "d", 0.4, "target"], rule=rule),
        cases.step(1, tried[:2], [1], [1, 9, "d", 0.4, "target"], rule=rule),
    ]
    body = """
    const { Picture } = modules["stage/picture"];
    return given.map((raw) => { const step = parseStep(raw); return step.origins.map((one) => Picture.kind(step, one)); });
    """
    assert node(body, steps) == [["accepted", "resampled"], ["accepted", "bonus"]]


def test_only_cells_behind_the_first_change_have_a_stale_entry(node):
    body = """
    const islands = modules["notes/local_verification"];
    const cells = [0, 0, 1, 0, 2, 0].map((wave, at) => ({ id: at + 1, wave }));
    return [{ rewritten: false, stale: [6] }, { rewritten: false }, { rewritten: true, stale: [] }]
      .map((note) => [...islands.stale(note, cells)]);
    """
    assert node(body) == [[6], [4, 6], []]

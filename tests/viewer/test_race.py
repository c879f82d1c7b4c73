"""The lanes of a race: when each side has which token, what is known of its text, who wins and by how much."""

import pytest
from msgspec.structs import replace

from specviz.trace.schema import Baseline, Divergence
from tests.support.traces.image_runs import image_trace
from tests.support.traces.samples import lines
from tests.support.viewer import cases

MS = 1_000_000
LANES = """
const { lineUp, countAt, result, places } = modules["run/raceLanes"];
const read = (text) => { const one = feed(); one.accept(text); return one.trace; };
const lanes = lineUp(given.texts.map(read));
"""


def text(baseline, *, steps=2, **run):
    """``steps`` steps of three kept tokens and a bonus, 48 ms each, against a ``baseline``."""
    made = [{**cases.chain(at, 3, 3), "seq": at + 1, "index": at} for at in range(steps)]
    return cases.text([cases.run(**run), *made, cases.end(steps + 1, baseline=baseline)])


def timed(*ms, **more):
    return {"token_ns": [one * MS for one in ms], "prefill_ns": 1, "equal": True, "first_divergence": None, **more}


def test_a_run_gets_its_tokens_by_the_step_and_its_baseline_one_by_one(node):
    body = (
        LANES
        + "return lanes.map((lane) => [lane.kind, lane.total, [0, 47, 48, 95, 96, 200].map((ms) => countAt(lane, ms * 1e6))]);"
    )
    found = node(body, {"texts": [text(timed(*[25] * 8))]})
    assert found == [["run", 96 * MS, [0, 0, 4, 4, 8, 8]], ["baseline", 200 * MS, [0, 1, 1, 3, 3, 8]]]


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("baseline", "known"),
    [
        (timed(*[25] * 8), 8),
        (timed(*[25] * 8, equal=False, first_divergence={"position": 3, "gap": 0.1}), 3),
        (timed(*[25] * 8, equal=False), 0),
        (timed(*[25] * 8, equal=False, first_divergence={"position": 900}), 8),
        (timed(*[25] * 8, equal="yes", first_divergence={"position": -4}), 0),
    ],
)
def test_of_a_baseline_that_wrote_something_else_only_the_common_beginning_is_known(node, baseline, known):
    assert node(LANES + "return lanes.map((lane) => lane.known);", {"texts": [text(baseline)]}) == [8, known]


def test_words_of_its_own_follow_where_they_were_recorded(node):
    apart = timed(
        *[25] * 8, equal=False, first_divergence={"position": 3, "gap": 0.1}, pieces=["five", " other", " words", ".", "!"]
    )
    body = LANES + "return lanes.map((lane) => [lane.known, lane.tokens.map(({ text }) => text).join('')]);"
    (known, mine), (alone, other) = node(body, {"texts": [text(apart)]})
    assert (
        (known, alone) == (8, 8)
        and other.endswith("five other words.!")
        and mine.startswith(other.removesuffix("five other words.!"))
    )


@pytest.mark.spread(2)
@pytest.mark.parametrize("baseline", [None, {}, {"token_ns": []}, {"token_ns": "soon"}])
def test_without_a_timed_baseline_there_is_no_race(node, baseline):
    assert node(LANES + "return lanes.length;", {"texts": [text(baseline)]}) == 0


def test_two_runs_race_with_both_their_baselines_and_places_go_by_speed_up(node):
    texts = [text(timed(*[25] * 8), title="Slow", steps=2), text(timed(*[26] * 4), title="Quick", steps=1)]
    found = node(LANES + "return [lanes.map((lane) => lane.name), places(lanes)];", {"texts": texts})
    assert found == [["Slow", "Quick", "AR beside Slow", "AR beside Quick"], [1, 1, 3, 3]]


def test_runs_without_a_baseline_race_each_other_from_the_first_token_that_no_prompt_delays(node):
    texts = [text(None, title="Ours"), text(None, title="Theirs", method="vllm_eagle3")]
    body = (
        LANES
        + "return [lanes.map(({ name, total }) => [name, total / 1e6]), lanes.map((lane) => result(lane, null)), places(lanes)];"
    )
    found = node(body, {"texts": texts})
    assert found == [[["Ours", 96], ["Theirs", 48]], ["", "2.00× as fast"], [2, 1]]
    mixed = node(body, {"texts": [text(timed(*[25] * 8), title="Ours"), texts[1]]})
    assert [name for name, _ in mixed[0]] == ["Ours", "Theirs", "Autoregressive"]


def test_nobody_is_first_where_the_prompts_differ(node):
    texts = [text(timed(*[25] * 8)), text(timed(*[25] * 8), prompt="Something else")]
    assert node(LANES + "return places(lanes);", {"texts": texts}) == [None] * 4


def test_codes_of_a_picture_know_their_cells(node):
    trace = image_trace("lantern_pp")
    end = replace(trace.end, baseline=Baseline((MS,) * 64, 1, False, Divergence(9, 0.1)))
    body = LANES + "return lanes.map((lane) => [lane.grid, lane.known, lane.tokens.map((token) => token.cell)]);"
    found = node(body, {"texts": ["\n".join(lines(replace(trace, end=end)))]})
    cells = [[at // 8, at % 8] for at in range(64)]
    assert found == [[[8, 8], 64, cells], [[8, 8], 9, cells[:9]]]

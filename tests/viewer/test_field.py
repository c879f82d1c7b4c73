"""All methods on one clock: the order of the lanes, what is in sight, and where two runs draft from the same text."""

import pytest

LANES = 'const lanes = modules["field/lanes"]; const runs = given.map(lanes.prepare);'
MS = 1_000_000


def run(title, *steps, plain=0, **more):
    """A run whose steps take so many ms and write the tokens of a text; the last token of each is the target's own."""
    made = [[ms * MS, len(text.split()) - 1, text.split()] for ms, text in steps]
    return {
        "name": f"race-{title}", "method": title.lower(), "title": title, "promise": "equal", "parting": "",
        "tau": 2.0, "speedup": 1.5,
        "plain": [10 * MS] * plain, "steps": made, **more,
    }  # fmt: skip


FAST = run("Fast", (10, "a b c"), (10, "d e"), (5, "f"), plain=6, tau=2.0)
SLOW = run("Slow", (30, "a b c d"), (30, "e f"), plain=6, tau=3.0, promise="relaxed")
OTHER = run("Another", (20, "a b"), (20, "c x y z"), plain=8, tau=1.0, promise="distribution")


@pytest.mark.parametrize(
    ("by", "query", "found"),
    [
        ("time", "", ["Fast", "Another", "Slow"]),
        ("tau", "", ["Slow", "Fast", "Another"]),
        ("method", "", ["Another", "Fast", "Slow"]),
        ("time", "relaxed", ["Slow"]),
        ("method", "EXACT", ["Another", "Fast"]),
        ("time", "fa exact", ["Fast"]),
        ("time", "nothing", []),
    ],
)
def test_lanes_are_sorted_and_found_by_name_and_promise(node, by, query, found):
    body = LANES + f"return lanes.ordered(runs, '{by}', '{query}').map(({{ title }}) => title);"
    assert node(body, [OTHER, FAST, SLOW]) == found


def test_the_baseline_is_the_timed_run_of_median_length(node):
    found = node(
        LANES + "const one = lanes.baseline(given); return [one.total, one.steps.length, one.speedup];", [OTHER, FAST, SLOW]
    )
    assert found == [60 * MS, 6, 1]
    assert node(LANES + "return lanes.baseline(given);", [run("Untimed", (10, "a"))]) is None


def test_a_time_and_a_token_belong_to_the_step_that_they_fall_into(node):
    times = "given[0].at.map((ms) => lanes.stepAt(runs[0], ms * 1e6))"
    tokens = "given[0].token.map((one) => lanes.stepOf(runs[0].upto, one))"
    body = LANES + f"return [{times}, {tokens}];"
    found = node(body, [{**FAST, "at": [0, 9.9, 10, 24, 99], "token": [0, 2, 3, 5, 40]}])
    assert found == [[0, 0, 1, 2, 2], [0, 0, 1, 2, 2]]


def test_two_runs_are_compared_where_both_draft_after_the_same_text(node):
    body = LANES + "return lanes.together(runs[0], runs[1]);"
    alike = run("Alike", (1, "a b c"), (1, "d"), (1, "e"), (1, "f"))
    assert node(body, [FAST, alike]) == [0, 3, 5]
    parted = run("Parted", (1, "a b c"), (1, "d X"), (1, "f"))
    assert node(body, [FAST, parted]) == [0, 3], "after the texts part, a position is another place"
    assert node(body, [FAST, SLOW]) == [0]


def test_the_view_stays_within_the_clock_and_zooms_around_a_time(node):
    body = (
        LANES
        + "return [[2, 50], [0.1, 50], [2, 0], [1e9, 100]].map(([by, at]) => lanes.zoomed({ from: 0, span: 100 }, by, at, 100));"
    )
    found = node(body, [])
    assert [(one["from"], one["span"]) for one in found[:3]] == [(25, 50), (0, 100), (0, 50)]
    assert found[3]["span"] == 100 / 64 and found[3]["from"] + found[3]["span"] == 100
    assert node(LANES + "return lanes.moved({ from: 25, span: 50 }, 999, 100);", []) == {"from": 50, "span": 50}

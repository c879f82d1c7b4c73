"""The panels of served runs: what an engine counts, and its counters over time, under a page without a browser."""

from __future__ import annotations

from typing import Any

from tests.support.viewer.node import Evaluate
from tests.support.viewer.panes import JUNK, PAGE, step

COUNTERS = "served_counters"
OVER_TIME = """
stage.trace = { steps: given.steps.map(parseStep) };
stage.step = stage.trace.steps[given.at];
noteRegistry.draw(pane, stage);
return [said(pane), all(pane).filter((one) => one.tag === "path").map((one) => one.attributes)];
"""


def over_time(node: Evaluate, at: int, *samples: list[Any]) -> Any:
    steps = [step(COUNTERS, {"samples": one}) | {"index": place, "seq": place + 1} for place, one in enumerate(samples)]
    return node(PAGE.replace("noteRegistry.draw(pane, stage);", "") + OVER_TIME, {"step": steps[0], "steps": steps, "at": at})


def sample(ms: float, drafts: int, *accepted: int) -> dict[str, Any]:
    return {"ms": ms, "drafts": drafts, "accepted": list(accepted)}


def test_each_place_has_a_line_of_what_was_kept_so_far(node: Evaluate) -> None:
    said, paths = over_time(node, 2, [sample(250, 4, 4, 2)], [], [sample(500, 8, 6, 2), sample(750, 10, 8, 3)])
    assert "Of 10 drafts so far the server kept, by place in the draft: 80 %, 30 %." in said and "sampled 3 times" in said
    curves = [path for path in paths if "sv-curve" in path["class"]]
    assert [path["class"] for path in curves] == ["sv-curve sv-curve-0", "sv-curve sv-curve-1"]
    assert all(path["d"].count("L") == 2 for path in curves)


def test_damaged_samples_never_break_the_pane(node: Evaluate) -> None:
    for junk in JUNK:
        for damaged in (
            junk,
            [junk],
            [sample(0, 4, 1)],
            [{"ms": junk, "drafts": 3, "accepted": [1]}],
            [sample(1, 4) | {"accepted": junk}],
        ):
            said, paths = over_time(node, 0, damaged)
            assert said and not any("NaN" in str(path) or "undefined" in str(path) for path in paths)

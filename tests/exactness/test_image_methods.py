"""The ladder for images: exact methods equal the autoregressive run, relaxed ones do at their strict ends, and caches stay
true."""

from functools import cache

import pytest
import torch

from specviz.engine.loop import Decoding, Recorder
from specviz.engine.sampling import Noise, Warp
from specviz.errors import BadInput
from specviz.pipeline.image import CodeText
from specviz.pipeline.request import Request
from specviz.pipeline.runner import prepare
from tests.support.ladder import PICTURES
from tests.support.rounds import entries
from tests.support.traces.image_runs import image_trace, tiny_models
from tests.support.worlds.image import WARM, World, plain_rows

GREEDY = Warp()
NARROW = Warp(0.9, top_k=9)
WARPS = {"greedy": GREEDY, "warm": WARM, "narrow": NARROW}


@cache
def world(guidance: float = 2.0, grid: int = 8) -> World:
    return World(guidance, grid)


@cache
def alone(warp: Warp, guidance: float = 2.0, grid: int = 8) -> list[int]:
    return world(guidance, grid).draw("autoregressive", {}, warp).ids


@pytest.mark.spread(1)
@pytest.mark.parametrize(("warped", "guidance", "grid"), [("greedy", 1.0, 8), ("warm", 3.0, 15)])
def test_a_deterministic_tree_with_matching_equals_the_one_by_one_run(warped, guidance, grid):
    run = world(guidance, grid).draw("eagle2", {"nodes": 20, "rule": "match"}, WARPS[warped])
    assert run.ids == alone(WARPS[warped], guidance, grid)
    assert sum(len(step.path) for step in run.steps) > 5, "hardly anything was accepted, so hardly anything was tested"


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("eagle", {"tree": "published"}),
        ("lantern", {"delta": 0.0, "nodes": 20}),
        ("lantern", {"k": 0, "nodes": 20}),
        ("lantern_pp", {"factor": 1.0}),
        ("lantern_pp", {"k": 0, "tree": "57"}),
        ("speculative_jacobi", {"window": 8}),
        ("speculative_jacobi", {"window": 5, "fill": "random"}),
    ],
)
def test_strict_ends_equal_the_one_by_one_run_at_temperature_zero(name, values):
    assert world().draw(name, values, GREEDY).ids == alone(GREEDY)


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("values", "warped"),
    [
        ({"k": 0}, "warm"),
        ({"factor": 1.0, "k": 10}, "narrow"),
        ({"factor": 1.0, "residual": "aggregated"}, "warm"),
        ({"factor": 1.0, "residual": "repository"}, "narrow"),
    ],
)
def test_lambda_one_and_no_look_alikes_are_rejection_without_replacement(values, warped):
    strict = world().draw("eagle", {"tree": "published"}, WARPS[warped])
    relaxed = world().draw("lantern_pp", {**values, "tree": "25"}, WARPS[warped])
    assert relaxed.ids == strict.ids
    assert not any(node.status == "relaxed" for step in relaxed.steps for node in step.nodes)


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    "values", [{"delta": 0.0}, {"k": 0}, *({"delta": 0.0, "residual": one} for one in ("aggregated", "repository"))]
)
def test_delta_zero_is_rejection_of_certain_candidates(values):
    strict = world().draw("eagle2", {"nodes": 20, "rule": "rejection", "width": 10})
    assert world().draw("lantern", {**values, "nodes": 20}).ids == strict.ids


@pytest.mark.spread(1)
@pytest.mark.parametrize(("warped", "rows"), [("greedy", 1), ("warm", 1), ("narrow", 2)])
def test_above_tau_one_repaired_blocks_are_the_one_by_one_run_token_for_token(warped, rows):
    run = world().draw("mulo_sd", {"tau": 1.1, "rows": rows}, WARPS[warped])
    assert run.ids == alone(WARPS[warped])
    assert all({node.status for node in step.nodes[1:]} == {"resampled"} for step in run.steps)


@pytest.mark.slow
def test_stale_entries_are_an_approximation_and_say_so():
    values = {"tau": 0.1, "rows": 1, "pool": 2, "radius": 0}
    composition = world().compose("mulo_sd", {**values, "cache": "stale"}, WARM)
    assert any("approximation" in word for word in composition.warnings)
    assert not world().compose("mulo_sd", values, WARM).warnings
    kept = [world().draw("mulo_sd", {**values, "cache": "stale"}, seed=seed).ids for seed in range(4)]
    assert kept != [world().draw("mulo_sd", values, seed=seed).ids for seed in range(4)]


def test_entries_said_to_be_stale_differ_from_a_fresh_prefills_and_those_before_the_first_change_do_not():
    small, opened = World(2.0, 8, layers=3), []  # in two layers no entry ever reads another's staleness
    plain = small.target.open
    small.target.open = lambda *given: opened.append(plain(*given)) or opened[-1]
    composition = small.compose("mulo_sd", {"tau": 0.06, "rows": 4, "pool": 2, "radius": 0, "cache": "stale"}, WARM)
    recorder = Recorder(CodeText(small.loaded), "tree", (8, 8))
    steps = Decoding(small.target, composition, small.prompt, WARM, Noise(0), 64, recorder).steps()
    first = next(steps)
    told = next(note.data for note in first.notes if note.type == "local_verification")
    drafted = next(note.data["fine"] for note in first.notes if note.type == "coarse_codes")
    pairs = zip(drafted, first.emitted, strict=True)
    changed = min(node for node, (was, now) in enumerate(pairs, start=1) if was != now)
    used, fresh = opened[0], plain(80)
    fresh.prefill([*small.prompt, *first.emitted][: used.length])
    begin = len(small.prompt) - 1
    other = {
        place - begin
        for ours, theirs in zip(entries(used), entries(fresh), strict=True)
        for one, two in zip(ours, theirs, strict=True)
        for place in range(used.length)
        if not torch.allclose(one[..., place, :], two[..., place, :], atol=1e-9)
    }
    steps.close()
    assert told["stale"] and set(told["stale"]) == other
    assert min(other) > changed


def test_at_tau_zero_the_up_sampled_rows_stay_as_they_are():
    run = world().draw("mulo_sd", {"tau": 0.0})
    assert [step.passes for step in run.steps] == [1] * 4
    for step in run.steps:
        coarse = next(note for note in step.notes if note.type == "coarse_codes")
        assert list(step.emitted) == coarse.data["fine"]
        assert len(coarse.data["codes"]) == 4 and step.draft_calls == 4


@pytest.mark.parametrize("tau", [0.1, 0.4])
def test_passes_of_a_block_are_its_check_its_waves_and_one_last_rewriting(tau):
    run = world().draw("mulo_sd", {"tau": tau, "pool": 4})
    for step in run.steps:
        told = next(note.data for note in step.notes if note.type == "local_verification")
        assert step.passes == told["passes"] <= 1 + max(told["waves"])
        assert sorted(node for island in told["islands"] for node in island) == [
            place + 1 for place, wave in enumerate(told["waves"]) if wave
        ]
        assert set(told["failed"]) <= {node for island in told["islands"] for node in island}
        resampled = [number for number, node in enumerate(step.nodes) if node.status == "resampled"]
        assert resampled == sorted(node for island in told["islands"] for node in island)
    assert any(step.passes > 1 for step in run.steps)
    # A kept code that is not the target's own choice is relaxed, and says so.
    assert {"accepted", "relaxed"} & {node.status for step in run.steps for node in step.nodes}


@pytest.mark.spread(1)
@pytest.mark.parametrize("warped", ["warm", "narrow"])
def test_a_kept_codes_mark_is_true_of_the_picture_as_it_is_when_its_block_is_done(warped):
    """A repair in front of a kept code changes what the target would have drawn there."""
    place, warp, told = world(), WARPS[warped], set()
    for seed in range(4):
        run = place.draw("mulo_sd", {"tau": 0.1, "pool": 4, "radius": 0, "rows": 2}, warp, seed)
        rows = plain_rows(place.loaded, place.target, place.prompt, run.ids)[:-1]
        at = range(len(place.prompt), len(place.prompt) + len(run.ids))
        own = warp.choose(rows, list(at), Noise(seed)).tolist()
        marks = [node.status for step in run.steps for node in step.nodes[1:]]
        kept = {cell: mark for cell, mark in enumerate(marks) if mark != "resampled"}
        assert kept == {cell: "accepted" if run.ids[cell] == own[cell] else "relaxed" for cell in kept}
        told |= set(kept.values())
    assert told == {"accepted", "relaxed"}


@pytest.mark.spread(1)
@pytest.mark.parametrize("row", PICTURES, ids=str)
@pytest.mark.parametrize("tier", ["eager", "graph"])
def test_after_every_step_the_cache_is_a_fresh_prefills(row, tier):
    small = World(2.0, 6, tier=tier)
    seen = []
    keep, opened = small.target.open, []

    def watched(capacity, taps=()):
        opened.append(keep(capacity, taps))
        inner = opened[0].keep

        def kept(path):
            inner(path)
            seen.append((opened[0].length, [(k.clone(), v.clone()) for k, v in entries(opened[0])]))

        opened[0].keep = kept
        return opened[0]

    small.target.open = watched
    run = small.draw(row.method, row.values)
    assert len(seen) == len(run.steps)
    for length, tensors in seen[:: max(1, len(seen) // 5)]:
        fresh = keep(50)
        fresh.prefill([*small.prompt, *run.ids][:length])
        for ours, theirs in zip(tensors, entries(fresh), strict=True):
            assert torch.allclose(ours[0], theirs[0], atol=1e-9) and torch.allclose(ours[1], theirs[1], atol=1e-9)


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", ["autoregressive", *{row.method: 0 for row in PICTURES}])
def test_every_method_fills_the_grid_exactly(name):
    run = World(2.0, 6).draw(name, {}, NARROW, seed=3)
    assert len(run.ids) == 36 and run.outcome.reason == "budget"
    cells = [divmod(cell, 6) for cell in range(36)]
    said = []
    for step in run.steps:
        placed = [step.nodes[node].grid for node in step.path] + ([step.bonus.grid] if step.bonus else [])
        said += placed[: len(step.emitted)]
    assert said == cells


@pytest.mark.slow
@pytest.mark.parametrize(("name", "certain"), [("lantern", True), ("lantern_pp", False), ("mulo_sd", False)])
def test_steps_say_whether_guesses_were_chosen_and_places_drawn_again_have_no_p_of_another_code(name, certain):
    trace = image_trace(name)
    drafted = [step for step in trace.steps if len(step.nodes) > 1]
    assert drafted and {step.certain for step in drafted} == {certain}
    again = [node for step in trace.steps for node in step.nodes if node.status == "resampled"]
    assert bool(again) == (name == "mulo_sd") and all(node.p is None for node in again)


@pytest.mark.parametrize("more", [{"image": b"a picture"}, {"draft": "small-draft"}, {"raw": True}])
def test_what_an_image_target_cannot_use_is_refused_and_not_forgotten(more):
    with tiny_models(), pytest.raises(BadInput, match="leave (image|draft|raw) out"):
        prepare(Request(method="autoregressive", prompt="red heart", target="emoji-64", **more))


def test_pictures_are_as_wide_as_they_are_said_to_be():
    loaded = World().loaded
    assert loaded.picture([0] * loaded.cells).shape[:2] == (loaded.side, loaded.side)


def test_methods_of_language_are_refused_on_a_picture_target():
    with tiny_models(), pytest.raises(BadInput, match="lantern"):
        prepare(Request("medusa", "red heart", target="emoji-64"))

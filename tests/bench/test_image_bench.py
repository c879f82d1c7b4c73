"""The image suite on tiny models: every row is there, exact methods choose what the target would, sheets are written."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image

from specviz.bench.kit.coupling_distance import code_distances, distance, independent
from specviz.bench.kit.measure import Bencher
from specviz.bench.kit.report import Report
from specviz.bench.suites import image
from specviz.bench.suites.image_prompts import HELD_OUT, STYLES, prompts
from specviz.bench.suites.image_settings import ORDER_BY_SIZE, QUICK, RELAXED, SIZES, STRICT, SWEEPS, Setting
from specviz.drafters.networks.weights import read_weights
from specviz.engine.sampling import Noise
from specviz.methods.eagle import PUBLISHED
from specviz.methods.lantern_pp.static_tree import TREES
from specviz.methods.parameters import build
from specviz.methods.registry import all_methods
from specviz.models.hub.cache_dir import cache_folder
from specviz.models.image.image import weights_of
from specviz.runner import Prepared
from specviz.training.image import emoji
from specviz.training.image.image_codes import drawable
from tests.support.traces.image_runs import GRID, tiny_models
from tests.support.worlds.image import plain_rows

CODES = {
    0: "1f61b 1f61d 1f924 1f635-200d-1f4ab 1f632 1f97a 1f625 1f61e 1f4ac 1fae3",
    3: "1f344 1f405 1f43c 1f429 1f408-200d-2b1b 1f9a1 1f413 1f9aa",
    4: "1f369 1f34a 1f950 1f372 1f37f 1f35a 1f35d 1f9ca 1f37d",
}
"""Code points of the held-out faces, animals and plants, and food."""


def test_prompts_are_in_every_style_and_always_the_same() -> None:
    found = prompts(64)
    assert len(set(found)) == 64 == len(found)
    assert all(one.rsplit(", ", 1)[0] in HELD_OUT and one.split(", ")[-1].split()[0] in STYLES for one in found)
    assert prompts(8) == found[:8] and found[:2] == ["mushroom, noto style", "tiger, twemoji style"]


def test_prompts_ask_for_what_models_learn_to_draw_and_training_keeps_out() -> None:
    concepts = [emoji.Concept(code, "", (), group, {}) for group, codes in CODES.items() for code in codes.split()]
    assert all(one.held_out and drawable(one) for one in concepts)
    assert len(HELD_OUT) == len(set(HELD_OUT)) == len(concepts)
    assert f"held_out_among {len(HELD_OUT)}" in read_weights(weights_of("image_score"))[1]["metrics"]
    known = cache_folder() / "emoji" / emoji.digest() / "concepts.json"
    if known.exists():  # the art with its names is fetched for training alone
        art = [emoji.Concept(**{**one, "tags": tuple(one["tags"])}) for one in json.loads(known.read_text("utf-8"))]
        assert {one.label for one in art if one.held_out and drawable(one)} == set(HELD_OUT)
        assert {one.code for one in art if one.held_out and drawable(one)} == {one.code for one in concepts}


def test_settings_are_valid_and_told_apart() -> None:
    for group in (STRICT + RELAXED, QUICK, SWEEPS):
        assert len({one.label for one in group}) == len(group)
    for one in STRICT + RELAXED + QUICK + SWEEPS:
        build(all_methods()[one.method].parameters, one.parameters, one.method)
    assert sum(map(sum, PUBLISHED)) == sum(map(sum, TREES["25"])) == 25, "what is compared drafts equally many nodes"
    local = [one.parameters for one in SWEEPS if one.method == "mulo_sd"]
    assert {one.get("pool") for one in local} == {None, 8, 16, 64} and {one.get("radius") for one in local} == {None, 0, 2}


def test_distance_is_nothing_between_equal_pictures() -> None:
    codebook = torch.eye(3)
    assert distance(codebook, [0, 1, 2], [0, 1, 2]) == 0
    assert distance(codebook, [0, 1], [0, 2]) == pytest.approx(2**0.5 / 2)


def test_the_scale_is_the_expected_distance_of_two_draws() -> None:
    distributions = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    assert independent(torch.eye(3), distributions) == pytest.approx(2**0.5 / 4)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bencher]:
    with tiny_models():
        yield Bencher("emoji-64")


def _drawn(bench: Bencher, setting: Setting, seed: int) -> tuple[Prepared, list[int]]:
    ready = bench.prepared(setting.method, "red", 1.0, parameters=dict(setting.parameters))
    decoding = ready.decoding(ready.compose(), seed, "off", threading.Event())
    assert sum(len(step.emitted) for step in decoding.steps()) == GRID * GRID, decoding.outcome.message
    return ready, decoding.outcome.output_ids


TOKEN_EXACT = (
    Setting("autoregressive", {}),
    Setting("eagle", {"tree": "published", "rule": "match"}),
    Setting("eagle2", {"nodes": 8, "rule": "match"}),
    Setting("mulo_sd", {"tau": 1.1}),
)


@pytest.mark.parametrize("setting", TOKEN_EXACT, ids=lambda one: one.label)
def test_a_method_that_is_exact_token_for_token_chooses_as_the_target(bench: Bencher, setting: Setting) -> None:
    found = code_distances(*_drawn(bench, setting, 5), 5)
    assert found.own == 0 < found.independent < 2


OTHERS = (
    Setting("eagle", {"tree": "published"}),
    Setting("speculative_jacobi", {}),
    Setting("lantern", {"delta": 0.3, "nodes": 8}),
    Setting("mulo_sd", {"tau": 0.3, "cache": "stale"}),
)


@pytest.mark.parametrize("setting", OTHERS, ids=lambda one: one.label)
def test_every_code_is_held_against_the_choice_behind_the_codes_before_it(bench: Bencher, setting: Setting) -> None:
    ready, codes = _drawn(bench, setting, 5)
    found = code_distances(ready, codes, 5)
    rows = plain_rows(ready.loaded, ready.target, ready.prompt_ids, codes)[:-1]
    places = range(len(ready.prompt_ids), len(ready.prompt_ids) + len(codes))
    own = ready.parts.warp.choose(rows, places, Noise(5)).tolist()
    assert found.own == pytest.approx(distance(ready.loaded.codebook, codes, own)) and found.own > 0
    assert 0 < sum(one == other for one, other in zip(codes, own, strict=True)) < len(codes)


@pytest.mark.slow
def test_the_suite_measures_speed_and_quality_of_every_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path))
    monkeypatch.setattr(image, "QUICK", (Setting("eagle2", {"nodes": 8, "rule": "match"}), Setting("mulo_sd", {"tau": 0.1})))
    monkeypatch.setattr(image, "prompts", lambda count: ["a", "b"])
    report = Report("image", {})
    with tiny_models():
        image.run(report, "emoji-64", (), quick=True)
    rows = {row.name: row for row in report.rows}
    assert rows["autoregressive: latent distance to the target's own choice"].value == 0
    assert rows["eagle2 nodes=8 rule=match: latent distance to the target's own choice"].value == 0
    relaxed = rows["mulo_sd tau=0.1: latent distance to the target's own choice"]
    assert relaxed.value and relaxed.value > 0 and "two independent draws" in relaxed.detail
    assert rows["eagle2 nodes=8 rule=match: passes"].value == pytest.approx(rows["eagle2 nodes=8 rule=match: τ"].value, rel=0.2)
    best = rows["fewer target passes, fastest relaxed setting"]
    assert (best.goal, best.detail) == (2.5, "mulo_sd tau=0.1") and best.value == rows["mulo_sd tau=0.1: passes"].value
    assert rows["seconds a picture, baseline"].goal == 60 == rows["seconds a picture, slowest setting"].goal
    cost = rows["one row through the drafter's layer, of a target pass"]
    assert cost.value is not None and 0 < cost.value < 10 and (cost.goal, cost.at_most) == (0.1, True), cost.detail
    sheet = Image.open(tmp_path / "bench" / "image-all-quick.png")
    page = tmp_path / "bench" / "image-all-quick-curve.html"
    assert str(page) in rows["quality against speed"].detail
    assert all(label in page.read_text() for label in ("eagle2 nodes=8 rule=match", "mulo_sd tau=0.1"))
    assert sheet.size == (2 * 2 * GRID, 3 * 2 * GRID)


@pytest.mark.slow
def test_the_sweeps_are_a_suite_of_their_own_with_sheets_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path))
    monkeypatch.setattr(image, "SWEEPS", (Setting("mulo_sd", {"tau": 0.1, "pool": 8}),))
    monkeypatch.setattr(image, "prompts", lambda count: ["a"])
    report = Report("image-sweeps", {})
    with tiny_models():
        image.run(report, "emoji-64", (), quick=True, sweeps=True)
    assert any(row.name.startswith("mulo_sd tau=0.1 pool=8: ") for row in report.rows)
    assert {one.name for one in (tmp_path / "bench").iterdir()} == {"image-sweeps-quick.png", "image-sweeps-quick-curve.html"}


def test_trees_are_compared_size_by_size() -> None:
    pairs = [(better.label, worse.label) for better, worse in ORDER_BY_SIZE]
    assert ("lantern delta=0.1 nodes=57", "eagle2 nodes=57 rule=rejection") in pairs
    assert ("lantern_pp factor=20.0 k=5 tree=12", "lantern delta=0.1 nodes=12") in pairs
    assert len(set(pairs)) == len(pairs) == 8, "a pair of the other suite is told once"
    for nodes, (_, _, *static) in SIZES.items():
        assert all(sum(map(sum, TREES[one.parameters["tree"]])) == nodes for one in static)

"""The image suite on tiny models: every row is there, a method that is exact keeps the strict picture, sheets are written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from tests.image_runs import GRID, tiny_models

from specviz.bench import image
from specviz.bench.image import Setting, distance
from specviz.bench.image_prompts import HELD_OUT, STYLES, prompts
from specviz.bench.report import Report


def test_prompts_are_held_out_concepts_in_every_style() -> None:
    found = prompts(64)
    assert len(set(found)) == 64 == len(found)
    assert all(one.rsplit(", ", 1)[0] in HELD_OUT and one.split(", ")[-1].split()[0] in STYLES for one in found)


def test_distance_is_nothing_between_equal_pictures() -> None:
    codebook = torch.eye(3)
    assert distance(codebook, [0, 1, 2], [0, 1, 2]) == 0
    assert distance(codebook, [0, 1], [0, 2]) == pytest.approx(2**0.5 / 2)


def test_the_suite_measures_speed_and_quality_of_every_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path))
    monkeypatch.setattr(image, "QUICK", (Setting("eagle2", {"nodes": 8}), Setting("mulo_sd", {"tau": 0.1})))
    monkeypatch.setattr(image, "prompts", lambda count: ["a", "b"])
    report = Report("image", {})
    with tiny_models():
        image.run(report, "emoji-64", (), quick=True)
    rows = {row.name: row for row in report.rows}
    assert rows["eagle2 nodes=8: latent distance to the strict picture"].value == 0
    assert rows["mulo_sd tau=0.1: latent distance to the strict picture"].value > 0
    assert rows["eagle2 nodes=8: passes"].value == pytest.approx(rows["eagle2 nodes=8: τ"].value, rel=0.2)
    assert rows["fewer target passes, best setting"].goal == 2.5
    cost = rows["one row through the drafter's layer, of a target pass"]
    assert cost.value is not None and 0 < cost.value < 10 and (cost.goal, cost.at_most) == (0.1, True), cost.detail
    sheet = Image.open(tmp_path / "bench" / "image-quick.png")
    page = tmp_path / "bench" / "image-quick-curve.html"
    assert str(page) in rows["quality against speed"].detail
    assert all(label in page.read_text() for label in ("eagle2 nodes=8", "mulo_sd tau=0.1"))
    assert sheet.size == (2 * 2 * GRID, 3 * 2 * GRID)

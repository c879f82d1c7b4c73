"""The cost of one row through a drafter's layer: a guided target reads two rows, and so does its drafter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from specviz.bench.kit.drafter_cost import NAME, layer_cost
from specviz.bench.kit.measure import Bencher
from specviz.drafters.feature_stepper import FeatureStepper
from specviz.requests import image
from specviz.targets.image import ImageTarget
from tests.support.tiny.images import tiny_image, tiny_image_drafter
from tests.support.traces.image_runs import tiny_models


@pytest.mark.parametrize(("guidance", "rows"), [(1.0, 1), (2.0, 2)])
def test_target_and_drafter_read_as_many_rows(guidance: float, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drafted: list[tuple[int, Any]] = []
    verified: list[tuple[int, int]] = []
    step, whole = FeatureStepper.__call__, ImageTarget.run

    def stepped(self: FeatureStepper, tokens: Any, features: Any, positions: Any, cache: Any, start: int, seen: Any) -> Any:
        drafted.append((len(tokens), seen))
        return step(self, tokens, features, positions, cache, start, seen)

    def ran(self: ImageTarget, embedded: Any, *more: Any, **named: Any) -> Any:
        verified.append(tuple(embedded.shape[:2]))
        return whole(self, embedded, *more, **named)

    monkeypatch.setattr(FeatureStepper, "__call__", stepped)
    monkeypatch.setattr(ImageTarget, "run", ran)
    with tiny_models():
        row = layer_cost(lambda: Bencher("emoji-64").prepared("eagle", "red", 1.0, guidance=guidance), "eagle", times=2)
    assert row.name == NAME and row.value is not None, row.detail
    assert drafted[-1][0] == rows and verified[-1] == (rows, 1)
    seen = drafted[-1][1]
    assert seen is None if rows == 1 else bool((seen.sum(1) == seen.shape[1] // rows).all())


def test_half_precision_is_measured_too(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = replace(tiny_image(dtype=torch.bfloat16), name="emoji-64")
    monkeypatch.setattr(image, "load_image_model", lambda *_: loaded)
    monkeypatch.setattr(image, "image_drafter", lambda one: tiny_image_drafter(one).to(torch.bfloat16))
    row = layer_cost(lambda: Bencher("emoji-64").prepared("eagle", "red", 1.0), "eagle", times=2)
    assert row.value is not None and row.value > 0, row.detail

"""The last rungs of the ladder for pictures: the model and the drafters that ship, in float32 and as a visitor runs them."""

import itertools
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from specviz.models.heads.heads import TEXT_ONLY, VISION, WEIGHTS
from specviz.models.hub.catalog import DEFAULT_VISION_TARGET
from specviz.pipeline.runner import run
from specviz.trace.schema import Trace

SCENE = Path(__file__).resolve().parents[2] / "assets" / "images" / "scenes" / "snake-dog-train.png"
NEEDS = {
    "token_recycling": "", "suffix_decoding": "", "prompt_lookup": "", "stand": "", "language_only": TEXT_ONLY,
    "eagle2": VISION["eagle"], "hivis": VISION["hivis"], "dream": VISION["dream"],
}  # fmt: skip
CLOSE = 0.25
"""Two best logits nearer than this may change places by rounding."""

pytestmark = pytest.mark.model


def told(method: str, **more: object) -> Trace:
    """A run about the scene."""
    for name in ("scenes_vlm", NEEDS.get(method, "")):
        if name and not (WEIGHTS / f"{name}.safetensors").is_file():
            pytest.skip(f"the weights {name} are not here: python -m specviz train {name}")
    parameters = {"rule": "match"} if method in ("stand", "eagle2") else {}
    asked: dict[str, Any] = {"prompt": "Describe the picture.", "target": DEFAULT_VISION_TARGET, "image": str(SCENE)}
    asked |= {"seed": 5, "max_new_tokens": 60, "parameters": parameters, **more}
    return run(method=method, **asked)


@cache
def alone(temperature: float) -> tuple[int, ...]:
    """What the model writes one token at a time, once for every method."""
    trace = told("autoregressive", temperature=temperature, dtype="float32")
    assert trace.end is not None and trace.end.reason in ("eos", "budget")
    return trace.end.output_ids


@pytest.mark.parametrize(("method", "temperature"), [*zip(NEEDS, itertools.cycle([0.0, 1.0]), strict=False)])
def test_every_method_writes_the_models_own_text(method, temperature):
    trace = told(method, temperature=temperature, dtype="float32")
    assert trace.end is not None and trace.end.reason in ("eos", "budget")
    assert trace.end.output_ids == alone(temperature)
    assert any(step.path for step in trace.steps) or method == "prompt_lookup"


@pytest.mark.parametrize("method", ["eagle2", "dream"])
def test_what_differs_as_a_visitor_runs_it_is_rounding(method):
    trace = told(method, baseline=True)
    assert trace.end is not None and trace.end.baseline is not None
    apart = trace.end.baseline.first_divergence
    assert apart is None or (apart.gap is not None and apart.gap < CLOSE), f"apart at {apart}"

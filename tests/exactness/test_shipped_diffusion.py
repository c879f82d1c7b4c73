"""The masked language model that ships, its change and the n-grams, on the target they were made for."""

from __future__ import annotations

from functools import cache

import pytest

import specviz
from specviz.drafting.networks.weights import read_weights
from specviz.models.heads.heads import WEIGHTS
from specviz.trace.schema import Trace

PROMPT = "Why do leaves change colour in autumn? Answer in one sentence."
WAYS = [("deer", 0.0), ("diffuspec", 0.0), ("diffuspec", 0.8)]


@cache
def decoded(method: str, temperature: float) -> Trace:
    return specviz.run(method=method, prompt=PROMPT, temperature=temperature, max_new_tokens=48, dtype="float32", seed=3)


@pytest.mark.model
@pytest.mark.parametrize(("method", "temperature"), WAYS)
def test_the_text_is_the_targets_own(method: str, temperature: float) -> None:
    trace = decoded(method, temperature)
    assert trace.end is not None and trace.end.output_ids == decoded("autoregressive", temperature).end.output_ids
    assert any(step.path for step in trace.steps), "nothing was accepted, so nothing was tested"
    kinds = {note.type for step in trace.steps for note in step.notes}
    assert kinds == ({"denoised"} if method == "deer" else {"lattice"})


@pytest.mark.model
def test_at_a_temperature_blocks_are_drawn_and_some_are_kept() -> None:
    trace = specviz.run(method="deer", prompt=PROMPT, temperature=0.8, max_new_tokens=64, seed=3)
    assert {step.rule for step in trace.steps} == {"ratio"} and any(step.path for step in trace.steps)


def test_the_cards_name_what_they_were_made_from() -> None:
    cards = {name: read_weights(WEIGHTS / f"{name}.safetensors")[1] for name in ("masked_lm", "deer", "ngrams")}
    assert all("sha256 " in card["data"] and card["tokenizer_hash"] for card in cards.values())
    assert cards["deer"]["data"] == cards["masked_lm"]["data"]
    assert cards["deer"]["changes"].startswith("masked_lm.safetensors")
    total = sum((WEIGHTS / f"{name}.safetensors").stat().st_size for name in cards)
    assert total <= 4_000_000

"""Hostile values: whatever type or size a field of a run is given, one sentence names the field and says what it takes."""

import math

import numpy as np
import pytest

import specviz
from specviz.__main__ import main
from specviz.errors import BadInput, ModelUnavailable, SpecvizError
from specviz.methods.registry import all_methods
from specviz.models.hub.catalog import resolve
from specviz.pipeline import runner
from specviz.pipeline.request import MOST_NEW_TOKENS, Request
from specviz.trace import store
from tests.support.tiny.shelf import fill, stock

HUGE = 10**5000
"""An integer that Python refuses to write in decimal."""
ASKED = {"method": "prompt_lookup", "prompt": "hello"}
NO_TEXT = (None, 5, 1.5, b"text", ["text"], {}, object(), "\ud800")
NO_SWITCH = (None, 0, 1, "true", [], HUGE)
NO_WHOLE = (None, 1.5, "7", math.nan, math.inf, -1, True, [1], HUGE, -HUGE, 2**63)
NO_NUMBER = ("hot", math.nan, math.inf, -math.inf, True, b"1", [0.5], {}, HUGE)
HOSTILE = [
    *((name, value) for name in ("method", "prompt", "target", "dtype", "device", "tier", "record") for value in NO_TEXT),
    *((name, value) for name in ("raw", "baseline") for value in NO_SWITCH),
    *((name, value) for name in ("max_new_tokens", "top_k", "seed") for value in NO_WHOLE),
    ("max_new_tokens", 0),
    ("max_new_tokens", MOST_NEW_TOKENS + 1),
    ("top_k", 2**31),
    *((name, value) for name in ("temperature", "guidance") for value in NO_NUMBER),
    *(("top_p", value) for value in (None, *NO_NUMBER)),
    *(("draft", value) for value in NO_TEXT[1:]),
    *(("image", value) for value in (5, {}, [5], object())),
    *(("parameters", value) for value in (None, 5, "copied=8", ["copied"])),
    ("prompt", ""),
    ("prompt", " \n\t"),
    ("prompt", "a" * 1_000_001),
    ("memory", 5),
    ("progress", 5),
]


def kind(value):
    """Names a case: some of the values have no text that could."""
    return value if isinstance(value, str) and value.isidentifier() else type(value).__name__


@pytest.mark.parametrize(("name", "value"), HOSTILE, ids=kind)
def test_a_value_that_a_field_cannot_have_is_refused_by_the_fields_name(name, value):
    with pytest.raises(BadInput) as refused:
        specviz.run(**{**ASKED, name: value})
    assert name in str(refused.value) and len(str(refused.value)) < 400


@pytest.mark.parametrize("value", [HUGE, -HUGE, 10**400, math.nan, math.inf, True, None, "many", [8], {}, "9" * 5000], ids=kind)
def test_a_methods_parameter_is_refused_by_its_name(value):
    with pytest.raises(BadInput, match="parameter copied is") as refused:
        specviz.run(**ASKED, parameters={"copied": value})
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("value", [HUGE, None, [1], "perhaps"], ids=kind)
def test_a_switch_and_a_choice_of_a_method_are_refused_by_name(value):
    with pytest.raises(BadInput, match="parameter compare is"):
        specviz.run(method="gto", prompt="hello", parameters={"compare": value})
    with pytest.raises(BadInput, match="parameter rule is"):
        specviz.run(method="stand", prompt="hello", parameters={"rule": value})
    with pytest.raises(BadInput, match="has no parameter"):
        specviz.run(**ASKED, parameters={value if isinstance(value, int | str) else "wings" * 5000: 1})


def test_numbers_of_other_libraries_are_numbers():
    made = Request(**ASKED, seed=np.int64(7), top_k=np.int32(5), temperature=np.float32(0.5))
    assert (made.seed, made.top_k, made.temperature) == (7, 5, 0.5)
    assert type(made.seed) is type(made.top_k) is int and type(made.temperature) is float


@pytest.mark.parametrize("name", ["a" * 300, "~" + "b" * 300, "/" + "c" * 300 + ".gguf", "~nobody-has-this-name/model", "d\0e"])
def test_a_models_name_that_no_file_can_have_is_no_model(name):
    with pytest.raises(ModelUnavailable, match="There is no"):
        resolve(name)


CLI = ("run", "--method", "prompt_lookup", "--prompt", "hello", "--target", "hybrid-small")


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A tiny random model in the place of hybrid-small."""
    return stock(fill(tmp_path), monkeypatch)


def test_what_is_accepted_writes_a_trace_that_is_valid(tiny, tmp_path):
    kept = tmp_path / "x.spectrace.jsonl"
    edge = ("--top-k", str(2**31 - 1), "--seed", str(2**63 - 1), "--temperature", "5", "--max-new-tokens", "3")
    assert main([*CLI, *edge, "--raw", "--out", str(kept)]) == 0
    assert store.read(kept).run.sampling.top_k == 2**31 - 1


DRAFTLESS = [name for name, method in all_methods().items() if not method.takes_draft]


@pytest.mark.parametrize("method", DRAFTLESS)
def test_a_draft_is_refused_by_a_method_that_drafts_without_one_before_anything_is_fetched(method, monkeypatch):
    def fetched(*_):
        raise AssertionError("the target was looked at")

    monkeypatch.setattr(runner, "modality_of", fetched)
    with pytest.raises(SpecvizError, match="takes no draft, .* leave draft out"):
        specviz.run(method=method, prompt="hello", draft="nonsense", max_new_tokens=3)


def test_the_methods_that_take_no_draft_are_those_that_draft_from_the_text():
    assert {"autoregressive", "prompt_lookup", "suffix_decoding", "token_recycling", "stand"} < set(DRAFTLESS)
    assert not {"reader", "eagle2", "speculative_sampling", "medusa", "mulo_sd"} & set(DRAFTLESS)


def test_a_picture_is_kept_of_image_runs_alone(tiny, tmp_path, capsys):
    assert main([*CLI, "--raw", "--picture", str(tmp_path / "x.png"), "--max-new-tokens", "3"]) == 2
    assert "does not generate images" in capsys.readouterr().err

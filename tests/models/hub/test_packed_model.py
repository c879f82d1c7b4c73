"""A whole model in one file: what is written comes back, loads by its name, and runs with its own drafter."""

import pytest
import torch

import specviz
from specviz.errors import ModelUnavailable, SpecvizError
from specviz.methods.registry import all_methods
from specviz.models import cache
from specviz.models.cache import ModelCache
from specviz.models.hub.packed_model import TEACHER_KEY, card_in, named, read_model, tokenizer_hash_in, unpack, write_model
from specviz.models.text.load import load_causal_lm
from specviz.targets.hybrid import HybridTarget, causal_target
from specviz.training.families.hybrid import END, START
from specviz.training.registry import WEIGHTS
from tests.support.tiny.hybrid import hybrid
from tests.support.tiny.shelf import fill, put, spell, stock

PROMPT = "Why is the sky?"
TEXT = [name for name, method in all_methods().items() if "text" in method.modality]
RUN = {
    "autoregressive", "stree", "speculative_sampling", "prompt_lookup", "token_recycling", "suffix_decoding", "stand", "reader",
}  # fmt: skip
"""Text methods that need nothing trained for an attending target."""


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    return fill(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="module")
def kept():
    shelf = ModelCache()
    yield shelf
    shelf.release()


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """The weights' folder of a project of one's own."""
    return stock(fill(tmp_path / "own"), monkeypatch)


@pytest.fixture
def loaded(filled, kept, monkeypatch):
    """A project that nobody changes, whose models stay loaded from test to test."""
    stock(filled, monkeypatch)
    monkeypatch.setattr(cache, "MODELS", kept)


def test_a_model_comes_back_within_the_rounding_of_its_bytes(tmp_path):
    model, path = hybrid(dtype=torch.float32), tmp_path / "one.safetensors"
    write_model(path, model, spell(), {"recipe": "a test"})
    back = read_model(path)
    assert back.card == {"recipe": "a test"} and back.tokenizer.to_str() == spell().to_str()
    for name, value in model.state_dict().items():
        assert torch.allclose(back.model.state_dict()[name], value, atol=float(value.abs().max()) / 100), name
    unpack(path, tmp_path / "folder")
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {one.name for one in (tmp_path / "folder").iterdir()}


def test_the_shipped_hybrid_loads_by_its_name_in_its_own_number_format(shelf):
    loaded = load_causal_lm("hybrid-small")
    assert loaded.dtype == torch.float32, "whatever the machine would choose"
    assert loaded.eos_ids == {1} and loaded.text.uses_template(raw=False)
    assert loaded.text.decode(loaded.text.encode(PROMPT)) == f"{START}user\n{PROMPT}{END}\n{START}assistant\n"
    assert isinstance(causal_target(loaded.model, "hybrid-small", loaded.eos_ids), HybridTarget)
    assert tokenizer_hash_in(shelf / "hybrid_draft.safetensors") == loaded.tokenizer_hash


def test_a_pure_state_space_model_loads_without_attention_s_facts(shelf):
    loaded = load_causal_lm("hybrid-small-draft", "float64")
    assert loaded.text.context_length > 10**5
    assert loaded.warnings == (), "there is no attention that could be slow"


@pytest.mark.spread(3)
@pytest.mark.parametrize("name", TEXT)
def test_every_text_method_runs_on_it_or_says_why_not(loaded, name):
    asked = {"prompt": PROMPT, "target": "hybrid-small", "max_new_tokens": 6, "baseline": True}
    if name in RUN:
        trace = specviz.run(method=name, **asked)
        assert trace.end.reason in ("budget", "eos"), trace.end
        assert trace.end.baseline.equal
        return
    with pytest.raises(SpecvizError, match="hybrid-small|this target"):
        specviz.run(method=name, **asked)


@pytest.mark.spread(1)
@pytest.mark.parametrize("draft", [None, "hybrid-small-draft"])
def test_a_drafter_that_learned_from_another_target_is_refused(shelf, draft):
    put(shelf, "hybrid", seed=5)
    with pytest.raises(ModelUnavailable, match="another version of hybrid.safetensors.*specviz train hybrid_draft"):
        specviz.run(method="stree", prompt=PROMPT, target="hybrid-small", draft=draft, max_new_tokens=4)
    put(shelf, "hybrid_draft", seed=5)
    assert specviz.run(method="stree", prompt=PROMPT, target="hybrid-small", max_new_tokens=4).run.draft


def test_the_drafter_that_ships_learned_from_the_target_that_ships():
    assert card_in(WEIGHTS / "hybrid_draft.safetensors")[TEACHER_KEY] == named(WEIGHTS / "hybrid.safetensors")


def test_missing_weights_say_how_to_get_them(shelf):
    (shelf / "hybrid.safetensors").unlink()
    with pytest.raises(ModelUnavailable, match="specviz train hybrid"):
        load_causal_lm("hybrid-small")


def test_a_file_of_another_kind_is_refused(tmp_path):
    from specviz.drafting.networks.weights import write_weights

    write_weights(tmp_path / "other.safetensors", {"x": torch.zeros(2, 2)}, {})
    with pytest.raises(ModelUnavailable, match="not a packed model"):
        read_model(tmp_path / "other.safetensors")
    assert tokenizer_hash_in(tmp_path / "nowhere.safetensors") == ""

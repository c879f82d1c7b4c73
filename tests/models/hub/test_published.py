"""Published heads are read as their authors store them, checked against the target, and compute what the papers say."""

import tomllib
from pathlib import Path

import pytest
import torch

from specviz.errors import ModelUnavailable
from specviz.models.heads.published import read
from specviz.models.hub.published import open_repository
from tests.support.tiny.published_heads import (
    CONFIG,
    DRAFTED,
    HIDDEN,
    VOCAB,
    expected_logits,
    feature_tensors,
    logits_of,
    opened,
    parallel_tensors,
    saved,
    target,
    text,
)


def renamed(tensors, old, new):
    return {name.replace(old, new, 1) if name.startswith(old) else name: value for name, value in tensors.items()}


def error(net, tensors, embedding=None):
    """Largest difference of a head's logits along a text from the paper's formulas."""
    tokens, features = text()
    expected = expected_logits(tensors, target().embedding if embedding is None else embedding, tokens, features)
    return (logits_of(net, tokens, features) - expected).abs().max()


@pytest.mark.parametrize("head_dim", [True, False], ids=["said", "unsaid"])
def test_feature_heads_compute_what_the_paper_says(tmp_path, head_dim):
    tensors = feature_tensors()
    config = CONFIG if head_dim else {name: value for name, value in CONFIG.items() if name != "head_dim"}
    net = read("eagle3", opened(tmp_path, tensors, config), target())
    assert error(net, tensors) < 1e-9 and logits_of(net, *text()).shape == (7, DRAFTED)
    assert net.draft_ids.tolist() == tensors["t2d"].nonzero()[:, 0].tolist()
    assert net.config.taps == (0, 1, 2)


@pytest.mark.parametrize("start", ["layers.0.", "model.layers.0.", "model.midlayer."])
def test_other_spellings_of_the_layer_are_the_same_heads(tmp_path, start):
    tensors = feature_tensors()
    net = read("eagle3", opened(tmp_path, renamed(tensors, "midlayer.", start), CONFIG), target())
    assert error(net, tensors) < 1e-9


def test_without_a_head_or_vocabulary_of_their_own_the_targets_are_used(tmp_path):
    tensors = {name: value for name, value in feature_tensors().items() if name not in {"lm_head.weight", "d2t", "t2d"}}
    net = read("eagle3", opened(tmp_path, tensors, CONFIG), target())
    assert net.draft_ids is None
    assert torch.equal(net.head, target().head)


@pytest.mark.parametrize(
    ("more", "taps"),
    [
        ({"eagle_aux_hidden_state_layer_ids": None}, (2, 6, 9)),
        (
            {"eagle_aux_hidden_state_layer_ids": None, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 5, 8]}},
            (2, 6, 9),
        ),
        ({"eagle_aux_hidden_state_layer_ids": [3, 7, 11]}, (3, 7, 11)),
    ],
)
def test_the_hidden_states_read_are_those_of_the_config(tmp_path, more, taps):
    assert read("eagle3", opened(tmp_path, feature_tensors(), {**CONFIG, **more}), target(12)).config.taps == taps


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("d2t", torch.arange(DRAFTED) + 40, "draft vocabulary"),
        ("d2t", torch.full((DRAFTED,), -5), "draft vocabulary"),
        ("d2t", feature_tensors()["t2d"].nonzero()[:, 0], "holds token ids"),
        ("norm.weight", torch.full((HIDDEN,), float("nan")), "norm.weight of .* holds values that are not finite"),
        ("t2d", torch.ones(VOCAB, dtype=torch.bool), "draft vocabulary"),
    ],
)
def test_values_that_make_no_sense_are_refused_by_name(tmp_path, name, value, words):
    with pytest.raises(ModelUnavailable, match=words):
        read("eagle3", opened(tmp_path, {**feature_tensors(), name: value}, CONFIG), target())


def test_settings_that_say_what_is_computed_anyway_change_nothing(tmp_path):
    said = tomllib.loads(Path(__file__).with_name("harmless.toml").read_text("utf-8"))
    net = read("eagle3", opened(tmp_path, feature_tensors(), {**CONFIG, **said}), target())
    assert error(net, feature_tensors()) < 1e-9


def test_heads_draft_on_an_embedding_of_their_own(tmp_path):
    own = torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(5))
    tensors = {**feature_tensors(), "embed_tokens.weight": own}
    net = read("eagle3", opened(tmp_path / "own", tensors, CONFIG), target())
    assert error(net, tensors, own.double()) < 1e-9
    del tensors["lm_head.weight"], tensors["d2t"], tensors["t2d"]
    with pytest.raises(ModelUnavailable, match="ties its head to its own embedding"):
        read("eagle3", opened(tmp_path / "tied", tensors, {**CONFIG, "tie_word_embeddings": True}), target())


def test_an_embedding_that_is_the_targets_is_not_held_twice(tmp_path):
    goal = target()
    net = read("eagle3", opened(tmp_path, {**feature_tensors(), "embed_tokens.weight": goal.embedding.detach()}, CONFIG), goal)
    assert net.embedding.data_ptr() == goal.embedding.data_ptr()


@pytest.mark.parametrize("start", ["", "medusa_heads.", "medusa_head."])
@pytest.mark.parametrize("blocks", [1, 2])
def test_parallel_heads_compute_what_the_paper_says(tmp_path, start, blocks):
    tensors = parallel_tensors(blocks=blocks, start=start)
    beside = {"model.layers.0.mlp.up_proj.weight": torch.zeros(3, 3)} if start else {}
    net = read("medusa", opened(tmp_path, {**tensors, **beside}, {"medusa_num_heads": 3}), target())
    features = text()[1][:, :HIDDEN]
    for head, said in enumerate(net.logits(features)):
        x = features
        for block in range(blocks):
            weight, bias = (tensors[f"{start}{head}.{block}.linear.{part}"].double() for part in ("weight", "bias"))
            x = x + torch.nn.functional.silu(x @ weight.T + bias)
        assert (said - x @ tensors[f"{start}{head}.{blocks}.weight"].double().T).abs().max() < 1e-9
    assert net.config.tap == 2
    assert net.draft_ids is None


def test_heads_of_another_method_name_theirs(tmp_path):
    with pytest.raises(ModelUnavailable, match="holds EAGLE-3 heads.*choose the method eagle3"):
        read("medusa", opened(tmp_path, feature_tensors(), CONFIG), target())


@pytest.mark.parametrize("said", [1, None, "two"])
def test_a_config_that_counts_too_few_is_how_the_first_heads_were_published(tmp_path, said):
    whole = read("medusa", opened(tmp_path / "whole", parallel_tensors(), None), target())
    found = read("medusa", opened(tmp_path / "few", parallel_tensors(), {"medusa_num_heads": said}), target())
    assert found.config == whole.config and found.config.heads > 1


@pytest.mark.parametrize("file", ["pytorch_model.bin", "medusa_lm_head.pt"])
def test_pickles_are_refused_unopened(tmp_path, file):
    (tmp_path / file).write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(ModelUnavailable, match="never opened here"):
        open_repository(str(tmp_path))


def test_damaged_and_missing_files_are_told_apart(tmp_path):
    with pytest.raises(ModelUnavailable, match="holds no safetensors"):
        open_repository(str(tmp_path))
    with pytest.raises(ModelUnavailable, match="no file or folder"):
        open_repository(str(tmp_path / "nowhere"))
    with pytest.raises(ModelUnavailable, match="a whole model"):
        open_repository("smollm2-135m-instruct")
    (tmp_path / "model.safetensors").write_bytes(b"\x10\x00")
    with pytest.raises(ModelUnavailable, match="is damaged"):
        open_repository(str(tmp_path))
    saved(tmp_path, feature_tensors(), None)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelUnavailable, match=r"config.json of .* cannot be read"):
        open_repository(str(tmp_path))


def test_weights_in_several_files_are_one_set_of_heads(tmp_path):
    tensors = parallel_tensors()
    first = {name: value for name, value in tensors.items() if name.startswith("0.")}
    saved(tmp_path, first, None)
    (tmp_path / "model.safetensors").rename(tmp_path / "more.safetensors")
    rest = {name: value for name, value in tensors.items() if name not in first}
    net = read("medusa", opened(tmp_path, rest, None), target())
    assert torch.equal(net.heads[0][0].linear.weight, tensors["0.0.linear.weight"].double())

"""``inspect`` on a tiny model of one's own: what it prints, its exit status, its figures, and what it refuses."""

import json

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specviz.__main__ import main
from specviz.drafting.networks.eagle_head import PublishedEagleHead
from specviz.drafting.networks.head_config import HeadConfig, HeadConventions
from specviz.models.heads.head_writer import write_head
from tests.support.referee.filled import weight
from tests.support.tiny.published_heads import parallel_tensors, saved
from tests.support.tiny.tokenizers import byte_level_tokenizer

LAYERS, HIDDEN, VOCAB = 6, 32, 352
TAPS = (2, 3, 4)


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A random Llama in a folder, whose answers do not end."""
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "cache"))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=48, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=True, bos_token_id=1, eos_token_id=351,
    )  # fmt: skip
    LlamaForCausalLM(config).eval().save_pretrained(tmp_path / "model")
    byte_level_tokenizer(eos_token="<|endoftext|>").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def written(folder, target, layout="speculators", **conventions):
    """A random head for that model."""
    embedding = LlamaForCausalLM.from_pretrained(target).get_input_embeddings().weight.detach()
    how = HeadConventions(**{"taps": TAPS, **conventions})
    config = HeadConfig(VOCAB, HIDDEN, HIDDEN, 4, 2, 8, 40, 1, True, how)
    tensors = {name: weight(name, shape) for name, shape in config.shapes().items()}
    return write_head(PublishedEagleHead(config, tensors, embedding, embedding, None), folder, layout, "someone/tiny")


ASKED = ["--tokens", "24", "--depth", "3"]


def test_a_report_says_what_the_head_is_and_ends_with_advice(tmp_path, model, capsys):
    folder = written(tmp_path / "head", model)
    (tmp_path / "prompts.txt").write_text("the quick brown\n\nfox jumps over\n")
    told = ["inspect", str(folder), "--target", str(model), "--prompts", str(tmp_path / "prompts.txt"), *ASKED]
    assert main([*told, "--out", str(tmp_path / "figures")]) == 0
    printed = capsys.readouterr()
    for words in ("EAGLE-3 heads of the speculators library", "sha256", "taps [2, 3, 4]", "acceptance by depth", "calibration",
                  "logit lens at the taps", "taps one lower", "norm_before_residual true"):  # fmt: skip
        assert words in printed.out
    assert printed.out.strip().splitlines()[-1].startswith("Acceptance is 0.")
    assert "trained for another target" in printed.out
    pages = sorted(file.name for file in (tmp_path / "figures").iterdir())
    assert pages == ["acceptance_by_depth.html", "calibration.html", "logit_lens.html"]


def test_the_json_holds_every_reading(tmp_path, model, capsys):
    folder = written(tmp_path / "head", model, "flat", normed_residual=True, windows=(4,))
    (tmp_path / "prompts.txt").write_text("the quick brown")
    told = ["inspect", str(folder), "--target", str(model), "--prompts", str(tmp_path / "prompts.txt"), *ASKED]
    assert main([*told, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["dialect"].startswith("EAGLE-3 heads, flat settings") and found["conventions"]["windows"] == [4]
    assert {one["reading"] for one in found["readings"]} >= {"norm_before_residual false", "the whole text instead of a window"}
    assert len(found["loaded"]["rates"]) == 3 and found["better"] == []
    assert {one["layer"] for one in found["lens"]} == set(TAPS)


def test_parallel_heads_are_measured_as_loaded(tmp_path, model, capsys):
    tensors = parallel_tensors(3)
    for name in list(tensors):
        if name.endswith(".1.weight"):
            tensors[name] = torch.randn(VOCAB, HIDDEN)
    (tmp_path / "prompts.txt").write_text("the quick brown")
    folder = saved(tmp_path / "medusa", tensors, None)
    told = ["inspect", str(folder), "--target", str(model), "--prompts", str(tmp_path / "prompts.txt"), *ASKED]
    assert main(told) == 0
    printed = capsys.readouterr().out
    assert "Medusa heads" in printed and "These heads have no alternative readings" in printed


def test_a_head_that_cannot_be_read_is_shown_and_refused(tmp_path, model, capsys):
    folder = written(tmp_path / "head", model)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "norm_before_fc": True}))
    assert main(["inspect", str(folder), "--target", str(model), *ASKED]) == 2
    told = capsys.readouterr().err
    assert "sha256" in told and "lacks the tensor input_norm.weight" in told


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--depth", "0"], "0 is not a whole number from 1 to 12"),
        (["--tokens", "5"], "5 is not a whole number from 16 to 1024"),
        (["--prompts", "/nowhere"], "cannot be read"),
    ],
)
def test_what_makes_no_sense_is_told_at_once(more, words, capsys):
    assert main(["inspect", "eagle3", *more]) == 2
    assert words in capsys.readouterr().err

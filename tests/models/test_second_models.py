"""Second models by class: a tiny random target and smaller drafters with its tokenizer, fetched and run as a user would."""

import json

import torch

from specviz.__main__ import main
from tests.support.tiny.hybrid import pure
from tests.support.tiny.text import tiny_llama

VOCAB = 352


def stored(folder, build, tokenizer):
    build(vocab=VOCAB).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def told(target, draft):
    asked = ["--target", str(target), "--draft", draft, "--method", "not_a_bandit"]
    return ["run", *asked, "--prompt", "the quick", "--raw", "--max-new-tokens", "30", "--json", "--dtype", "float32"]


def test_a_set_of_drafters_is_named_with_commas(tmp_path, base_model, capsys):
    target = stored(tmp_path / "target", lambda **kind: tiny_llama(**kind, dtype=torch.float32), base_model)
    first = stored(tmp_path / "first", lambda **kind: tiny_llama(seed=1, dtype=torch.float32, **kind), base_model)
    second = stored(tmp_path / "second", lambda **kind: pure(dtype=torch.float32, **kind), base_model)
    assert main(told(target, f"{first}, {second}")) == 0
    assert json.loads(capsys.readouterr().out)["draft"] == "first, second"
    assert main(told(target, f"{first},{first}/")) != 0
    assert "share a name" in capsys.readouterr().err

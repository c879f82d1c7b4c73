"""``methods``: what is listed, for programs and for people, and that it needs no torch."""

import json
import subprocess
import sys

from specviz.__main__ import main
from specviz.paths import WEIGHTS
from tests.support.fakes.commands import ROOT


def test_methods_are_listed_as_json_without_torch():
    asked = (
        "import sys; from specviz.__main__ import main; main(['methods', '--json']); "
        "print({'torch', 'transformers', 'gradio'} & set(sys.modules), file=sys.stderr)"
    )
    answer = subprocess.run([sys.executable, "-c", asked], cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stderr.strip() == "set()"
    listed = {one["name"]: one for one in json.loads(answer.stdout)}
    assert {"autoregressive", "speculative_sampling", "prompt_lookup", "token_recycling", "stand"} <= set(listed)
    assert listed["stree"]["in_distribution"] == ["rule", "ratio"] and listed["stand"]["in_distribution"] == []
    for one in listed.values():
        assert {"title", "modality", "exactness", "token_exact", "parameters", "weights", "paper"} <= set(one)
        assert one["exactness"] in ("exact", "relaxed") and isinstance(one["token_exact"], bool)
        assert all((WEIGHTS / f"{name}.safetensors").is_file() for name in one["weights"])
    copied = next(one for one in listed["prompt_lookup"]["parameters"] if one["name"] == "copied")
    assert copied == {
        "name": "copied", "kind": "int", "default": 10, "low": 1, "high": 64, "unit": "tokens", "choices": [],
        "step": None, "help": copied["help"],
    }  # fmt: skip
    assert listed["token_recycling"]["paper"]["arxiv"] == "2408.08696"


def test_methods_are_listed_for_people(capsys):
    assert main(["methods"]) == 0
    shown = capsys.readouterr().out
    assert "prompt_lookup: Prompt lookup." in shown
    assert "1 to 64 tokens, default 10." in shown
    assert "arXiv 2408.08696" in shown
    assert "exact, token for token; in distribution with tree “drawn”" in shown

"""A new method touches its own place, a row of the ladder and a recording: everything else is derived from the registry."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import TABLES, written

ROOT = Path(__file__).resolve().parents[1]
TOY = """

from specviz.methods.registry import TOKEN_EXACT, Card, NoParameters, parts


@Card(name="toy", exactness=TOKEN_EXACT, family="memory", parameters=NoParameters)
def compose(parameters, resources):
    return parts.single_drafter(parts.PromptCopy(2, 1, 2, False, True), parts.ChainBuilder(), parts.Match())
"""
TEXTS = """
[toy]
title = "Toy"
summary = "Copies two tokens."
look_at = "Two tokens."
pair = "None"
paper = {title = "A toy", authors = "Nobody", year = 2026}
"""
PROOF = """
import shutil
from specviz.commands import methods, run
from specviz.commands.console import parser
from specviz.methods.registry import all_methods
from specviz.ui.archive import Gallery
from tests.support import ladder
from tests.support.documents import methods as table, pairs
from tests.support.tiny.text import decode
from pathlib import Path

row = ladder.Row("toy")
expected = ladder.baseline("text", ladder.PLAIN, 60)[0]
assert row.decode(row.open(ladder.PLAIN), ladder.PLAIN, expected, {}).ids == expected
assert run.request_of(parser().parse_args(["run", "--method", "toy", "--prompt", "Why?"])).method == "toy"
assert methods.card(all_methods()["toy"])["title"] == "Toy" and "`toy`" in table() and "| Toy `toy` | None |" in pairs()
Path("traces").mkdir()
shutil.copy(next(Path("assets/traces").glob("eagle2*.gz")), "traces/toy.spectrace.jsonl.gz")
Path("traces/toy.json").write_text('{"title": "Two tokens"}')
assert Gallery(Path("traces")).get("toy").title == "Two tokens"
"""


@pytest.mark.parametrize("document", TABLES, ids=lambda document: document.name)
def test_a_document_lists_the_registry_s_methods(document):
    assert written(document) == document.read_text(encoding="utf-8"), "python -m tests.support.documents writes it anew"


@pytest.mark.slow
def test_a_method_with_its_texts_is_listed_run_and_proven(tmp_path):
    for folder in ("specviz", "tests/support"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("assets", "tests/__init__.py"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "specviz/methods/toy.py").write_text(TOY, encoding="utf-8")
    (tmp_path / "specviz/methods/toy.toml").write_text(TEXTS, encoding="utf-8")
    ran = subprocess.run([sys.executable, "-c", PROOF], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stderr

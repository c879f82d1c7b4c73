"""``validate`` and ``export``."""

import json

import pytest

from specviz.__main__ import main
from tests.support.fakes.commands import one_sentence
from tests.support.traces.samples import dump


def test_validate_praises_the_good_and_names_what_is_wrong(tmp_path, capsys):
    good = dump(tmp_path / "good.spectrace.jsonl")
    assert main(["validate", str(good)]) == 0
    assert "is a valid trace: Token recycling, 14 steps, ended by budget." in capsys.readouterr().out
    bad = tmp_path / "bad.spectrace.jsonl"
    text = good.read_text("utf-8").split("\n")
    bad.write_text("\n".join([text[0], text[1].replace('"rule":"greedy"', '"rule":"wish"'), *text[2:]]), encoding="utf-8")
    assert main(["validate", str(bad)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("line 2, ") and "rule" in error and one_sentence(error)


def test_validate_rewrites_files_of_an_older_version(tmp_path):
    files = [dump(tmp_path / name) for name in ("a.spectrace.jsonl", "b.spectrace.jsonl")]
    now = [file.read_bytes() for file in files]
    for file in files:
        file.write_text(file.read_text("utf-8").replace('{"v":2,', '{"v":1,'), encoding="utf-8")
    assert main(["validate", "--rewrite", *map(str, files)]) == 0
    assert [file.read_bytes() for file in files] == now


@pytest.mark.parametrize("kind", ["perfetto", "graphml", "nodelink", "summary", "html"])
def test_export_writes_the_file_that_was_asked_for(kind, tmp_path, capsys):
    trace, out = dump(tmp_path / "run.spectrace.jsonl"), tmp_path / "made"
    step = ["--step", "2"] if kind in ("graphml", "nodelink") else []
    assert main(["export", str(trace), "--to", kind, "--out", str(out), *step]) == 0
    content = out.read_text("utf-8")
    assert content.startswith("<") if kind in ("graphml", "html") else isinstance(json.loads(content), dict)
    assert str(out) in capsys.readouterr().err


def test_export_of_a_tree_asks_which_step(tmp_path, capsys):
    trace = dump(tmp_path / "run.spectrace.jsonl")
    for step, words in ((), "choose the step with --step"), (("--step", "99"), "with --step, from 0 to"):
        assert main(["export", str(trace), "--to", "graphml", "--out", str(tmp_path / "x"), *step]) == 2
        assert words in capsys.readouterr().err
    assert not (tmp_path / "x").exists()

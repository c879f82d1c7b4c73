"""``train``: what the user says reaches the recipe."""

from types import SimpleNamespace

from specviz.__main__ import main
from specviz.prompts import reserved
from specviz.training import registry


def test_the_dialogues_may_be_named(monkeypatch, tmp_path):
    jobs = []

    class Recipe:
        make = staticmethod(jobs.append)

    monkeypatch.setattr(registry, "importlib", SimpleNamespace(import_module=lambda name: Recipe))
    files = [str(tmp_path / name) for name in ("dialogues.npz", "more.npz")]
    assert main(["train", "eagle3", "--minutes", "2", "--data", *files, "--resume"]) == 0
    assert main(["train", "eagle"]) == 0
    first, second = jobs
    assert (first.recipe.name, first.minutes, first.data, first.resume) == ("eagle3", 2.0, tuple(files), True)
    assert (second.recipe.name, second.data, second.resume) == ("eagle", (), False)
    assert set(reserved()) <= set(first.reserved), "what numbers are reported on must never be training data"


def test_dialogues_that_are_not_there_are_told_before_anything_is_loaded(tmp_path, capsys):
    assert main(["train", "eagle3", "--data", str(tmp_path / "none.npz")]) != 0
    assert "none.npz" in capsys.readouterr().err

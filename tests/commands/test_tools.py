"""``fetch`` and ``calibrate``: they hand over what was asked and say what came of it."""

import sys
from pathlib import Path
from types import SimpleNamespace

from specviz.__main__ import main


def test_fetch_prints_the_folder_and_tells_progress_apart(monkeypatch, capsys):
    def prepare(name, progress):
        for done in (0.1, 0.5, 0.9):
            progress(f"Fetching {name}", done)
        return Path("somewhere") / name

    monkeypatch.setitem(sys.modules, "specviz.models.hub.prepare", SimpleNamespace(prepare=prepare))
    assert main(["fetch", "a-model"]) == 0
    said = capsys.readouterr()
    assert said.out.strip() == str(Path("somewhere/a-model"))
    assert said.err == "Fetching a-model\n", "one line a message outside a terminal"


def test_calibrate_hands_over_its_choices(monkeypatch, capsys):
    import specviz.bench.calibrate

    asked = []
    calibrate = SimpleNamespace(run=lambda name, target, report: asked.append((name, target)) or "trees/stand.json")
    monkeypatch.setattr(specviz.bench.calibrate, "replay", calibrate, raising=False)
    monkeypatch.setitem(sys.modules, "specviz.bench.calibrate.replay", calibrate)
    assert main(["calibrate", "stand", "--target", "T"]) == 0
    assert capsys.readouterr().out == "trees/stand.json\n" and asked == [("stand", "T")]

"""A model is brought here by another process, whose words reach this one, and this one has computed nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from specviz.errors import ModelUnavailable
from specviz.models.hub import in_subprocess

ROOT = Path(__file__).resolve().parents[3]
POPEN = subprocess.Popen
SCRIPT = """
import subprocess, sys
from specviz.models.hub import catalog
from specviz.models.hub.cache_dir import cache_folder
from specviz.models.hub.in_subprocess import load_in_subprocess
told = []
load_in_subprocess('hybrid-small-draft', lambda message, share: told.append(message))
assert told and all(told) and list((cache_folder() / 'models').iterdir())
told.clear()
subprocess.Popen = None
load_in_subprocess('hybrid-small-draft', lambda message, share: told.append(message))
assert not told, 'a second request starts nothing'
assert 'torch' not in sys.modules, 'who asks loads no torch'
"""


@pytest.fixture
def child(tmp_path, monkeypatch):
    """A program that runs in place of the other process: a shell script."""
    monkeypatch.setattr(in_subprocess, "_HERE", set())
    file = tmp_path / "child"
    file.touch(mode=0o700)
    monkeypatch.setattr(in_subprocess.sys, "executable", str(file))
    return file


@pytest.mark.slow
def test_progress_crosses_and_who_asks_loads_no_torch(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path))
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_why_a_model_cannot_be_had_crosses_too(child, capsys):
    in_subprocess.main("no-such-model")
    said = capsys.readouterr().out
    assert "There is no model" in json.loads(said)["refused"]
    for line, reason in ((said.replace("'", ""), "There is no model no-such-model"), ("", "could not be fetched: it broke")):
        child.write_text(f"#!/bin/sh\nprintf '%s' '{line}'\necho it broke >&2\nexit 1\n")
        with pytest.raises(ModelUnavailable, match=reason):
            in_subprocess.load_in_subprocess("no-such-model", lambda message, share: None)


def test_who_wants_no_more_ends_the_other_process(child, monkeypatch):
    child.write_text('#!/bin/sh\necho \'{"message": "half", "share": 0.5}\'\nexec sleep 600\n')
    started = []
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **more: started.append(POPEN(*args, **more)) or started[0])

    def stop(message, share):
        assert (message, share) == ("half", 0.5)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        in_subprocess.load_in_subprocess("any", stop)
    assert started[0].poll() is not None, "the other process was ended"

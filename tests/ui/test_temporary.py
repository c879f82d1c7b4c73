"""Uploads lie in a folder of this process alone, which is swept by age and gone when the process ends, however it ends."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from specviz.ui import before_gradio

PROGRAM = """
import os, pathlib, sys, threading
from specviz.ui import before_gradio
before_gradio.claim()
folder = pathlib.Path(os.environ["GRADIO_TEMP_DIR"])
(folder / "tmpbroken").write_bytes(b"broken off")
print(folder, oct(folder.stat().st_mode & 0o777), os.environ["GRADIO_TEMP_DIR"], flush=True)
how = sys.argv[1]
if how == "fault":
    raise ValueError
if how == "wait":
    threading.Event().wait(60)
"""


def started(base, how):
    """A process that has claimed its folder, which is private and named in its environment."""
    environment = os.environ | {"GRADIO_TEMP_DIR": str(base)}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, how], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    folder, mode, named = process.stdout.readline().split()
    assert mode == "0o700" and named == folder and Path(folder).parent == base
    return process, Path(folder)


@pytest.mark.parametrize("how", ["end", "fault", "terminate"])
def test_the_folder_goes_with_its_process(how, tmp_path):
    process, folder = started(tmp_path, "wait" if how == "terminate" else how)
    if how == "terminate":
        process.terminate()
    assert process.wait(30) == {"end": 0, "fault": 1, "terminate": -signal.SIGTERM}[how]
    assert not folder.exists() and not list(tmp_path.iterdir())


def test_what_a_killed_process_left_is_removed_by_the_next_and_what_a_living_one_has_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(before_gradio, "STARTING", -1.0)
    living, used = started(tmp_path, "wait")
    killed, left = started(tmp_path, "wait")
    killed.kill()
    killed.wait(30)
    outside = tmp_path / "somebody-elses"
    outside.mkdir()
    (tmp_path / f"{before_gradio.PREFIX}link").symlink_to(outside)
    before_gradio._remove_leftovers(tmp_path)
    assert not left.exists() and (used / "tmpbroken").exists() and outside.exists()
    living.terminate()
    living.wait(30)


def test_files_go_by_age_those_of_broken_off_uploads_too(tmp_path):
    names = ["tmpbroken", "a/upload.jsonl", before_gradio.LOCK]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"1")
    before_gradio.sweep(tmp_path, age=60)
    assert all((tmp_path / name).exists() for name in names)
    before_gradio.sweep(tmp_path, age=-1)
    assert list(tmp_path.rglob("*")) == [tmp_path / before_gradio.LOCK]


def test_a_running_app_sweeps_its_folder(tmp_path, monkeypatch):
    monkeypatch.setenv(before_gradio.VARIABLE, str(tmp_path))
    monkeypatch.setattr(before_gradio, "EVERY", 0.01)
    swept = []
    monkeypatch.setattr(before_gradio, "sweep", lambda *given: swept.append(given))

    async def live():
        async with before_gradio.swept(None):
            while not swept:
                await asyncio.sleep(0.01)

    asyncio.run(live())
    assert swept[0] == (tmp_path,)

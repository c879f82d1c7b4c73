"""Compiled code is made elsewhere, kept on the disk, loaded off the clock, and never needed: plain passes go on without it."""

import subprocess
import time

import pytest
import torch

from specviz.engine import regions
from specviz.engine.clock import Untimed
from specviz.engine.regions import MOST, Regions, growing


def double(x, entries, times):
    """A region."""
    return x * times + entries[:, 0]


@torch.inference_mode()
def calls(width, columns):
    return [(double, (torch.ones(width, columns), growing(torch.zeros(columns, 7), 1), 2))]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(regions.FOLDER, str(tmp_path))
    return tmp_path


class Compiler:
    """Stands for the other processes, which end when the test says."""

    def __init__(self, monkeypatch):
        self.started, self.loaded, self.returncode = 0, 0, None
        monkeypatch.setattr(subprocess, "Popen", self.start)
        monkeypatch.setattr(regions, "load", self.load)

    def start(self, command, stdin, stdout, stderr):
        self.started += 1
        stdout.write(b"Traceback:\nCompilerError: no such instruction\n")
        self.returncode, self.stdin = None, open("/dev/null", "wb")  # noqa: SIM115
        return self

    def poll(self):
        return self.returncode

    def load(self, calls):
        self.loaded += 1


@pytest.fixture
def compiler(monkeypatch):
    return Compiler(monkeypatch)


def test_passes_are_plain_until_the_code_is_there(compiler):
    some, told = Regions(calls), []
    some.progress = lambda message, share: told.append(message)
    assert not some.ready(8, 16) and not some.ready(8, 16)
    assert compiler.started == 1 and told == ["Compiling passes of 1 rows over 16 columns; until then they run uncompiled"]
    compiler.returncode = 0
    assert not some.ready(8, 16) and some.ready(1, 16), "one row first, as the baseline has it"
    assert compiler.started == 2
    compiler.returncode = 0
    assert some.ready(8, 16) and some.compiled
    assert some.take_news() == [f"Compiled code now runs passes of {rows} rows over 16 columns." for rows in (1, 8)]
    assert not some.take_news()


def test_a_failure_is_said_once_and_ends_the_attempts(compiler):
    some = Regions(calls)
    some.ready(1, 16)
    compiler.returncode = 1
    assert not some.ready(1, 16) and not some.ready(8, 16) and not some.ready(1, 32)
    assert compiler.started == 1 and compiler.loaded == 0 and not some.compiled
    (said,) = some.take_news()
    assert (
        said == "Compiling passes of 1 rows over 16 columns failed, so they stay uncompiled: CompilerError: no such instruction"
    )


def test_their_number_is_bounded(compiler):
    some = Regions(calls)
    some.background = False
    assert [some.ready(1, columns) for columns in range(1, MOST + 3)] == [True] * MOST + [False] * 2


def test_loading_is_off_the_clock(compiler, monkeypatch):
    now = time.perf_counter_ns
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now() + 3600 * 10**9 * compiler.loaded)
    some, untimed = Regions(calls), Untimed(torch.device("cpu"))
    some.background = False
    with untimed.here():
        assert some.ready(1, 16)
    assert untimed.spent // 10**9 == untimed.capturing // 10**9 == 3600 and untimed.captures == 0

"""Process that writes vLLM's rounds to trace files, one file per request and one line per step.

``python -m specviz.interop.vllm_plugin.request_recorder FOLDER`` reads messages from stdin: safetensors files, each preceded by
its length. The plugin starts this process, which lowers its own priority.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO

import numpy as np
from safetensors.numpy import load, save

from specviz.interop.chain import ChainRound, ChainSteps, NumberedTokens, run_of
from specviz.trace.notes.drafts import DenoisedNote, Offer
from specviz.trace.notes.models import ServedNote
from specviz.trace.schema import Nanoseconds, Sampling
from specviz.trace.store import SUFFIX
from specviz.trace.validate import MAX_FILE, Intake
from specviz.trace.wire import MAX_LINE, Record, line

if TYPE_CHECKING:
    from specviz.engine.interfaces import TokenText  # which imports torch

MOST_FILES = 1000
"""Maximum number of files of one process; later requests are served but not recorded."""
MOST_SIZE = MAX_FILE // 4 - 2 * MAX_LINE
"""Characters of a file beyond which no step is added; each may take four bytes."""
_LENGTH = 8
"""Bytes that encode a message's length."""
FIRST = "The last pass over the prompt yields the first token: step 1 holds its time."
WARPED = "p is shown before top-k, top-p and min-p."
SHARED = "Requests were served together: a step's times are those of the round they shared."


def send(out: IO[bytes], kind: str, content: Any, arrays: dict[str, np.ndarray] | None = None) -> None:
    """Write one message of plain JSON ``content`` and numeric ``arrays``. The array named "" holds kind and content."""
    words = np.frombuffer(json.dumps([kind, content]).encode(), np.uint8)
    message = save({"": words, **(arrays or {})})
    out.write(len(message).to_bytes(_LENGTH, "little") + message)
    out.flush()


def received(source: IO[bytes]) -> Iterator[tuple[str, Any, dict[str, list[Any]]]]:
    """Yield kind, content and arrays (as lists) of each message, up to the end of the input or an incomplete message."""
    while len(length := source.read(_LENGTH)) == _LENGTH:
        size = int.from_bytes(length, "little")
        message = source.read(size)
        if len(message) < size:
            return
        arrays = load(message)
        kind, content = json.loads(arrays.pop("").tobytes())
        yield kind, content, {name: array.tolist() for name, array in arrays.items()}


class RequestRecorder:
    """Writer of received messages to files in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, _File] = {}
        self._files = 0
        self._server: dict[str, Any] = {}
        self._text: TokenText = NumberedTokens()

    def take(self, kind: str, content: Any, arrays: dict[str, list[Any]]) -> None:
        """Process one message: the server's settings, the start or end of a request, or a round of several requests."""
        if kind == "server":
            self._server = content
            if content["tokenizer"] is not None:  # loaded as vLLM loads it
                from specviz.models.text.text import TokenizerText

                found = dict(content["tokenizer"])
                tokenizer = importlib.import_module("vllm.tokenizers").get_tokenizer(found.pop("tokenizer"), **found)
                self._text = TokenizerText(tokenizer, content["run"]["target"], content["max_model_len"])
        elif kind == "start":
            self._start(*content)
        elif kind == "round":
            self._round(arrays, *content)
        else:
            self._finish(content)

    def _finish(self, name: str) -> None:
        if file := self._open.pop(name, None):
            file.close()

    def _start(self, name: str, prompt: list[int], asked: dict[str, Any]) -> None:
        """Open a new file that only this user can read. Random letters make the name unique: clients may choose request ids."""
        if not prompt:
            return
        self._files += 1
        if self._files > MOST_FILES:
            if self._files == MOST_FILES + 1:
                print(f"specviz has written {MOST_FILES} traces and records no further requests.", file=sys.stderr)
            return
        self._finish(name)
        file, _ = tempfile.mkstemp(SUFFIX, re.sub(r"[^A-Za-z0-9._-]", "_", name)[:120] + "-", self._folder)
        self._open[name] = _File(os.fdopen(file, "w", encoding="utf-8"), self._text, prompt, asked, self._server["run"])

    def _round(
        self, arrays: Mapping[str, list[Any]], names: list[str], counts: list[int], discarded: list[bool], times: Any, rows: int
    ) -> None:
        draft, verify, judge, host = times
        row = flat = 0
        for place, (name, count) in enumerate(zip(names, counts, strict=True)):
            if name in self._open and not discarded[place]:
                of_drafts, of_rows = slice(flat, flat + count), slice(row, row + count + 1)
                drafted, q, p = (arrays.get(key, [])[of_drafts] for key in ("drafted", "q", "p"))
                notes = (ServedNote(len(names), 0, count).to_note(),) * (len(names) > 1)
                if drafted and self._server["run"]["method"] in ("vllm_dflash", "vllm_dspark"):  # one pass fills a chain
                    slots = [Offer([token], q[at : at + 1], [self._text.of(token)]) for at, token in enumerate(drafted)]
                    notes += (DenoisedNote(slots).to_note(),)
                sampled = [token for token in arrays["sampled"][place][: count + 1] if token >= 0]
                round_ = ChainRound(
                    drafted, sampled, Nanoseconds(draft=draft, verify=verify, judge=judge, host=host),
                    q=q, p=p, accepted=max(0, len(sampled) - 1), certain="q" not in arrays, padded=rows,
                    top=[
                        list(zip(ids, top, strict=True))
                        for ids, top in zip(arrays["top_ids"][of_rows], arrays["top"][of_rows], strict=True)
                    ],
                    notes=notes,
                )  # fmt: skip
                self._open[name].add(round_, arrays["sampled_p"][place], len(names))
            row, flat = row + count + 1, flat + count


class _File:
    def __init__(
        self, out: TextIO, text: TokenText, prompt: list[int], asked: Mapping[str, Any], server: Mapping[str, Any]
    ) -> None:
        self._out, self._size = out, 0
        self._intake = Intake()
        self._ends = frozenset(asked["ends"])
        self._steps = ChainSteps(text, prompt[-1], len(prompt), self._ends, "ratio" if asked["temperature"] else "greedy")
        self._most, self._least = asked["max_tokens"] or 1 << 30, asked["min_tokens"]
        self._over, self._batch = "", 1
        self._began, self._prefill = time.perf_counter_ns(), 0
        top_k = max(0, asked["top_k"])
        warped = asked["top_p"] < 1 or top_k or asked["min_p"] > 0
        self._write(run_of(
            **server,
            sampling=Sampling(asked["temperature"], top_k, asked["top_p"], asked["seed"]),
            max_new_tokens=self._most,
            prompt_pieces=text.pieces([], prompt),
            warnings=(FIRST, WARPED) if warped else (FIRST,),
        ))  # fmt: skip

    def _write(self, record: Record) -> None:
        """Write a record, validated as a reader would. Raises BadTrace if the record is invalid."""
        text = line(record, self._intake.count)
        self._intake.take(text)
        self._size += self._out.write(text + "\n")
        self._out.flush()

    def add(self, round_: ChainRound, sampled_p: Sequence[float], batch: int) -> None:
        """Add this request's part of a round of ``batch`` requests. ``sampled_p``: probabilities of its tokens."""
        if self._over or not round_.emitted or not self._steps.room(len(round_.emitted)) or self._size > MOST_SIZE:
            return
        spent = round_.time
        if not self._steps.steps:
            spent = Nanoseconds(verify=spent.verify, judge=spent.judge)
            self._prefill = max(0, time.perf_counter_ns() - self._began - spent.total)
        self._batch = max(self._batch, batch)
        # Only tokens up to the text's end are valid, by the rules of vLLM's scheduler.
        written = len(self._steps.output)
        left = self._most - written
        emitted, self._over = round_.emitted[:left], "budget" if len(round_.emitted) >= left else ""
        for place, token in enumerate(emitted, start=1):
            if token in self._ends and written + place >= self._least:
                emitted, self._over = emitted[:place], "eos"
                break
        self._write(self._steps.add(replace(
            round_, emitted=emitted, time=spent, bonus_p=sampled_p[len(emitted) - 1], cut=self._over or None,
            certain=round_.certain and self._steps.rule == "ratio",
        )))  # fmt: skip

    def close(self) -> None:
        """Write the end record. Without an end token or spent budget, a client or a stop string ended the request."""
        message = f"{SHARED} Up to {self._batch} at once." if self._batch > 1 else ""
        self._write(self._steps.end(self._over or "cancelled", message, self._prefill))
        self._out.close()


def main(folder: str, source: IO[bytes]) -> None:
    """Write traces until the input ends, at low priority.

    Runs on all cores; vLLM binds the thread that starts this process to one.
    """
    os.nice(10)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    recorder = RequestRecorder(Path(folder))
    for message in received(source):
        recorder.take(*message)


if __name__ == "__main__":
    main(sys.argv[1], sys.stdin.buffer)

"""Process that makes trace files of the rounds that vLLM sends: a file a request, a line as soon as a step is known.

``python -m specviz.engines.vllm_plugin.scribe FOLDER`` reads messages (:mod:`.framing`) from its input until that ends. The
plugin starts it, and it lowers its own priority, so that it takes what time vLLM leaves.
"""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, TextIO

from specviz.engines.chain import ChainRound, ChainSteps, NumberedTokens, TokenTexts, fitted_run
from specviz.engines.vllm_plugin.framing import received
from specviz.errors import BadInput
from specviz.trace.notes.models import ServedNote
from specviz.trace.schema import Nanoseconds, Run, Sampling
from specviz.trace.store import SUFFIX
from specviz.trace.validate import MAX_FILE, Intake
from specviz.trace.wire import MAX_LINE, Record, TraceWriter
from specviz.version import __version__

MOST_FILES = 1000
"""Files that one process writes; requests after them are served and not recorded."""
MOST_SIZE = MAX_FILE // 4 - 2 * MAX_LINE
"""Characters of a file after which no step is added; each may take four bytes."""
NICE = 10
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
FIRST = "The pass that ends reading the prompt writes the first token: step 1 holds its time."
SHARED = "Requests were served together: a step's times are those of the round that they share."
TITLES = {
    "ngram": "N-gram", "ngram_gpu": "N-gram", "suffix": "Suffix decoding", "draft_model": "Draft model", "eagle": "EAGLE",
    "eagle3": "EAGLE-3", "medusa": "Medusa", "mtp": "Multi-token prediction", "custom_class": "Custom proposer",
}  # fmt: skip


class Scribe:
    """Makes files in ``folder`` of the messages it takes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, _File] = {}
        self._files = 0
        self._server: dict[str, Any] = {}
        self._text: TokenTexts = NumberedTokens()

    def take(self, kind: str, told: Any, arrays: dict[str, list[Any]]) -> None:
        """One message."""
        if kind == "round":
            self._round(told, arrays)
        else:
            {"server": self._begin, "start": self._start, "finish": self._finish}[kind](told)

    def _begin(self, server: dict[str, Any]) -> None:
        """The server's settings, and its tokenizer as vLLM loads it."""
        self._server = server
        if server["tokenizer"] is not None:
            from vllm.tokenizers import get_tokenizer

            from specviz.models.text.text import TokenizerText

            found = dict(server["tokenizer"])
            self._text = TokenizerText(get_tokenizer(found.pop("tokenizer"), **found), server["model"], server["max_model_len"])

    def _start(self, told: list[Any]) -> None:
        name, prompt, asked = told
        if self._files >= MOST_FILES or not prompt:
            if self._files == MOST_FILES:
                print(f"specviz has written {MOST_FILES} traces and records no further requests.", file=sys.stderr)
                self._files += 1
            return
        self._files += 1
        self._finish(name)
        file = new_file(self._folder, _UNSAFE.sub("_", name)[:120])
        self._open[name] = _File(file, self._text, prompt, asked, run_line(self._server, self._text, prompt, asked))

    def _round(self, told: list[Any], found: dict[str, list[Any]]) -> None:
        names, counts, discarded, (draft, verify, judge, host), scheduled = told
        spent = Nanoseconds(draft=draft, verify=verify, judge=judge, host=host)
        row = flat = 0
        for place, (name, count) in enumerate(zip(names, counts, strict=True)):
            file = self._open.get(name)
            if file is not None and not discarded[place]:
                file.add(_of_request(found, place, row, flat, count), spent, len(names), scheduled)
            row, flat = row + count + 1, flat + count

    def _finish(self, name: str) -> None:
        file = self._open.pop(name, None)
        if file is not None:
            file.close()


def _of_request(host: dict[str, Any], place: int, row: int, flat: int, count: int) -> dict[str, Any]:
    """A round's numbers for one request: its drafted tokens, what was sampled, and their scores."""
    return {
        "drafted": host.get("drafted", [])[flat : flat + count],
        "draft_scores": host.get("draft_scores", [])[flat : flat + count],
        "q": host["q"][flat : flat + count] if "q" in host else None,
        "sampled": [token for token in host["sampled"][place][: count + 1] if token >= 0],
        "sampled_scores": host["sampled_scores"][place],
        "log_norm": host["log_norm"][row : row + count + 1],
        "top": list(zip(host["top_ids"][row : row + count + 1], host["top"][row : row + count + 1], strict=True)),
    }


def new_file(folder: Path, name: str) -> TextIO:
    """A file that only this user can read, numbered where there is one of that name: a client may choose a request's id."""
    for number in range(1, 2 * MOST_FILES):
        place = folder / f"{name}{f'-{number}' if number > 1 else ''}{SUFFIX}"
        try:
            return open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8")
        except FileExistsError:
            continue
    raise BadInput(f"{folder} has {number} traces that are called {name}; move them away.")


class _File:
    """One request's trace as it grows."""

    def __init__(self, out: TextIO, text: TokenTexts, prompt: list[int], asked: Mapping[str, Any], run: Run) -> None:
        self._out = out
        self._writer = TraceWriter()
        self._intake = Intake()
        self._size = 0
        self._ends = frozenset(asked["ends"])
        self._steps = ChainSteps(text, prompt[-1], len(prompt), self._ends)
        self._most, self._least = asked["max_tokens"] or 1 << 30, asked["min_tokens"]
        self._greedy = not asked["temperature"]
        self._over = ""
        self._began = time.perf_counter_ns()
        self._prefill = 0
        self._batch = 1
        self._write(run)

    def _write(self, record: Record) -> None:
        """Write a record that a reader takes. Raises BadTrace for any other."""
        line = self._writer.add(record)
        self._intake.take(line)
        self._size += self._out.write(line + "\n")
        self._out.flush()

    def add(self, told: dict[str, Any], spent: Nanoseconds, batch: int, scheduled: int) -> None:
        """What a round did for this request."""
        if self._over or not told["sampled"] or not self._steps.room(len(told["sampled"])) or self._size > MOST_SIZE:
            return
        if not self._steps.steps:
            spent = Nanoseconds(verify=spent.verify, judge=spent.judge)
            self._prefill = max(0, time.perf_counter_ns() - self._began - spent.total)
        sampled, drafted = told["sampled"], told["drafted"]
        accepted = max(0, len(sampled) - 1) if drafted else 0
        emitted, self._over = self._whole(sampled)
        norms = told["log_norm"]
        p = [_probability(score, norm) for score, norm in zip(told["draft_scores"], norms, strict=False)]
        last = len(emitted) - 1
        told_round = ChainRound(
            drafted, emitted, spent,
            rule="greedy" if self._greedy else "ratio",
            q=[min(1.0, max(0.0, value)) for value in told["q"]] if told["q"] is not None else (),
            p=p,
            bonus_p=_probability(told["sampled_scores"][last], norms[last]),
            top=[
                [(token, _probability(score, norm)) for token, score in zip(ids, scores, strict=True)]
                for (ids, scores), norm in zip(told["top"], norms, strict=True)
            ],
            cut=self._over or None,
            accepted=accepted,
            certain=not self._greedy and told["q"] is None,
            padded=scheduled,
            notes=(ServedNote(batch, 0, len(drafted)).to_note(),) if batch > 1 else (),
        )  # fmt: skip
        self._batch = max(self._batch, batch)
        self._write(self._steps.add(told_round))

    def _whole(self, sampled: list[int]) -> tuple[list[int], str]:
        """What of the round's tokens counts, and why the text is over: as vLLM's scheduler decides it."""
        left = self._most - len(self._steps.output)
        for place, token in enumerate(sampled[:left]):
            if token in self._ends and len(self._steps.output) + place + 1 >= self._least:
                return sampled[: place + 1], "eos"
        return sampled[:left], "budget" if len(sampled) >= left else ""

    def close(self) -> None:
        """The end line. A request that ended otherwise than by its own tokens was stopped: by a client, or a stop text."""
        message = f"{SHARED} Up to {self._batch} at once." if self._batch > 1 else ""
        self._write(self._steps.end(self._over or "cancelled", message, self._prefill))
        self._out.close()


def _probability(score: float, log_norm: float) -> float:
    return min(1.0, math.exp(min(0.0, score - log_norm)))


def run_line(server: Mapping[str, Any], text: TokenTexts, prompt: list[int], asked: Mapping[str, Any]) -> Run:
    """What was asked of vLLM: ``server`` are its settings, ``asked`` the request's sampling parameters."""
    method, drafter = server["method"], server["drafter"]
    pieces = text.pieces([], prompt)
    warped = asked["top_p"] < 1 or asked["top_k"] > 0 or asked["min_p"] > 0
    run = Run(
        modality="text",
        target=_short(server["model"]),
        method=f"vllm_{method or 'autoregressive'}",
        title=f"{TITLES.get(method, method or 'Autoregressive')} in vLLM",
        exactness="exact",
        parameters=server["parameters"],
        sampling=Sampling(asked["temperature"], asked["top_k"], asked["top_p"], asked["seed"]),
        device=server["device"],
        dtype=server["dtype"],
        tier=server["tier"],
        prompt="".join(pieces),
        prompt_pieces=pieces,
        max_new_tokens=asked["max_tokens"] or 1_000_000,
        draft="" if drafter in ("", "ngram", "suffix", method) else _short(drafter),
        libraries={"specviz": __version__, "vllm": server["vllm"], "torch": server["torch"]},
        recorded_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        warnings=(FIRST, *(("p is shown before top-k, top-p and min-p.",) if warped else ())),
    )
    return fitted_run(run)


def _short(name: str) -> str:
    """A hub's name, or the last part of a folder's path."""
    return Path(name).name if Path(name).is_absolute() else name


def out_of_the_way() -> None:
    """Low priority, and every core: vLLM binds the thread that started this process to one that it computes on."""
    os.nice(NICE)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))


def main(folder: str, source: IO[bytes]) -> None:
    """Write until the input ends."""
    out_of_the_way()
    scribe = Scribe(Path(folder))
    for message in received(source):
        scribe.take(*message)


if __name__ == "__main__":
    main(sys.argv[1], sys.stdin.buffer)

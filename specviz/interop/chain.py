"""Rounds of another engine's chain drafts as trace steps, from the token ids and numbers that the engine reports.

A production engine drafts a chain, scores it in one pass, keeps a prefix and adds one token of the target. What the engine does
not report stays unknown in the step. Texts beyond the limits of a trace file are truncated; tokens and lengths beyond them are
refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate, chain, repeat, takewhile
from operator import eq
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from specviz.errors import BadInput
from specviz.trace.metrics import summarise
from specviz.trace.schema import (
    ACCEPTED,
    MAX_STEPS,
    MAX_TEXT,
    REJECTED,
    ROOT,
    SKIPPED,
    Bonus,
    Candidate,
    End,
    Nanoseconds,
    Node,
    Note,
    Run,
    Sampling,
    Step,
    TargetRow,
)
from specviz.trace.validate import MAX_DEPTH
from specviz.version import __version__

if TYPE_CHECKING:
    from specviz.engine.interfaces import TokenText  # which imports torch

MOST_TOKENS = 40_000
"""Maximum number of tokens of a run, so that the end record fits on a line."""
MOST_LETTERS = 120_000
"""Maximum number of characters in a step's texts, so that the step fits on a line."""
_LINE_PART = 400_000
"""Maximum size of one text of a run or end record, in bytes of JSON."""
_LONGEST = {"target": 1024, "method": 128, "title": 256, "draft": 1024, "device": 256, "dtype": 64, "machine": 1024}
"""Maximum number of characters in the names of a run, by field."""


class NumberedTokens:
    """Display text without a tokenizer: each token is shown by its id."""

    def of(self, token: int) -> str:
        """Return the id in angle brackets."""
        return f"<{token}>"

    def pieces(self, ids: Sequence[int], more: Sequence[int]) -> tuple[str, ...]:
        """Return the ids of ``more`` in angle brackets."""
        return tuple(map(self.of, more))


@dataclass(frozen=True)
class ChainRound:
    """One round as an engine reports it; None where a number is not reported.

    ``emitted``: the accepted prefix of ``drafted``, then the target's token unless the text ended before it. ``q``, ``p``
    [depth]: probabilities of the drafted tokens under drafter and target. ``bonus_p``: probability of the target's token. ``top``
    [depth]: the target's most probable tokens after the root and after each accepted token.
    """

    drafted: Sequence[int]
    emitted: Sequence[int]
    time: Nanoseconds = Nanoseconds()
    rule: str = ""
    """Acceptance rule; if empty, the rule of the run."""
    q: Sequence[float | None] = ()
    p: Sequence[float | None] = ()
    bonus_p: float | None = None
    top: Sequence[Sequence[tuple[int, float]]] = ()
    cut: str | None = None
    accepted: int | None = None
    """Number of accepted drafted tokens; if None, the length of the common prefix of ``drafted`` and ``emitted``."""
    untold: int = 0
    """Number of rejected drafted tokens that the engine counts but does not name."""
    certain: bool = False
    padded: int = 0
    """Number of rows of the pass, other requests included; 0 if only this request's rows are known."""
    draft_calls: int = 1
    notes: tuple[Note, ...] = ()
    pieces: Sequence[str] | None = None
    """Text that each emitted token adds, if the engine reports it."""


class ChainSteps:
    """Converter of one run's rounds, in order, to steps.

    ``root``: last token of the prompt. ``length``: number of tokens of the prompt. ``ends``: end tokens, shown without text.
    """

    def __init__(self, text: TokenText, root: int, length: int, ends: frozenset[int] = frozenset(), rule: str = "greedy") -> None:
        self._text, self._ends, self.rule = text, ends, rule
        self._last, self._prompt_length = root, length
        self.output: list[int] = []
        """Token ids emitted so far."""
        self.steps: list[Step] = []

    def room(self, tokens: int) -> bool:
        """Whether a round of this many tokens still fits in the trace."""
        return len(self.steps) < MAX_STEPS and len(self.output) + tokens <= MOST_TOKENS

    def end(self, reason: str, message: str = "", prefill_ns: int = 0) -> End:
        """Return the end record of the run after these steps."""
        text = fitted("".join(piece for step in self.steps for piece in step.pieces))
        metrics = summarise(self.steps, reason, prefill_ns)
        return End(reason, tuple(self.output), text, prefill_ns, metrics, message[:MAX_TEXT])

    def add(self, round_: ChainRound) -> Step:
        """Append the round and return its step. Raises BadInput if a trace cannot hold the round."""
        drafted, emitted, number = round_.drafted, round_.emitted, len(self.steps) + 1
        verified = len(drafted) + round_.untold
        if not emitted or not self.room(len(emitted)) or len(drafted) > MAX_DEPTH:
            raise BadInput(
                f"Round {number} drafts {len(drafted)} and emits {len(emitted)} tokens; a trace holds at most "
                f"{MOST_TOKENS} tokens in {MAX_STEPS} rounds, with drafts of {MAX_DEPTH}."
            )
        # A token resampled after a rejection may equal the rejected one, so the engine's count takes precedence.
        accepted = agreement(drafted, emitted) if round_.accepted is None else round_.accepted
        with_bonus, overruled = len(emitted) > accepted, accepted < len(drafted)
        nodes = [Node(-1, self._last, self._of(self._last), status=ROOT)]
        known = (chain(round_.q, repeat(None)), chain(round_.p[: accepted + 1], repeat(None)))
        for depth, (token, q, p) in enumerate(zip(drafted, *known, strict=False)):
            status = ACCEPTED if depth < accepted else REJECTED if with_bonus and depth == accepted else SKIPPED
            nodes.append(Node(depth, token, self._of(token), _share(q), _share(p), status))
        bonus, rule = None, round_.rule or self.rule
        if with_bonus:
            source = "residual" if overruled and rule == "ratio" else "target"
            bonus = Bonus(accepted, emitted[accepted], self._of(emitted[accepted]), _share(round_.bonus_p), source)
        pieces = self._text.pieces(self.output, emitted) if round_.pieces is None else round_.pieces
        step = Step(
            index=number - 1,
            position=self._prompt_length + len(self.output) - 1,
            nodes=tuple(nodes),
            path=tuple(range(1, accepted + 1)),
            bonus=bonus,
            emitted=tuple(emitted),
            pieces=tuple("" if token in self._ends else piece[:MAX_TEXT] for token, piece in zip(emitted, pieces, strict=True)),
            rule=rule if verified else "none",
            time=round_.time,
            cut=None if with_bonus else round_.cut,
            draft_calls=round_.draft_calls if verified else 0,
            verified=verified,
            padded=max(min(round_.padded, 1_000_000), verified + 1),
            rows=tuple(
                TargetRow(node, tuple(Candidate(token, self._of(token), min(1.0, p)) for token, p in best[:64] if p > 0))
                for node, best in enumerate(round_.top[: accepted + 1])
            ),
            notes=round_.notes,
            certain=round_.certain and bool(drafted),
        )
        texts = [*step.pieces, *(node.text for node in nodes), *(one.text for row in step.rows for one in row.top)]
        if sum(map(len, texts)) > MOST_LETTERS:
            raise BadInput(f"The texts of round {number} have more than {MOST_LETTERS} characters.")
        self.steps.append(step)
        self.output.extend(emitted)
        self._last = emitted[-1]
        return step

    def _of(self, token: int) -> str:
        return self._text.of(token)[:MAX_TEXT]


def short_name(name: object) -> str:
    """Return a model's name without folders, at most 256 characters."""
    text = str(name or "")
    return (PurePath(text).name if text.startswith("/") or PurePath(text).is_absolute() else text)[:256]


def agreement(own: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common prefix of two token sequences."""
    return sum(takewhile(bool, map(eq, own, other)))


def _share(value: float | None) -> float | None:
    """Return a probability clamped to [0, 1], or None if the value is not finite."""
    return None if value is None or not math.isfinite(value) else min(1.0, max(0.0, value))


def fitted(text: str) -> str:
    """Return the longest prefix of a text that fits on a line, to within 10 %."""
    while _size(text) > _LINE_PART:
        text = text[: len(text) * 9 // 10]
    return text


def _size(text: str) -> int:
    """Return the size of a text in bytes of JSON."""
    return len(json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass"))


def run_of(target: str, method: str, title: str, sampling: Sampling = Sampling(), max_new_tokens: int = 0, **fields: Any) -> Run:
    """Return the run record of another engine. By default, the text is exact and the time is now.

    Names and texts are truncated to the limits of a trace.
    """
    pieces = fields.get("prompt_pieces", ())
    found = {
        "modality": "text", "exactness": "exact", "parameters": {}, "tier": "served", "device": "", "dtype": "",
        "prompt": "".join(pieces), "recorded_at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), **fields,
        "target": target, "method": method, "title": title,
    }  # fmt: skip
    found |= {name: found[name][:most] for name, most in _LONGEST.items() if name in found}
    sizes = accumulate(_size(piece) + 1 for piece in pieces)
    found["prompt_pieces"] = tuple(piece[:MAX_TEXT] for piece, size in zip(pieces, sizes, strict=True) if size <= _LINE_PART)
    found |= {"prompt": fitted(found["prompt"]), "libraries": {"specviz": __version__, **fields.get("libraries", {})}}
    sampling = sampling.replace(temperature=min(100.0, sampling.temperature))
    return Run(**found, sampling=sampling, max_new_tokens=min(1_000_000, max_new_tokens))


def by_name(parameters: Mapping[str, object]) -> dict[str, str | bool | float | None]:
    """Return an engine's settings in a trace's format: plain values unchanged, other values as text, None left out."""
    known = [(name[:128], value) for name, value in parameters.items() if value is not None][:64]
    return {name: value if isinstance(value, bool | int | float) else str(value)[:1024] for name, value in known}

"""Chain rounds of another engine as trace steps, from the token ids and numbers that it tells.

A production engine drafts a chain, scores it in one pass, keeps a prefix and adds a token of the target's. What it does not
tell stays unknown in the step: no probability, no text or no draft is made up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from specviz.trace.schema import (
    ACCEPTED,
    REJECTED,
    ROOT,
    SKIPPED,
    Bonus,
    Candidate,
    Nanoseconds,
    Node,
    Note,
    Step,
    TargetRow,
)


class TokenTexts(Protocol):
    """Token ids to text, for people, as :class:`specviz.engine.interfaces.TokenText`."""

    def of(self, token: int) -> str: ...

    def pieces(self, ids: Sequence[int], more: Sequence[int]) -> tuple[str, ...]: ...


class NumberedTokens:
    """Texts where no tokenizer is at hand: a token is its number."""

    def of(self, token: int) -> str:
        """The id in angle brackets."""
        return f"<{token}>"

    def pieces(self, ids: Sequence[int], more: Sequence[int]) -> tuple[str, ...]:
        """The same, one a token."""
        return tuple(self.of(token) for token in more)


@dataclass(frozen=True)
class ChainRound:
    """One round as an engine tells of it.

    ``drafted`` and ``emitted`` are token ids: the accepted prefix of the draft, then the target's own token unless the text
    ended before. ``q`` [depth] and ``p`` [depth] are probabilities of the drafted tokens by drafter and target, ``bonus_p``
    that of the target's own token; None where the engine does not tell. ``top`` [depth] are the target's likeliest tokens
    after the root and after each accepted token.
    """

    drafted: Sequence[int]
    emitted: Sequence[int]
    time: Nanoseconds = field(default_factory=Nanoseconds)
    rule: str = "greedy"
    q: Sequence[float | None] = ()
    p: Sequence[float | None] = ()
    bonus_p: float | None = None
    top: Sequence[Sequence[tuple[int, float]]] = ()
    cut: str | None = None
    accepted: int | None = None
    """Tokens of the draft that the target accepted, where the text ended inside them; as many as were emitted if None."""
    untold: int = 0
    """Rejected tokens of the draft that the engine counts and does not name."""
    certain: bool = False
    passes: int = 1
    padded: int = 0
    """Rows of the pass, those of other requests included; 0 where only this one's are known."""
    draft_calls: int = 1
    notes: tuple[Note, ...] = ()


class ChainSteps:
    """Rounds of one run, in order, as steps. ``prompt`` are its token ids; ``ends`` are tokens that end a text unseen."""

    def __init__(self, text: TokenTexts, prompt: Sequence[int], ends: frozenset[int] = frozenset()) -> None:
        self._text, self._ends = text, ends
        self._last, self._prompt_length = prompt[-1], len(prompt)
        self.output: list[int] = []
        """Token ids written so far."""
        self.steps: list[Step] = []

    def text_of(self, ids: Sequence[int]) -> str:
        """What these ids after an empty text say, ends left out."""
        pieces = self._text.pieces([], ids)
        return "".join("" if token in self._ends else piece for token, piece in zip(ids, pieces, strict=True))

    def add(self, told: ChainRound) -> Step:
        """The round as a step. Raises ValueError where it emits nothing."""
        if not told.emitted:
            raise ValueError("A round emits at least one token.")
        # A token drawn in place of a rejected one may be the same token: what the engine says of acceptance counts.
        accepted = _common(told.drafted, told.emitted) if told.accepted is None else told.accepted
        with_bonus = len(told.emitted) > accepted
        overruled = with_bonus and accepted < len(told.drafted)
        nodes = [Node(-1, self._last, self._text.of(self._last), status=ROOT)]
        for depth, token in enumerate(told.drafted):
            status = ACCEPTED if depth < accepted else REJECTED if with_bonus and depth == accepted else SKIPPED
            q, p = _at(told.q, depth), _at(told.p, depth) if depth <= accepted else None
            nodes.append(Node(depth, token, self._text.of(token), q, p, status))
        step = Step(
            index=len(self.steps),
            position=self._prompt_length + len(self.output) - 1,
            nodes=tuple(nodes),
            path=tuple(range(1, accepted + 1)),
            bonus=self._bonus(told, accepted, overruled) if with_bonus else None,
            emitted=tuple(told.emitted),
            pieces=self._pieces(told.emitted),
            rule=told.rule if told.drafted or told.untold else "none",
            time=told.time,
            cut=told.cut if not with_bonus else None,
            draft_calls=told.draft_calls,
            verified=len(told.drafted) + told.untold,
            padded=max(told.padded, len(told.drafted) + told.untold + 1),
            rows=self._rows(told.top, accepted),
            notes=told.notes,
            passes=told.passes,
            certain=told.certain and bool(told.drafted),
        )
        self.steps.append(step)
        self.output.extend(told.emitted)
        self._last = self.output[-1]
        return step

    def _bonus(self, told: ChainRound, accepted: int, overruled: bool) -> Bonus:
        token = told.emitted[accepted]
        source = "residual" if overruled and told.rule == "ratio" else "target"
        return Bonus(accepted, token, self._text.of(token), told.bonus_p, source)

    def _pieces(self, emitted: Sequence[int]) -> tuple[str, ...]:
        pieces = self._text.pieces(self.output, emitted)
        return tuple("" if token in self._ends else piece for token, piece in zip(emitted, pieces, strict=True))

    def _rows(self, top: Sequence[Sequence[tuple[int, float]]], accepted: int) -> tuple[TargetRow, ...]:
        rows = []
        for node, best in enumerate(top[: accepted + 1]):
            rows.append(TargetRow(node, tuple(Candidate(token, self._text.of(token), p) for token, p in best if p > 0)))
        return tuple(rows)


def _common(drafted: Sequence[int], emitted: Sequence[int]) -> int:
    """How many tokens of the draft were emitted as they stand."""
    count = 0
    for own, written in zip(drafted, emitted, strict=False):
        if own != written:
            break
        count += 1
    return count


def _at(values: Sequence[float | None], place: int) -> float | None:
    return values[place] if place < len(values) else None


def by_name(parameters: Mapping[str, object]) -> dict[str, str | bool | float | None]:
    """An engine's settings as a trace holds them: plain values as they are, others as text, None left out."""
    plain: dict[str, str | bool | float | None] = {}
    for name, value in parameters.items():
        if value is not None:
            plain[name[:128]] = value if isinstance(value, str | bool | int | float) else str(value)[:1024]
    return plain

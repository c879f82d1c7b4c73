"""Chain rounds of another engine as trace steps, from the token ids and numbers that it tells.

A production engine drafts a chain, scores it in one pass, keeps a prefix and adds a token of the target's. What it does not
tell stays unknown in the step: no probability, no text or no draft is made up. What a trace file could not hold is cut (texts)
or refused (tokens, lengths), so that every step made here can be written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from specviz.errors import BadInput, shown
from specviz.trace.meaning import MAX_DEPTH
from specviz.trace.metrics import summarise
from specviz.trace.schema import (
    ACCEPTED,
    MAX_NODES,
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
    Step,
    TargetRow,
)

MOST_TOKENS = 40_000
"""Most tokens of one run, so that its end fits on a line."""
MOST_LETTERS = 120_000
"""Most characters in a step's texts, so that it fits on a line."""
MOST_PROMPT = 50_000_000
LARGEST_TOKEN = 2**31 - 1
_LINE_PART = 400_000
"""Most bytes of JSON that one text of a run or an end may take."""


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
    pieces: Sequence[str] | None = None
    """Text that each emitted token adds, where the engine tells it."""


class ChainSteps:
    """Rounds of one run, in order, as steps. ``root`` is the last token of the prompt and ``length`` how many it has; ``ends``
    are tokens that end a text unseen."""

    def __init__(self, text: TokenTexts, root: int, length: int, ends: frozenset[int] = frozenset()) -> None:
        if length > MOST_PROMPT:
            raise BadInput(f"The prompt has {length} tokens; a trace holds {MOST_PROMPT} at most.")
        self._text, self._ends = text, ends
        self._last, self._prompt_length = root, length
        self.output: list[int] = []
        """Token ids written so far."""
        self.steps: list[Step] = []

    def room(self, tokens: int = 1) -> bool:
        """Whether a round of so many tokens has its place in this run."""
        return len(self.steps) < MAX_STEPS and len(self.output) + tokens <= MOST_TOKENS

    def end(self, reason: str, message: str = "", prefill_ns: int = 0) -> End:
        """The run's end after these steps."""
        text = fitted("".join(piece for step in self.steps for piece in step.pieces))
        metrics = summarise(self.steps, reason, prefill_ns)
        return End(reason, tuple(self.output), text, prefill_ns, metrics, message[:MAX_TEXT])

    def add(self, told: ChainRound) -> Step:
        """The round as a step. Raises BadInput where a trace cannot hold it."""
        if not told.emitted or not self.room(len(told.emitted)) or len(told.drafted) > MAX_DEPTH:
            raise BadInput(
                f"Round {len(self.steps) + 1} drafts {len(told.drafted)} and emits {len(told.emitted)} tokens; a trace holds "
                f"{MOST_TOKENS} tokens in {MAX_STEPS} rounds, with drafts of {MAX_DEPTH}."
            )
        for token in (*told.drafted, *told.emitted, *(token for best in told.top for token, _ in best)):
            if not 0 <= token <= LARGEST_TOKEN:
                raise BadInput(f"A token id is {shown(token)}; it should be a whole number from 0 to {LARGEST_TOKEN}.")
        # A token drawn in place of a rejected one may be the same token: what the engine says of acceptance counts.
        accepted = _common(told.drafted, told.emitted) if told.accepted is None else told.accepted
        with_bonus = len(told.emitted) > accepted
        overruled = with_bonus and accepted < len(told.drafted)
        untold = max(0, min(told.untold, MAX_NODES - 1 - len(told.drafted)))
        nodes = [Node(-1, self._last, self._of(self._last), status=ROOT)]
        for depth, token in enumerate(told.drafted):
            status = ACCEPTED if depth < accepted else REJECTED if with_bonus and depth == accepted else SKIPPED
            q, p = _at(told.q, depth), _at(told.p, depth) if depth <= accepted else None
            nodes.append(Node(depth, token, self._of(token), q, p, status))
        step = Step(
            index=len(self.steps),
            position=self._prompt_length + len(self.output) - 1,
            nodes=tuple(nodes),
            path=tuple(range(1, accepted + 1)),
            bonus=self._bonus(told, accepted, overruled) if with_bonus else None,
            emitted=tuple(told.emitted),
            pieces=self._pieces(told),
            rule=told.rule if told.drafted or untold else "none",
            time=told.time,
            cut=told.cut if not with_bonus else None,
            draft_calls=told.draft_calls,
            verified=len(told.drafted) + untold,
            padded=max(min(told.padded, 1_000_000), len(told.drafted) + untold + 1),
            rows=self._rows(told.top, accepted),
            notes=told.notes,
            passes=told.passes,
            certain=told.certain and bool(told.drafted),
        )
        texts = [*step.pieces, *(node.text for node in nodes), *(one.text for row in step.rows for one in row.top)]
        if sum(map(len, texts)) > MOST_LETTERS:
            raise BadInput(f"The texts of round {len(self.steps) + 1} have more than {MOST_LETTERS} characters.")
        self.steps.append(step)
        self.output.extend(told.emitted)
        self._last = self.output[-1]
        return step

    def _bonus(self, told: ChainRound, accepted: int, overruled: bool) -> Bonus:
        token = told.emitted[accepted]
        source = "residual" if overruled and told.rule == "ratio" else "target"
        return Bonus(accepted, token, self._of(token), _share(told.bonus_p), source)

    def _of(self, token: int) -> str:
        return self._text.of(token)[:MAX_TEXT]

    def _pieces(self, told: ChainRound) -> tuple[str, ...]:
        pieces = self._text.pieces(self.output, told.emitted) if told.pieces is None else told.pieces
        return tuple("" if token in self._ends else piece[:MAX_TEXT] for token, piece in zip(told.emitted, pieces, strict=True))

    def _rows(self, top: Sequence[Sequence[tuple[int, float]]], accepted: int) -> tuple[TargetRow, ...]:
        return tuple(
            TargetRow(node, tuple(Candidate(token, self._of(token), min(1.0, p)) for token, p in best[:64] if p > 0))
            for node, best in enumerate(top[: accepted + 1])
        )


def _common(drafted: Sequence[int], emitted: Sequence[int]) -> int:
    """How many tokens of the draft were emitted as they stand."""
    count = 0
    for own, written in zip(drafted, emitted, strict=False):
        if own != written:
            break
        count += 1
    return count


def _at(values: Sequence[float | None], place: int) -> float | None:
    return _share(values[place]) if place < len(values) else None


def _share(value: float | None) -> float | None:
    """A probability, None where that is no number."""
    return None if value is None or not math.isfinite(value) else min(1.0, max(0.0, value))


def fitted(text: str) -> str:
    """As much of a text as a part of a line may hold."""
    while _size(text) > _LINE_PART:
        text = text[: len(text) * 9 // 10]
    return text


def _size(text: str) -> int:
    """Bytes that a text takes in a line."""
    return len(json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass"))


def fitted_run(run: Run) -> Run:
    """The run with names and prompt as long as a trace may hold them."""
    prompt, rest, pieces = fitted(run.prompt), _LINE_PART, []
    for piece in run.prompt_pieces:
        rest -= _size(piece) + 1
        if rest < 0:
            break
        pieces.append(piece[:MAX_TEXT])
    return replace(
        run,
        target=run.target[:1024],
        draft=run.draft[:1024],
        method=run.method[:128],
        title=run.title[:256],
        device=run.device[:256],
        dtype=run.dtype[:64],
        machine=run.machine[:1024],
        prompt=prompt,
        prompt_pieces=tuple(pieces),
        sampling=replace(run.sampling, temperature=min(100.0, run.sampling.temperature)),
        max_new_tokens=min(1_000_000, run.max_new_tokens),
    )


def by_name(parameters: Mapping[str, object]) -> dict[str, str | bool | float | None]:
    """An engine's settings as a trace holds them: plain values as they are, others as text, None left out."""
    plain: dict[str, str | bool | float | None] = {}
    for name, value in parameters.items():
        if value is not None:
            plain[name[:128]] = value if isinstance(value, bool | int | float) else str(value)[:1024]
    return dict(list(plain.items())[:64])

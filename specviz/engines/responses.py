"""Rounds of a run from what a server's response tells of them: token ids, texts, probabilities and counts.

Rejected drafts are counts in such responses: their tokens are known to the engine alone. The round then has its accepted
tokens, and a note of how many more were drafted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specviz.engines.chain import ChainRound
from specviz.errors import BadInput
from specviz.trace.notes.models import ServedNote
from specviz.trace.schema import MAX_NODES, Nanoseconds

MOST_TOKENS = 100_000
UNPLACED = (
    "The server left out {count} rounds without a draft and did not say where they were; they stand before all others here."
)
TIMES = "Times are gaps between arrivals: drafting, the pass and the network together."


NUMBERED = 1 << 30
"""First number of tokens without an id, above those of any vocabulary."""


@dataclass(frozen=True)
class ToldToken:
    """An emitted token: its id or a number of its own, its text, the target's probability and likeliest tokens there."""

    token: int
    text: str
    p: float | None = None
    top: Sequence[tuple[int, str, float]] = ()


@dataclass
class ToldTexts:
    """Texts of tokens as a server tells them (``chain.TokenTexts``). Tokens without an id are numbered as they appear."""

    by_id: dict[int, str] = field(default_factory=dict)
    ends: set[int] = field(default_factory=set)
    """Tokens that ended a text: the server names them, and they are no part of it."""
    _numbers: dict[str, int] = field(default_factory=dict)

    def of(self, token: int) -> str:
        """What was told, or the id in angle brackets."""
        return self.by_id.get(token, f"<{token}>")

    def pieces(self, ids: Sequence[int], more: Sequence[int]) -> tuple[str, ...]:
        """The texts one by one: what a server tells of a token is what it adds."""
        return tuple("" if token in self.ends else self.of(token) for token in more)

    def learn(self, token: int | None, text: str) -> int:
        """The token's id, or the number that this text has here."""
        number = self._numbers.setdefault(text, NUMBERED + len(self._numbers)) if token is None else token
        self.by_id[number] = text
        return number


@dataclass(frozen=True)
class Arrival:
    """Tokens that came together, in nanoseconds after those before. ``drafted`` is None where the server does not tell."""

    tokens: Sequence[ToldToken]
    gap_ns: int = 0
    drafted: int | None = None


class CountedRounds:
    """Rounds by counts beside each token, as llama.cpp sends them with ``timings_per_token``: all tokens of a round carry
    the numbers of drafted and accepted tokens after it. Tokens without such counts are a round as they came."""

    def __init__(self) -> None:
        self._waiting: list[ToldToken] = []
        self._counts = (0, 0)
        self._drafted = 0
        self._expected = 0

    def take(self, tokens: Sequence[ToldToken], timings: Mapping[str, Any]) -> Arrival | None:
        """Tokens that came together; the round before them, once it is known to be whole."""
        if "draft_n" not in timings:
            return Arrival(tokens)
        counts = (int(timings["draft_n"]), int(timings.get("draft_n_accepted", 0)))
        whole = self.rest() if counts != self._counts or len(self._waiting) > self._expected else None
        if not self._waiting:
            self._drafted, self._expected = counts[0] - self._counts[0], counts[1] - self._counts[1]
            self._counts = counts
        self._waiting = [*self._waiting, *tokens]
        return whole

    def rest(self) -> Arrival | None:
        """The round that waits for more, if there is one."""
        waiting, self._waiting = self._waiting, []
        return Arrival(waiting, drafted=self._drafted) if waiting else None


def told_tokens(choice: Mapping[str, Any], texts: ToldTexts) -> list[ToldToken]:
    """Tokens of one choice, or of one streamed piece of it, by its log probabilities and token ids (OpenAI's fields, with
    vLLM's ``token_ids`` and llama.cpp's ``id``). Without either, its text is one token."""
    content = _content(choice)
    ids = choice.get("token_ids") or (choice.get("delta") or choice.get("message") or {}).get("token_ids") or []
    found = []
    for place, entry in enumerate(content):
        token = ids[place] if place < len(ids) else entry.get("id")
        text = str(entry.get("token", ""))
        number = texts.learn(None if token is None else int(token), text)
        found.append(ToldToken(number, text, _probability(entry), _top(entry, number, text, texts)))
    if found and choice.get("finish_reason") == "stop" and not _text(choice).endswith(found[-1].text):
        texts.ends.add(found[-1].token)
    if not found:
        text = _text(choice)
        found = [ToldToken(texts.learn(int(token), ""), "") for token in ids]
        if text and not ids:
            found = [ToldToken(texts.learn(None, text), text)]
    return found


def _top(entry: Mapping[str, Any], token: int, text: str, texts: ToldTexts) -> list[tuple[int, str, float]]:
    """The target's likeliest tokens there. Only the emitted one has its id in every engine; others may be numbered."""
    found = []
    for other in entry.get("top_logprobs") or ():
        name, p = str(other.get("token", "")), _probability(other)
        if p is not None:
            found.append((token if name == text else texts.learn(other.get("id"), name), name, p))
    return found


def _content(choice: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Log probabilities a token, of a chat or of a plain completion."""
    told = choice.get("logprobs") or {}
    if told.get("content") is not None:
        return list(told["content"])
    names, values = told.get("tokens") or [], told.get("token_logprobs") or []
    return [{"token": name, "logprob": value} for name, value in zip(names, values, strict=False)]


def _text(choice: Mapping[str, Any]) -> str:
    part = choice.get("delta") or choice.get("message") or {}
    return str(choice.get("text") or part.get("content") or part.get("reasoning_content") or part.get("reasoning") or "")


def _probability(entry: Mapping[str, Any]) -> float | None:
    value = entry.get("logprob")
    return None if value is None else min(1.0, math.exp(min(0.0, float(value))))


def rounds_by_counts(tokens: Sequence[ToldToken], accepted: Sequence[int], drafted: Sequence[int]) -> tuple[list[Arrival], str]:
    """A whole text split by a server's counts a verified draft (vLLM's ``per_step_accepted`` and ``per_step_drafted``).

    The first token comes from the pass that reads the prompt. Rounds without a draft are left out of the counts. Returns the
    rounds and a warning where their place is not known. Raises BadInput where the counts do not fit the text.
    """
    if len(accepted) != len(drafted):
        raise BadInput(f"per_step_accepted has {len(accepted)} entries and per_step_drafted {len(drafted)}; they go together.")
    spoken = sum(accepted) + len(accepted)
    plain = len(tokens) - 1 - spoken
    cut = max(0, -plain)
    if not tokens or any(not 0 <= kept <= made < MAX_NODES for kept, made in zip(accepted, drafted, strict=True)):
        raise BadInput("The counts a step are no counts of accepted and drafted tokens; is this a whole response?")
    if accepted and cut > accepted[-1] + 1:
        raise BadInput(f"The counts say {spoken + 1} tokens and the text has {len(tokens)}; is this a whole response?")
    rounds = [Arrival([token], drafted=0) for token in tokens[: 1 + max(0, plain)]]
    place = len(rounds)
    for kept, made in zip(accepted, drafted, strict=True):
        part = tokens[place : place + kept + 1]
        if part:
            rounds.append(Arrival(part, drafted=made))
        place += kept + 1
    return rounds, UNPLACED.format(count=plain) if plain > 0 and accepted else ""


def chain_round(arrival: Arrival, cut: str | None = None, greedy: bool = True, batch: int | None = None) -> ChainRound:
    """An arrival as a round: all its tokens but the last were drafted, and more where the server says so."""
    ids = [token.token for token in arrival.tokens]
    kept = ids[:-1]
    if arrival.drafted is not None and arrival.drafted >= len(ids) and cut:
        kept = ids  # the end lies inside the accepted tokens
    untold = max(0, (arrival.drafted or 0) - len(kept))
    told = [token.p for token in arrival.tokens]
    notes = () if arrival.drafted is None and batch is None else (ServedNote(batch, untold, arrival.drafted).to_note(),)
    return ChainRound(
        kept,
        ids,
        Nanoseconds(host=arrival.gap_ns),
        rule="greedy" if greedy else "match",
        p=told,
        bonus_p=told[-1],
        top=[[(number, p) for number, _, p in token.top] for token in arrival.tokens],
        cut=cut,
        untold=untold,
        draft_calls=1 if kept or untold else 0,
        notes=notes,
    )

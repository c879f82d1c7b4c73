"""Rounds of a run from a server's response: token ids, texts, probabilities and counts.

Servers count rejected draft tokens without naming them, so a round has the accepted tokens and a note with the number of
rejected ones.

Each response (chat or completion) in a JSON file becomes a trace. The tokens come from ``choices[0]``, with ``logprobs`` or
``token_ids``. The rounds come from ``per_step_accepted`` and ``per_step_drafted`` of ``metrics.speculative_decoding``. The first
position comes from ``prompt_token_ids``, or else from ``usage.prompt_tokens``. Names of unread fields are reported.
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct

from specviz.errors import BadInput, BadTrace, shown
from specviz.interop.chain import MOST_LETTERS, ChainRound, ChainSteps, NumberedTokens, run_of
from specviz.trace.notes.models import ServedNote
from specviz.trace.schema import CUTS, MAX_NODES, MAX_TEXT, Count, Line, Nanoseconds, Token, Trace
from specviz.trace.validate import MAX_DEPTH
from specviz.trace.wire import strict_json, typed

MOST_BYTES = 64 << 20
MOST_TRACES = 256
MOST_PROMPT = 50_000_000
_RESPONSE = {"choices", "usage", "metrics", "model", "id", "object", "created", "prompt_token_ids"}
NO_TIMES = "This file holds no times: every step shows 0."
NO_ROUNDS = "The response does not report its rounds: every token is shown as its own round."
ALWAYS_ONE = "The server gave every token probability 1, as llama.cpp does while it speculates: p is left out."
REASONS = {"stop": "eos", "tool_calls": "eos", "length": "budget"}
"""Trace end reasons by the server's ``finish_reason``."""
NUMBERED = 1 << 30
"""First number assigned to tokens without an id; larger than any vocabulary."""
_NAMED_BY_ID = re.compile(r"token_id:(\d{1,9})")
_BROKEN = "\ufffd"


T = TypeVar("T")
Ids = tuple[Token, ...] | None
Counts = tuple[Annotated[int, Meta(ge=0, le=MAX_NODES)], ...] | None
LogProbability = Annotated[float, Meta(le=0.001)] | None
"""Natural logarithm of a probability, with a tolerance for rounding."""


def converted(kind: type[T], value: Any) -> T:
    """Convert another program's JSON, as text or parsed, to ``kind``.

    Raises BadInput, naming the field, for invalid or infinite values.
    """
    try:
        return typed(kind, strict_json(value) if isinstance(value, str) else value)  # type: ignore[no-any-return]
    except BadTrace as fault:
        raise BadInput(f"In {fault.field or 'the JSON'}: {fault}") from None


class Row(Struct):
    """Token of a response: name or text, log-probability, bytes, llama.cpp's ``id``, and top tokens at its position."""

    token: str | None = None
    logprob: LogProbability = None
    bytes: tuple[Annotated[int, Meta(ge=0, le=255)], ...] | None = None
    id: Token | None = None
    top_logprobs: tuple[Row, ...] | None = None

    @property
    def p(self) -> float | None:
        """Probability of the token."""
        return None if self.logprob is None else math.exp(min(0.0, self.logprob))


class LogProbabilities(Struct):
    """Log-probabilities of a chat (``content``) or of a plain completion."""

    content: tuple[Row, ...] | None = None
    tokens: tuple[str | None, ...] | None = None
    token_logprobs: tuple[LogProbability, ...] | None = None


class Part(Struct):
    """Message, or a streamed part of one."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    token_ids: Ids = None


class Choice(Struct):
    """One of a response's texts, or a streamed part of one."""

    delta: Part | None = None
    message: Part | None = None
    text: str | None = None
    logprobs: LogProbabilities | None = None
    finish_reason: str | None = None
    token_ids: Ids = None
    prompt_token_ids: Ids = None


class Speculation(Struct):
    """vLLM's counts: totals, and accepted and drafted tokens per verified draft."""

    num_spec_steps: Count | None = None
    num_draft_tokens: Count | None = None
    num_accepted_draft_tokens: Count | None = None
    per_step_accepted: Counts = None
    per_step_drafted: Counts = None


class Metrics(Struct):
    """vLLM's metrics for a response."""

    speculative_decoding: Speculation | None = None


class Timings(Struct):
    """llama.cpp's counts up to this event."""

    draft_n: Count | None = None
    draft_n_accepted: Count | None = None


class Usage(Struct):
    """OpenAI's counts."""

    prompt_tokens: Annotated[int, Meta(ge=0, le=MOST_PROMPT)] | None = None


class Response(Struct):
    """Fields that are read from a response in OpenAI's format, or from one of its events."""

    id: Line | None = None
    model: Line | None = None
    choices: tuple[Choice, ...] | None = None
    usage: Usage | None = None
    metrics: Metrics | None = None
    timings: Timings | None = None
    prompt_token_ids: Ids = None
    error: Any = None
    sglext: dict[str, Any] | None = None
    sglext_spec: Any = None

    @property
    def speculation(self) -> Speculation:
        """vLLM's counts, empty if the response has none."""
        return (self.metrics and self.metrics.speculative_decoding) or Speculation()

    @property
    def prompt(self) -> tuple[int, ...]:
        """Token ids of the prompt, () if the server does not report them."""
        return self.prompt_token_ids or next((choice.prompt_token_ids for choice in self.choices or ()), None) or ()


@dataclass(frozen=True)
class ServedToken:
    """Emitted token: id or assigned number, added text, its probability under the target, and the target's top tokens there."""

    token: int
    piece: str
    p: float | None = None
    top: Sequence[tuple[int, float]] = ()


@dataclass(frozen=True)
class Arrival:
    """Tokens that arrived together, ``gap_ns`` after the previous arrival. ``drafted``: None if not reported.

    ``accepted``: maximum number of tokens that were drafted.
    """

    tokens: Sequence[ServedToken]
    gap_ns: int = 0
    drafted: int | None = None
    accepted: int = MAX_NODES


class TokenReader(NumberedTokens):
    """Reader of one response's tokens (``engine.interfaces.TokenText``). Tokens without an id are numbered as they appear.

    Each token adds its bytes or name to the text, if they agree with the response's content. Text that belongs to no token
    becomes a token without a probability. ``doubtful``: whether p = 1 is ignored until another value of p is seen.
    """

    def __init__(self, doubtful: bool = False) -> None:
        self._labels, self._numbers = dict[int, str](), dict[str, int]()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._late = False
        self._doubtful = doubtful
        self.always_one = ""
        """Warning that p was left out because it was 1 for every token, else ""."""

    def of(self, token: int) -> str:
        """Return the token's name, or its id in angle brackets."""
        return self._labels.get(token) or super().of(token)

    def number(self, label: str) -> int:
        """Return the number assigned to a token without an id."""
        number = self._numbers.setdefault(label, NUMBERED + len(self._numbers))
        self._labels[number] = label
        return number

    def _known(self, token: int | None, label: str) -> int:
        """Store a token's label. Returns the id, or an assigned number if there is none."""
        if token is None:
            return self.number(label)
        if label:
            self._labels.setdefault(token, label)
        return token

    def read(self, choice: Choice) -> list[ServedToken]:
        """Read the tokens of one choice, or of a streamed part of one.

        Reads log-probabilities and token ids from OpenAI's fields, vLLM's ``token_ids`` or llama.cpp's ``id``. Without them, the
        text is one token.
        """
        part, logprobs = choice.delta or choice.message or Part(), choice.logprobs or LogProbabilities()
        texts = [part.reasoning_content, part.reasoning, choice.text, part.content]
        content = (texts[0] or texts[1] or "") + (texts[2] or texts[3] or "")
        rows = list(logprobs.content or map(Row, logprobs.tokens or (), logprobs.token_logprobs or ()))
        ids = choice.token_ids or part.token_ids or ()
        if not rows and not ids:
            return self._unnamed(content)
        rows += [Row()] * (len(ids) - len(rows))
        if any(row.p not in (None, 1.0) for row in rows):
            self._doubtful, self.always_one = False, ""
        entries = [self._entry(row, *ids[place : place + 1]) for place, row in enumerate(rows)]
        gaps, pieces, rest = [""] * len(rows), [entry.piece for entry in entries], ""
        if any(text is not None for text in texts):
            gaps, pieces, rest = self._aligned(pieces, content)
        elif choice.finish_reason == "stop":
            pieces[-1] = ""  # without content only names are known, and the name of an end token is not text
        tokens: list[ServedToken] = []
        for entry, gap, piece in zip(entries, gaps, pieces, strict=True):
            if piece and entry.token < NUMBERED:
                self._labels.setdefault(entry.token, piece[:MAX_TEXT])
            tokens += [*self._unnamed(gap), replace(entry, piece=piece[:MAX_TEXT]), *self._unnamed(piece[MAX_TEXT:])]
        return [*tokens, *self._unnamed(rest)]

    def _unnamed(self, text: str) -> list[ServedToken]:
        """Return tokens for text whose tokens are unknown."""
        parts = [text[start : start + MAX_TEXT] for start in range(0, len(text), MAX_TEXT)]
        return [ServedToken(self.number(part), part) for part in parts]

    def _entry(self, row: Row, token: int | None = None) -> ServedToken:
        """Return a row's token and store its name. The text is empty until the bytes so far complete a character."""
        token_id, label, name, raw = _named(row)
        if raw and raw != name.encode():
            name = self._utf8.decode(raw)
        else:
            self._utf8.reset()
        token, p, top = self._known(token_id if token is None else token, label), row.p, []
        if self._doubtful and p == 1.0:
            p, self.always_one = None, ALWAYS_ONE
        for other in row.top_logprobs or () if p is not None else ():
            other_id, its_label, *_ = _named(other)
            # Some engines give an id for the emitted token, but not for its entry among the top tokens.
            likely = token if its_label and its_label == label else self._known(other_id, its_label)
            if other.p is not None:
                top.append((likely, other.p))
        return ServedToken(token, "" if _BROKEN in name else name, p, top)

    def _aligned(self, texts: Sequence[str], whole: str) -> tuple[list[str], list[str], str]:
        """Split ``whole`` by token: text before each token that belongs to none, each token's text, and the text after the last.

        A token whose text does not occur in ``whole`` gets the text up to the next match: an end token, or part of a character.
        """
        before, pieces, silent, rest = [""] * len(texts), [""] * len(texts), -1, whole
        for place, text in enumerate(texts):
            start = rest.find(text) if text else -1
            if start > 0 and (bare := text.lstrip(" ")) and rest.startswith(bare):
                start, text = 0, bare  # the first word has lost the leading space of its token
            if start < 0:
                silent = place
                continue
            gap, rest = rest[:start], rest[start + len(text) :]
            if silent >= 0:
                pieces[silent] = gap
            elif self._late:
                text = gap + text
            else:
                before[place] = gap
            pieces[place], silent, self._late = text, -1, False
        if silent >= 0:
            pieces[silent], rest = rest, ""
        self._late = silent >= 0 and not pieces[silent] and bool(texts[silent])
        return before, pieces, rest

    def bounded(self, arrival: Arrival) -> list[Arrival]:
        """Split the arrival into parts that fit in a step.

        More than one part is needed only if a whole text arrives at once.
        """
        parts, room = [list[ServedToken]()], 0
        for one in arrival.tokens:
            letters = len(one.piece) + sum(len(self.of(token)) for token in (one.token, one.token, *dict(one.top)))
            room -= letters
            if len(parts[-1]) == MAX_DEPTH or room < 0:
                parts.append([])
                room = MOST_LETTERS // 2 - letters
            parts[-1].append(one)
        if len(parts) < 3:
            return [arrival]
        return [Arrival(part, 0 if place else arrival.gap_ns) for place, part in enumerate(parts[1:])]


def _named(row: Row) -> tuple[int | None, str, str, bytes]:
    """Return id, label, name and bytes of a row's token, as far as known. vLLM has an option to send ids as names."""
    name, raw, token = row.token or "", bytes(row.bytes or ()), row.id
    if by_id := _NAMED_BY_ID.fullmatch(name):
        token, name = int(by_id[1]), ""
    label = name if name and _BROKEN not in name else raw.decode("utf-8", "backslashreplace") or name
    return token, label[:MAX_TEXT], name, raw


Counted = tuple[Sequence[ServedToken], int | None, int]
"""Tokens, and the numbers of drafted (None: not reported) and accepted tokens up to the end of their round."""


def counted_rounds(heard: Iterable[Counted]) -> Iterator[Arrival]:
    """Yield rounds from the counts sent with each token, as by llama.cpp with ``timings_per_token``.

    All tokens of a round carry the counts after that round. An arrival without counts is one round.
    """
    waiting: list[ServedToken] = []
    before, drafted, expected = (0, 0), 0, 0
    for tokens, made, kept in heard:
        if waiting and (made is None or (made, kept) != before or len(waiting) > expected):
            yield Arrival(waiting, drafted=drafted)
            waiting = []
        if made is None:
            yield Arrival(tokens)
            continue
        if not waiting:
            drafted, expected, before = max(0, made - before[0]), min(MAX_DEPTH, kept - before[1]), (made, kept)
        waiting += tokens
    if waiting:
        yield Arrival(waiting, drafted=drafted)


def rounds_by_counts(tokens: Sequence[ServedToken], counts: Speculation) -> tuple[list[Arrival], str]:
    """Split a whole text by vLLM's counts per verified draft. Returns the rounds, and a warning if some positions are unknown.

    The first token comes from the prefill. The counts leave out rounds without a draft. Raises BadInput if the counts do not fit
    the text.
    """
    accepted, drafted = counts.per_step_accepted or (), counts.per_step_drafted or ()
    if len(accepted) != len(drafted):
        raise BadInput(f"per_step_accepted has {len(accepted)} entries and per_step_drafted {len(drafted)}; they must match.")
    spoken = sum(accepted) + len(accepted)
    plain = len(tokens) - 1 - spoken
    pairs = list(zip(accepted, drafted, strict=True))
    if not tokens or any(not kept <= made < MAX_NODES or kept > MAX_DEPTH for kept, made in pairs):
        raise BadInput("The per-step values are not counts of accepted and drafted tokens; is the response complete?")
    if accepted and -plain > accepted[-1] + 1:
        raise BadInput(f"The counts add up to {spoken + 1} tokens, but the text has {len(tokens)}; is the response complete?")
    rounds = [Arrival([token], drafted=0) for token in tokens[: 1 + max(0, plain)]]
    rest = iter(tokens[len(rounds) :])
    for kept, made in pairs:
        if part := list(islice(rest, kept + 1)):
            rounds.append(Arrival(part, drafted=made, accepted=kept))
    words = f"The server reports no position for rounds without a draft ({plain}); here they come before all others."
    return rounds, words if plain > 0 and accepted else ""


def add_rounds(steps: ChainSteps, rounds: Sequence[Arrival], reason: str) -> None:
    """Add these rounds as steps of a text that ended for ``reason``."""
    for arrival in rounds:
        steps.add(chain_round(arrival, reason if arrival is rounds[-1] and reason in CUTS else None))


def chain_round(arrival: Arrival, cut: str | None = None) -> ChainRound:
    """Return an arrival as a round: all tokens but the last were drafted, and all of them if the text ended inside a draft.

    Further drafted tokens that the server counts were rejected.
    """
    tokens = arrival.tokens
    ids, p = [token.token for token in tokens], [token.p for token in tokens]
    if len(ids) > arrival.accepted:
        cut = None  # the round is whole
    drafted = min(arrival.drafted or 0, MAX_NODES - 1)
    kept = ids if cut and drafted >= len(ids) else ids[:-1]  # the text may end inside the accepted tokens
    untold = max(0, drafted - len(kept))
    return ChainRound(
        kept,
        ids,
        Nanoseconds(host=arrival.gap_ns),
        p=p,
        bonus_p=p[-1],
        top=[token.top for token in tokens],
        cut=cut,
        untold=untold,
        notes=() if arrival.drafted is None else (ServedNote(None, untold, drafted).to_note(),),
        pieces=[token.piece for token in tokens],
    )


@dataclass(frozen=True)
class Imported:
    """Contents of a file: traces, names of fields that were not read, and notes for the user."""

    traces: tuple[Trace, ...]
    unread: tuple[str, ...]
    notes: tuple[str, ...]


def read_file(path: str | Path) -> Imported:
    """Read the responses in a file. Raises BadInput if there are none."""
    place = Path(path)
    try:
        with place.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadInput(f"{place.name} is not UTF-8 text.") from None
    except (OSError, ValueError) as problem:  # a path may contain a zero byte
        raise BadInput(f"{shown(str(place), 200)} cannot be read: {getattr(problem, 'strerror', None) or problem}.") from None
    if len(data) > MOST_BYTES:
        raise BadInput(f"{place.name} has more than {MOST_BYTES >> 20} MB; split it.")
    try:  # one object, a list of objects, or one object per line
        whole = strict_json(text)
        objects = whole if isinstance(whole, list) else [whole]
    except BadTrace:
        objects = []
        for number, line in enumerate(text.split("\n"), start=1):
            try:
                objects += [strict_json(line)] if line.strip() else []
            except BadTrace as problem:
                raise BadInput(f"{place.name}, line {number}: {problem}") from None
    if not objects or not all(isinstance(one, dict) for one in objects):
        raise BadInput(f"{place.name} must contain only JSON objects, one per response.")
    if "choices" not in objects[0]:
        raise BadInput(f"{place.name} is not a response with choices; it has {', '.join(sorted(objects[0]))[:200] or 'nothing'}.")
    traces, unread = [], set[str]()
    for fields in objects[:MOST_TRACES]:
        traces.append(_trace(converted(Response, fields)))
        unread |= fields.keys() - _RESPONSE
        unread |= {f"metrics.{key}" for key in fields.get("metrics") or () if key != "speculative_decoding"}
    notes = list(dict.fromkeys(word for trace in traces for word in trace.run.warnings if word != NO_TIMES))
    if len(objects) > MOST_TRACES:
        notes.append(f"Only the first {MOST_TRACES} of {len(objects)} responses were read.")
    # As many names as fit in a sentence.
    return Imported(tuple(traces), tuple(name[:60] for name in sorted(unread)[:30]), tuple(notes))


def _trace(response: Response) -> Trace:
    if len(choices := response.choices or ()) != 1:
        raise BadInput(f"The response has {len(choices)} choices; a trace holds one (n = 1).")
    reader, choice = TokenReader(doubtful=bool(response.timings and response.timings.draft_n)), choices[0]
    tokens = reader.read(choice)
    if not tokens or (len(tokens) == 1 and choice.logprobs is None):
        raise BadInput("The response contains no tokens; request logprobs (and, in vLLM, return_token_ids).")
    rounds, warning = [Arrival([token]) for token in tokens], NO_ROUNDS
    if response.speculation.per_step_accepted is not None:
        rounds, warning = rounds_by_counts(tokens, response.speculation)
    reason, prompt = REASONS.get(choice.finish_reason or "", "cancelled"), response.prompt
    length = len(prompt) or (response.usage and response.usage.prompt_tokens) or 1
    steps = ChainSteps(reader, prompt[-1] if prompt else 0, length)
    add_rounds(steps, rounds, reason)
    warnings = (NO_TIMES, *filter(None, (warning, reader.always_one)))
    target = response.model or "unknown"
    run = run_of(target, "imported", "Imported response", device="unknown", recorded_at="", warnings=warnings)
    return Trace(run, tuple(steps.steps), steps.end(reason))

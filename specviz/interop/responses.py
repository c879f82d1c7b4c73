"""Rounds of a run from a server's response: token ids, texts, probabilities and counts.

Such responses only count rejected drafts and do not name their tokens. The round then has its accepted tokens, and a note with
the number of further drafted tokens.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from specviz.errors import BadInput
from specviz.interop.chain import LARGEST_TOKEN, MOST_LETTERS, MOST_PROMPT, MOST_TOKENS, ChainRound, ChainSteps, NumberedTokens
from specviz.interop.fields import Fields
from specviz.trace.meaning import MAX_DEPTH
from specviz.trace.notes.models import ServedNote
from specviz.trace.schema import CUTS, MAX_NODES, MAX_TEXT, Nanoseconds

MOST_ANSWER_TEXT = 4_000_000
MOST_TOP = 64
UNPLACED = (
    "The server left out {count} rounds without a draft and did not say where they were; they stand before all others here."
)
TIMES = "Times are gaps between arrivals: drafting, the pass and the network together."
ALWAYS_ONE = "The server gave every token probability 1, as llama.cpp does while it speculates: p is left out."
REASONS = {"stop": "eos", "tool_calls": "eos", "length": "budget"}
"""Ends of a run by a server's ``finish_reason``."""
NUMBERED = 1 << 30
"""First number for tokens without an id, above the ids of any vocabulary."""
_NAMED_BY_ID = re.compile(r"token_id:(\d{1,10})")
_BROKEN = "\ufffd"


@dataclass(frozen=True)
class ServedToken:
    """An emitted token: its id or an assigned number, the text it adds, and the target's p and likeliest tokens there."""

    token: int
    piece: str
    p: float | None = None
    top: Sequence[tuple[int, float]] = ()


@dataclass(frozen=True)
class Arrival:
    """Tokens that arrived together, ``gap_ns`` after the last arrival. ``drafted`` is None if the server does not report it."""

    tokens: Sequence[ServedToken]
    gap_ns: int = 0
    drafted: int | None = None


class TokenReader(NumberedTokens):
    """Reader of one answer's tokens (``engine.interfaces.TokenText``). Tokens without an id are numbered as they appear.

    The text is the answer's content: each token adds its bytes or its name, as far as the content agrees. Content that no token
    accounts for becomes a token without a probability. With ``doubtful``, p = 1 counts only after another value of p was seen.
    """

    def __init__(self, doubtful: bool = False) -> None:
        self._labels: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._late = False
        self._doubtful = doubtful
        self.always_one = ""
        """Warning that p was left out, since it was 1 for every token; else empty."""

    def of(self, token: int) -> str:
        """Return the token's name, or its id in angle brackets."""
        return self._labels.get(token) or super().of(token)

    def number(self, label: str) -> int:
        """Return the number assigned to a token without an id."""
        number = self._numbers.setdefault(label, NUMBERED + len(self._numbers))
        self._labels[number] = label
        return number

    def _known(self, token: int | None, label: str) -> int:
        """Store the token's label; return its id, or a number for a token without an id."""
        if token is None:
            return self.number(label)
        if label:
            self._labels.setdefault(token, label)
        return token

    def read(self, choice: Fields) -> list[ServedToken]:
        """Read the tokens of one choice, or of one streamed part of it, from its log probabilities and token ids (OpenAI's
        fields, with vLLM's ``token_ids`` and llama.cpp's ``id``). Without either, its text is one token."""
        part = choice.inner("delta") or choice.inner("message")
        fields = ((part, "reasoning_content"), (part, "reasoning"), (choice, "text"), (part, "content"))
        texts = [place.text(name, MOST_ANSWER_TEXT) for place, name in fields]
        content = (texts[0] or texts[1] or "") + (texts[2] or texts[3] or "")
        rows = _rows(choice.inner("logprobs"))
        ids = choice.wholes("token_ids", MOST_TOKENS, LARGEST_TOKEN) or part.wholes("token_ids", MOST_TOKENS, LARGEST_TOKEN)
        if not rows and not ids:
            return self._unnamed(content)
        rows += [Fields({})] * (len(ids) - len(rows))
        if any(row.number("logprob") not in (None, 0.0) for row in rows):
            self._doubtful, self.always_one = False, ""
        entries = [self._entry(row, *ids[place : place + 1]) for place, row in enumerate(rows)]
        gaps, pieces, rest = [""] * len(rows), [entry.piece for entry in entries], ""
        if any(text is not None for text in texts):
            gaps, pieces, rest = self._aligned(pieces, content)
        elif choice.text("finish_reason") == "stop":
            pieces[-1] = ""  # without a text only names are known, and an end token's name is no text
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

    def _entry(self, row: Fields, token: int | None = None) -> ServedToken:
        """Return a row's token, with its text if it can be decoded without its neighbours; store its name."""
        token_id, label, name, raw = _named(row)
        if raw and raw != name.encode():
            name = self._utf8.decode(raw)
        else:
            self._utf8.reset()
        token = self._known(token_id if token is None else token, label)
        p = row.from_log("logprob")
        if self._doubtful and p == 1.0:
            p, self.always_one = None, ALWAYS_ONE
        top = self._top(row, token, label) if p is not None else ()
        return ServedToken(token, "" if _BROKEN in name else name, p, top)

    def _top(self, row: Fields, emitted: int, its_label: str) -> list[tuple[int, float]]:
        """Return the target's likeliest tokens at a row. Only the emitted token has its id in every engine."""
        found = []
        for other in row.objects("top_logprobs", MOST_TOP):
            token, label, *_ = _named(other)
            token = emitted if label and label == its_label else self._known(token, label)
            if (p := other.from_log("logprob")) is not None:
                found.append((token, p))
        return found

    def _aligned(self, texts: Sequence[str], whole: str) -> tuple[list[str], list[str], str]:
        """Split ``whole`` by token: unaccounted text before each, each token's own text, and the text after the last.

        A token whose text is not in ``whole`` (part of a character, an end token) adds the text before the next token found.
        """
        before, pieces, silent, rest = [""] * len(texts), [""] * len(texts), -1, whole
        for place, text in enumerate(texts):
            start = rest.find(text) if text else -1
            if start > 0 and (bare := text.lstrip(" ")) and rest.startswith(bare):
                start, text = 0, bare  # the first word without the space that its token begins with
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
        """Split the arrival into parts that fit in a step: one part, unless a whole text arrived at once."""
        parts: list[list[ServedToken]] = [[]]
        room = 0
        for one in arrival.tokens:
            letters = len(one.piece) + sum(
                len(self.of(token)) for token in (one.token, one.token, *(token for token, _ in one.top))
            )
            room -= letters
            if len(parts[-1]) == MAX_DEPTH or room < 0:
                parts.append([])
                room = MOST_LETTERS // 2 - letters
            parts[-1].append(one)
        if len(parts) < 3:
            return [arrival]
        return [Arrival(part, 0 if place else arrival.gap_ns) for place, part in enumerate(parts[1:])]


def _named(row: Fields) -> tuple[int | None, str, str, bytes]:
    """Return id, label, name and bytes of a row's token, as far as known. The name may be an id, an option of vLLM."""
    name, raw = row.text("token") or "", bytes(row.wholes("bytes", 4 * MAX_TEXT, 255))
    token = row.whole("id", LARGEST_TOKEN)
    if by_id := _NAMED_BY_ID.fullmatch(name):
        token, name = int(by_id[1]), ""
    label = name if name and _BROKEN not in name else raw.decode("utf-8", "backslashreplace") or name
    return token, label[:MAX_TEXT], name, raw


def _rows(logprobs: Fields) -> list[Fields]:
    """Return the rows of log probabilities, one per token, of a chat or a plain completion."""
    if "content" in logprobs:
        return logprobs.objects("content", MOST_TOKENS)
    names, values = logprobs.items("tokens", MOST_TOKENS), logprobs.items("token_logprobs", MOST_TOKENS)
    return [Fields({"token": name, "logprob": value}, "logprobs.") for name, value in zip(names, values, strict=False)]


Counted = tuple[Sequence[ServedToken], int | None, int]
"""Tokens, and the numbers of drafted (None if unreported) and accepted tokens up to them."""


def counted_rounds(heard: Iterable[Counted]) -> Iterator[Arrival]:
    """Yield rounds by the counts beside each token, as llama.cpp sends them with ``timings_per_token``. All tokens of a round
    carry the numbers of drafted and accepted tokens after that round. Each arrival without such counts is one round."""
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
        waiting = [*waiting, *tokens]
    if waiting:
        yield Arrival(waiting, drafted=drafted)


def rounds_by_counts(tokens: Sequence[ServedToken], accepted: Sequence[int], drafted: Sequence[int]) -> tuple[list[Arrival], str]:
    """Split a whole text by a server's counts per verified draft (vLLM's ``per_step_accepted``, ``per_step_drafted``).

    The first token comes from the pass that reads the prompt. Rounds without a draft are left out of the counts. Returns the
    rounds, and a warning if some rounds' positions are unknown. Raises BadInput if the counts do not fit the text.
    """
    if len(accepted) != len(drafted):
        raise BadInput(f"per_step_accepted has {len(accepted)} entries and per_step_drafted {len(drafted)}; they go together.")
    spoken = sum(accepted) + len(accepted)
    plain = len(tokens) - 1 - spoken
    wrong = any(not 0 <= kept <= made < MAX_NODES or kept > MAX_DEPTH for kept, made in zip(accepted, drafted, strict=True))
    if not tokens or wrong:
        raise BadInput("The counts a step are no counts of accepted and drafted tokens; is this a whole response?")
    if accepted and -plain > accepted[-1] + 1:
        raise BadInput(f"The counts say {spoken + 1} tokens and the text has {len(tokens)}; is this a whole response?")
    rounds = [Arrival([token], drafted=0) for token in tokens[: 1 + max(0, plain)]]
    rest = iter(tokens[len(rounds) :])
    for kept, made in zip(accepted, drafted, strict=True):
        if part := list(islice(rest, kept + 1)):
            rounds.append(Arrival(part, drafted=made))
    return rounds, UNPLACED.format(count=plain) if plain > 0 and accepted else ""


def counts_of(response: Fields) -> tuple[list[int], list[int]] | None:
    """Return each verified draft's numbers of accepted and of drafted tokens; None unless the response has vLLM's counts."""
    counts = response.inner("metrics").inner("speculative_decoding")
    if "per_step_accepted" not in counts:
        return None
    accepted, drafted = (counts.wholes(f"per_step_{name}", MOST_TOKENS, MAX_NODES) for name in ("accepted", "drafted"))
    return accepted, drafted


def prompt_of(response: Fields) -> tuple[int, ...]:
    """Return the prompt's token ids, empty if the server does not report them."""
    places = (response, *response.objects("choices", MOST_TOKENS))
    return next(filter(None, (tuple(place.wholes("prompt_token_ids", MOST_PROMPT, LARGEST_TOKEN)) for place in places)), ())


def add_rounds(steps: ChainSteps, rounds: Sequence[Arrival], reason: str) -> None:
    """Add these rounds as steps of a text that ended for ``reason``."""
    for number, arrival in enumerate(rounds, start=1):
        steps.add(chain_round(arrival, reason if number == len(rounds) and reason in CUTS else None))


def chain_round(arrival: Arrival, cut: str | None = None) -> ChainRound:
    """Return an arrival as a round: all its tokens but the last count as drafted, and more if the server reports more."""
    ids, p = [token.token for token in arrival.tokens], [token.p for token in arrival.tokens]
    drafted = min(arrival.drafted or 0, MAX_NODES - 1)
    kept = ids if cut and drafted >= len(ids) else ids[:-1]  # the end may lie inside the accepted tokens
    untold = max(0, drafted - len(kept))
    return ChainRound(
        kept,
        ids,
        Nanoseconds(host=arrival.gap_ns),
        p=p,
        bonus_p=p[-1],
        top=[token.top for token in arrival.tokens],
        cut=cut,
        untold=untold,
        notes=() if arrival.drafted is None else (ServedNote(None, untold, drafted).to_note(),),
        pieces=[token.piece for token in arrival.tokens],
    )

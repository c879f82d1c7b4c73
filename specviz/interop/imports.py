"""Files of other engines as traces.

======================================  ====================================================================================
file                                    fields and their use
======================================  ====================================================================================
response of vLLM or another server      ``choices[0]`` with ``logprobs`` or ``token_ids``: the text's tokens;
(JSON, of a chat or a completion)       ``metrics.speculative_decoding.per_step_accepted`` and ``per_step_drafted``: the rounds;
                                        ``usage.prompt_tokens``: the first position
dump of llama.cpp's fork tq3 (JSON      ``pos[i].tok``, ``p``: drafted token and the drafter's probability; ``acc``,
lines with ``n_draft`` and ``pos``)     ``n_accepted``: the verdict; one trace per ``seq``
records of aiperf (JSON lines with      ``metrics`` of each request, as a table: acceptance, tokens per second; no steps, so no
``metrics`` and ``metadata``)           trace
======================================  ====================================================================================

All other fields of a file are reported by name, so that nothing is dropped silently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specviz.errors import BadInput, BadTrace, shown
from specviz.interop.chain import LARGEST_TOKEN, MOST_PROMPT, MOST_TOKENS, ChainRound, ChainSteps, NumberedTokens, run_of
from specviz.interop.fields import Fields
from specviz.interop.responses import (
    REASONS,
    Arrival,
    TokenReader,
    add_rounds,
    counts_of,
    prompt_of,
    rounds_by_counts,
)
from specviz.trace.schema import MAX_NODES, Run, Trace
from specviz.trace.validate import strict_json

MOST_BYTES = 64 << 20
MOST_TRACES = 256
_RESPONSE = {"choices", "usage", "metrics", "model", "id", "object", "created", "prompt_token_ids"}
_DUMP = {"step", "seq", "n_draft", "n_accepted", "pos"}
_PLACE = {"i", "tok", "p", "logp", "acc"}
_UNKNOWN = LARGEST_TOKEN
"""Id for a token that a file does not name."""
NO_TIMES = "No times are in this file: every step shows 0."
NO_ROUNDS = "The response says nothing of its rounds: every token is a round of its own here."
NO_BONUS = "The dump names drafted tokens by id; the target's own token of each round is not in it."


@dataclass(frozen=True)
class Imported:
    """Contents of a file: traces, rows of a table if it has no steps, and the names of fields that were not read."""

    traces: tuple[Trace, ...] = ()
    rows: tuple[Mapping[str, float | str], ...] = ()
    unread: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read(path: str | Path) -> Imported:
    """Read everything in a file. Raises BadInput naming the expected formats."""
    place = Path(path)
    try:
        with place.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadInput(f"{place.name} is no UTF-8 text.") from None
    except (OSError, ValueError) as problem:  # a path may hold a zero byte
        raise BadInput(f"{shown(str(place), 200)} cannot be read: {getattr(problem, 'strerror', None) or problem}.") from None
    if len(data) > MOST_BYTES:
        raise BadInput(f"{place.name} has more than {MOST_BYTES >> 20} MB; split it.")
    objects = _objects(text, place.name)
    first = objects[0]
    if "choices" in first:
        return _responses(objects)
    if "n_draft" in first and "pos" in first:
        return _dump(objects, place.stem)
    if "metrics" in first and "metadata" in first:
        return _table(objects)
    raise BadInput(
        f"{place.name} is no response with choices, no dump of drafts with n_draft and pos, and no record with metrics and "
        f"metadata; it has {', '.join(sorted(first.found))[:200] or 'nothing'}."
    )


def _objects(text: str, name: str) -> list[Fields]:
    """Return the objects in a JSON text: one, a list of them, or one per line. Raises BadInput for anything else."""
    try:
        whole = strict_json(text)
        found = whole if isinstance(whole, list) else [whole]
    except BadTrace:
        found = []
        for number, line in enumerate(text.split("\n"), start=1):
            try:
                found += [strict_json(line)] if line.strip() else []
            except BadTrace as problem:
                raise BadInput(f"{name}, line {number}: {problem}") from None
    if not found or not all(isinstance(one, dict) for one in found):
        raise BadInput(f"{name} holds no JSON objects.")
    return [Fields(one) for one in found]


def _names(found: set[str]) -> tuple[str, ...]:
    """Return the first names of unread fields, as many as fit in a sentence."""
    return tuple(name[:60] for name in sorted(found)[:30])


def _beyond(count: int, what: str) -> tuple[str, ...]:
    return (f"Of {count} {what} the first {MOST_TRACES} were read.",) if count > MOST_TRACES else ()


def _responses(objects: Sequence[Fields]) -> Imported:
    traces, unread = [], set[str]()
    for response in objects[:MOST_TRACES]:
        unread |= response.found.keys() - _RESPONSE
        unread |= {f"metrics.{key}" for key in response.inner("metrics").found if key != "speculative_decoding"}
        traces.append(_response(response))
    notes = dict.fromkeys(word for trace in traces for word in trace.run.warnings if word != NO_TIMES)
    return Imported(tuple(traces), unread=_names(unread), notes=(*notes, *_beyond(len(objects), "responses")))


def _response(response: Fields) -> Trace:
    choices = response.objects("choices", MOST_TOKENS)
    if len(choices) != 1:
        raise BadInput(f"The response has {len(choices)} choices; a trace holds one (n = 1).")
    reader, choice = TokenReader(doubtful=bool(response.inner("timings").whole("draft_n"))), choices[0]
    tokens = reader.read(choice)
    if not tokens or (len(tokens) == 1 and "logprobs" not in choice):
        raise BadInput("The response names no tokens; ask for logprobs (and token ids, return_token_ids in vLLM).")
    rounds, warning = [Arrival([token]) for token in tokens], NO_ROUNDS
    if counts := counts_of(response):
        rounds, warning = rounds_by_counts(tokens, *counts)
    reason = REASONS.get(choice.text("finish_reason") or "", "cancelled")
    prompt, length = prompt_of(response), response.inner("usage").whole("prompt_tokens", MOST_PROMPT) or 1
    steps = ChainSteps(reader, prompt[-1] if prompt else 0, len(prompt) or length)
    add_rounds(steps, rounds, reason)
    words = filter(None, (warning, reader.always_one))
    run = _run(response.text("model", 1024) or "unknown", "Imported response", *words)
    return Trace(run, tuple(steps.steps), steps.end(reason))


def _dump(objects: Sequence[Fields], name: str) -> Imported:
    """Return traces from llama.cpp's dump of drafts: each draft's token ids, probabilities, and number of kept tokens."""
    unread = set[str]().union(*(one.found for one in objects)) - _DUMP
    sequences: dict[int, list[tuple[int, ChainRound]]] = {}
    for place, one in enumerate(objects, start=1):
        entries = one.objects("pos", MAX_NODES)
        unread |= {f"pos.{key}" for entry in entries for key in entry.found if key not in _PLACE}
        sequences.setdefault(one.whole("seq") or 0, []).append((one.whole("step") or 0, _drafted(one, entries, place)))
    traces = []
    for sequence, rounds in list(sequences.items())[:MOST_TRACES]:
        steps = ChainSteps(_DumpTokens(), _UNKNOWN, 1)
        for _, round_ in sorted(rounds, key=lambda round_: round_[0]):
            steps.add(round_)
        run = _run(f"{name}, sequence {sequence}", "Imported dump of drafts", NO_BONUS)
        traces.append(Trace(run, tuple(steps.steps), steps.end("cancelled")))
    return Imported(tuple(traces), unread=_names(unread), notes=_beyond(len(sequences), "sequences"))


def _drafted(round_: Fields, entries: Sequence[Fields], place: int) -> ChainRound:
    """Return a round of the dump, with an unknown token in place of the target's own token, which the dump omits."""
    ids = [token for entry in entries if (token := entry.whole("tok", _UNKNOWN - 1)) is not None]
    kept = round_.whole("n_accepted")
    if kept is None:
        kept = sum(entry.found.get("acc") in (1, True) for entry in entries)
    if kept > len(ids) or len(ids) < len(entries):
        raise BadInput(f"Round {place} of the dump keeps {kept} of {len(ids)} drafted tokens; is the file whole?")
    q = [entry.probability("p") if "p" in entry else entry.from_log("logp") for entry in entries]
    return ChainRound(ids, [*ids[:kept], _UNKNOWN], q=q)


class _DumpTokens(NumberedTokens):
    """Ids as texts, with a mark for tokens that the dump does not name."""

    def of(self, token: int) -> str:
        """Return the id in angle brackets, or the mark of an unknown token."""
        return "<not told>" if token == _UNKNOWN else super().of(token)


def _table(objects: Sequence[Fields]) -> Imported:
    """Return a table of aiperf's records, one row per request with its numeric metrics."""
    rows = []
    for one in objects:
        row: dict[str, float | str] = {}
        for name, entry in one.inner("metrics").found.items():
            value = entry.get("value") if isinstance(entry, Mapping) else entry
            if isinstance(value, int | float) and not isinstance(value, bool):
                row[name[:60]] = float(value)
        rows.append(row)
    unread = set[str]().union(*(one.found for one in objects)) - {"metrics", "metadata", "error"}
    return Imported(rows=tuple(rows), unread=_names(unread), notes=("Records of requests have no steps: this is a table.",))


def _run(target: str, title: str, *words: str) -> Run:
    return run_of(target, "imported", title, device="unknown", recorded_at="", warnings=(NO_TIMES, *words))

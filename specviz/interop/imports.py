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

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from specviz.errors import BadInput, BadTrace, shown
from specviz.interop.chain import ChainRound, ChainSteps, run_of
from specviz.interop.responses import (
    REASONS,
    Arrival,
    LogProbability,
    Response,
    TokenReader,
    add_rounds,
    converted,
    probability,
    rounds_by_counts,
)
from specviz.trace.schema import Count, Token, Trace
from specviz.trace.wire import strict_json

MOST_BYTES = 64 << 20
MOST_TRACES = 256
_RESPONSE = {"choices", "usage", "metrics", "model", "id", "object", "created", "prompt_token_ids"}
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
    first = objects[0].keys()
    if "choices" in first:
        return _responses(objects)
    if {"n_draft", "pos"} <= first:
        return _dump(objects, place.stem)
    if {"metrics", "metadata"} <= first:
        return _table(objects)
    raise BadInput(
        f"{place.name} is no response with choices, no dump of drafts with n_draft and pos, and no record with metrics and "
        f"metadata; it has {', '.join(sorted(first))[:200] or 'nothing'}."
    )


def _objects(text: str, name: str) -> list[dict[str, Any]]:
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
    return found


def _names(found: set[str]) -> tuple[str, ...]:
    """Return the first names of unread fields, as many as fit in a sentence."""
    return tuple(name[:60] for name in sorted(found)[:30])


def _beyond(count: int, what: str) -> tuple[str, ...]:
    return (f"Of {count} {what} the first {MOST_TRACES} were read.",) if count > MOST_TRACES else ()


def _responses(objects: Sequence[dict[str, Any]]) -> Imported:
    traces, unread = [], set[str]()
    for fields in objects[:MOST_TRACES]:
        response = converted(Response, fields)
        unread |= fields.keys() - _RESPONSE
        unread |= {f"metrics.{key}" for key in fields.get("metrics") or () if key != "speculative_decoding"}
        if len(choices := response.choices or ()) != 1:
            raise BadInput(f"The response has {len(choices)} choices; a trace holds one (n = 1).")
        reader, choice = TokenReader(doubtful=bool(response.timings and response.timings.draft_n)), choices[0]
        tokens = reader.read(choice)
        if not tokens or (len(tokens) == 1 and choice.logprobs is None):
            raise BadInput("The response names no tokens; ask for logprobs (and token ids, return_token_ids in vLLM).")
        rounds, warning = [Arrival([token]) for token in tokens], NO_ROUNDS
        if response.speculation.per_step_accepted is not None:
            rounds, warning = rounds_by_counts(tokens, response.speculation)
        reason, prompt = REASONS.get(choice.finish_reason or "", "cancelled"), response.prompt
        length = len(prompt) or (response.usage and response.usage.prompt_tokens) or 1
        steps = ChainSteps(reader, prompt[-1] if prompt else 0, length)
        add_rounds(steps, rounds, reason)
        words = filter(None, (warning, reader.always_one))
        traces.append(_trace(steps, reason, response.model or "unknown", "Imported response", *words))
    notes = dict.fromkeys(word for trace in traces for word in trace.run.warnings if word != NO_TIMES)
    return Imported(tuple(traces), unread=_names(unread), notes=(*notes, *_beyond(len(objects), "responses")))


class _Drafted(Struct):
    """A drafted token with the drafter's probability or its logarithm, and whether it was accepted."""

    tok: Token | None = None
    p: Annotated[float, Meta(ge=0, le=1.001)] | None = None
    logp: LogProbability = None
    acc: Any = None
    i: Any = None


class _Draft(Struct):
    """A round of llama.cpp's dump."""

    step: Count | None = None
    seq: Count | None = None
    n_draft: Any = None
    n_accepted: Count | None = None
    pos: tuple[_Drafted, ...] | None = None


def _dump(objects: Sequence[dict[str, Any]], name: str) -> Imported:
    """Return traces from llama.cpp's dump of drafts: each draft's token ids, probabilities, and number of kept tokens. The
    target's own token of each round, which the dump omits, is an unknown one."""
    unread, reader = set[str](), TokenReader()
    unknown = reader.number("<unnamed>")
    sequences = defaultdict[int, list[tuple[int, ChainRound]]](list)
    for place, fields in enumerate(objects, start=1):
        draft = converted(_Draft, fields)
        unread |= fields.keys() - {*_Draft.__struct_fields__}
        unread |= {f"pos.{key}" for entry in fields.get("pos") or () for key in entry.keys() - {*_Drafted.__struct_fields__}}
        entries = draft.pos or ()
        ids = [entry.tok for entry in entries if entry.tok is not None]
        kept = draft.n_accepted
        if kept is None:
            kept = sum(entry.acc in (1, True) for entry in entries)
        if kept > len(ids) or len(ids) < len(entries):
            raise BadInput(f"Round {place} of the dump keeps {kept} of {len(ids)} drafted tokens; is the file whole?")
        q = [probability(entry.logp) if entry.p is None else entry.p for entry in entries]
        sequences[draft.seq or 0].append((draft.step or 0, ChainRound(ids, [*ids[:kept], unknown], q=q)))
    traces = []
    for sequence, rounds in list(sequences.items())[:MOST_TRACES]:
        steps = ChainSteps(reader, unknown, 1)
        for _, round_ in sorted(rounds, key=itemgetter(0)):
            steps.add(round_)
        traces.append(_trace(steps, "cancelled", f"{name}, sequence {sequence}", "Imported dump of drafts", NO_BONUS))
    return Imported(tuple(traces), unread=_names(unread), notes=_beyond(len(sequences), "sequences"))


def _table(objects: Sequence[dict[str, Any]]) -> Imported:
    """Return a table of aiperf's records, one row per request with its numeric metrics."""
    rows, unread = [], set[str]()
    for one in objects:
        row: dict[str, float | str] = {}
        for name, entry in converted(dict[str, Any], one.get("metrics") or {}).items():
            value = entry.get("value") if isinstance(entry, dict) else entry
            if isinstance(value, int | float) and not isinstance(value, bool):
                row[name[:60]] = float(value)
        rows.append(row)
        unread |= one.keys() - {"metrics", "metadata", "error"}
    return Imported(rows=tuple(rows), unread=_names(unread), notes=("Records of requests have no steps: this is a table.",))


def _trace(steps: ChainSteps, reason: str, target: str, title: str, *words: str) -> Trace:
    run = run_of(target, "imported", title, device="unknown", recorded_at="", warnings=(NO_TIMES, *words))
    return Trace(run, tuple(steps.steps), steps.end(reason))

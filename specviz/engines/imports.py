"""Files that other engines write, as traces.

======================================  ====================================================================================
file                                    what becomes of it
======================================  ====================================================================================
response of vLLM or another server      ``choices[0]`` with ``logprobs`` or ``token_ids``: the text's tokens;
(JSON, of a chat or a completion)       ``metrics.speculative_decoding.per_step_accepted`` and ``per_step_drafted``: the rounds;
                                        ``usage.prompt_tokens``: the first position
dump of llama.cpp's fork tq3 (JSON      ``pos[i].tok``, ``p``: drafted token and the drafter's probability; ``acc``,
lines with ``n_draft`` and ``pos``)     ``n_accepted``: the verdict; one trace for each ``seq``
records of aiperf (JSON lines with      ``metrics`` of a request, a table of all of them: acceptance, tokens a second; no steps,
``metrics`` and ``metadata``)           so no trace
======================================  ====================================================================================

What a file holds beyond that is named, so that nothing is dropped in silence.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specviz.engines.chain import ChainRound, ChainSteps, NumberedTokens
from specviz.engines.responses import Arrival, ToldTexts, chain_round, rounds_by_counts, told_tokens
from specviz.errors import BadInput
from specviz.trace.metrics import summarise
from specviz.trace.schema import MAX_STEPS, End, Run, Sampling, Trace

MOST_BYTES = 64 << 20
MOST_TRACES = 256
MOST_PROMPT = 1_000_000
_RESPONSE = {"choices", "usage", "metrics", "model", "id", "object", "created", "prompt_token_ids"}
_DUMP = {"step", "seq", "n_draft", "n_accepted", "pos"}
_PLACE = {"i", "tok", "p", "logp", "acc"}


@dataclass(frozen=True)
class Imported:
    """What a file gave: traces, rows of a table where it has no steps, and the names of fields that were not read."""

    traces: tuple[Trace, ...] = ()
    rows: tuple[Mapping[str, float | str], ...] = ()
    unread: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())


def read(path: str | Path) -> Imported:
    """Everything in a file. Raises BadInput that says what it is not."""
    place = Path(path)
    try:
        if place.stat().st_size > MOST_BYTES:
            raise BadInput(f"{place.name} has more than {MOST_BYTES >> 20} MB; split it.")
        text = place.read_text(encoding="utf-8")
    except OSError as problem:
        raise BadInput(f"{place} cannot be read: {problem.strerror or problem}.") from None
    except UnicodeDecodeError:
        raise BadInput(f"{place.name} is no UTF-8 text.") from None
    objects = list(_objects(text, place.name))
    first = objects[0]
    if "choices" in first:
        return _responses(objects)
    if "n_draft" in first and "pos" in first:
        return _dump(objects, place.stem)
    if "metrics" in first and "metadata" in first:
        return _table(objects)
    raise BadInput(
        f"{place.name} is no response with choices, no dump of drafts with n_draft and pos, and no record with metrics and "
        f"metadata; it has {', '.join(sorted(map(str, first)))[:200] or 'nothing'}."
    )


def _objects(text: str, name: str) -> Iterator[dict[str, Any]]:
    """One JSON object, a list of them, or one a line."""
    try:
        whole = json.loads(text)
        found = whole if isinstance(whole, list) else [whole]
    except ValueError:
        found = []
        for number, line in enumerate(text.splitlines(), start=1):
            if line.strip():
                try:
                    found.append(json.loads(line))
                except ValueError:
                    raise BadInput(f"{name}, line {number}: no JSON.") from None
    if not found or not all(isinstance(one, dict) for one in found):
        raise BadInput(f"{name} holds no JSON objects.")
    yield from found


def _responses(objects: Sequence[dict[str, Any]]) -> Imported:
    traces, unread, notes = [], set[str](), []
    for response in objects[:MOST_TRACES]:
        unread |= {key for key in response if key not in _RESPONSE}
        unread |= {f"metrics.{key}" for key in response.get("metrics") or () if key != "speculative_decoding"}
        trace, warning = _response(response)
        traces.append(trace)
        notes += [warning] if warning else []
    return Imported(tuple(traces), unread=tuple(sorted(unread)), notes=tuple(dict.fromkeys(notes)))


def _response(response: Mapping[str, Any]) -> tuple[Trace, str]:
    texts = ToldTexts()
    choices = response.get("choices") or [{}]
    if len(choices) != 1:
        raise BadInput(f"The response has {len(choices)} choices; a trace holds one (n = 1).")
    tokens = told_tokens(choices[0], texts)
    if not tokens or (len(tokens) == 1 and not choices[0].get("logprobs")):
        raise BadInput("The response names no tokens; ask for logprobs (and token ids, return_token_ids in vLLM).")
    counts = (response.get("metrics") or {}).get("speculative_decoding") or {}
    warning = ""
    if counts.get("per_step_accepted") is not None:
        rounds, warning = rounds_by_counts(tokens, counts["per_step_accepted"], counts.get("per_step_drafted") or ())
    else:
        warning = "The response says nothing of its rounds: every token is a round of its own here."
        rounds = [Arrival([token]) for token in tokens]
    reason = {"stop": "eos", "length": "budget"}.get(str(choices[0].get("finish_reason")), "cancelled")
    prompt_ids = response.get("prompt_token_ids") or choices[0].get("prompt_token_ids")
    prompt = (
        [int(token) for token in prompt_ids] if prompt_ids else [0] * int((response.get("usage") or {}).get("prompt_tokens", 1))
    )
    steps = ChainSteps(texts, prompt[-100_000:] or [0])
    for place, arrival in enumerate(rounds[:MAX_STEPS]):
        cut = reason if place == len(rounds) - 1 and reason in ("eos", "budget") else None
        steps.add(chain_round(arrival, cut))
    run = _run(str(response.get("model", "unknown")), "Imported response", warning)
    return _closed(run, steps, reason), warning


def _dump(objects: Sequence[dict[str, Any]], name: str) -> Imported:
    """llama.cpp's dump of drafts: token ids and probabilities of each draft, and how many were kept."""
    unread = {key for one in objects for key in one if key not in _DUMP}
    unread |= {f"pos.{key}" for one in objects for entry in one.get("pos") or () for key in entry if key not in _PLACE}
    by_sequence: dict[Any, list[dict[str, Any]]] = {}
    for one in objects:
        by_sequence.setdefault(one.get("seq", 0), []).append(one)
    traces = []
    for sequence, rounds in list(by_sequence.items())[:MOST_TRACES]:
        steps = ChainSteps(_DumpTokens(), [_UNKNOWN])
        for place, told in enumerate(sorted(rounds, key=lambda one: int(one.get("step", 0)))[:MAX_STEPS]):
            steps.add(_drafted(told, place))
        text = "The dump names drafted tokens by id; the target's own token of each round is not in it."
        traces.append(_closed(_run(f"{name}, sequence {sequence}", "Imported dump of drafts", text), steps, "cancelled"))
    return Imported(tuple(traces), unread=tuple(sorted(unread)))


def _drafted(told: Mapping[str, Any], place: int) -> ChainRound:
    """A round of the dump. The token that the target added is not in the dump: it is the draft's, if all were kept, or none."""
    entries = told.get("pos") or []
    ids = [_token(entry.get("tok")) for entry in entries]
    kept = int(told.get("n_accepted", sum(bool(entry.get("acc")) for entry in entries)))
    if not 0 <= kept <= len(ids):
        raise BadInput(f"Round {place + 1} of the dump keeps {kept} of {len(ids)} drafted tokens; is the file whole?")
    q = [_share(entry) for entry in entries]
    return ChainRound(ids, [*ids[:kept], _UNKNOWN], q=q, rule="greedy")


_UNKNOWN = 2**31 - 1
"""Stands for a token that a file does not name."""


class _DumpTokens(NumberedTokens):
    """Ids as texts; tokens that the dump does not name are said to be so."""

    def of(self, token: int) -> str:
        """The id in angle brackets, or that it is not told."""
        return "<not told>" if token == _UNKNOWN else super().of(token)


def _token(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _UNKNOWN:
        raise BadInput(f"A drafted token of the dump is {str(value)[:60]!r}; a token id is a whole number.")
    return value


def _share(entry: Mapping[str, Any]) -> float | None:
    if entry.get("p") is not None:
        return min(1.0, max(0.0, float(entry["p"])))
    return None if entry.get("logp") is None else math.exp(min(0.0, float(entry["logp"])))


def _table(objects: Sequence[dict[str, Any]]) -> Imported:
    """aiperf's records, a row a request: every metric with a number."""
    rows = []
    for one in objects:
        row: dict[str, float | str] = {}
        for name, entry in (one.get("metrics") or {}).items():
            value = entry.get("value") if isinstance(entry, Mapping) else entry
            if isinstance(value, int | float) and not isinstance(value, bool):
                row[str(name)] = float(value)
        rows.append(row)
    unread = {key for one in objects for key in one if key not in ("metrics", "metadata", "error")}
    return Imported(
        rows=tuple(rows), unread=tuple(sorted(unread)), notes=("Records of requests have no steps: this is a table.",)
    )


def _run(target: str, title: str, warning: str) -> Run:
    return Run(
        modality="text", target=target[:1024], method="imported", title=title, exactness="exact", parameters={},
        sampling=Sampling(), device="unknown", dtype="", tier="served", prompt="", prompt_pieces=(), max_new_tokens=0,
        warnings=("No times are in this file: every step shows 0.", *((warning,) if warning else ())),
    )  # fmt: skip


def _closed(run: Run, steps: ChainSteps, reason: str) -> Trace:
    ids = steps.output
    end = End(reason, tuple(ids), steps.text_of(ids), 0, summarise(steps.steps, reason, 0))
    return Trace(run, tuple(steps.steps), end)

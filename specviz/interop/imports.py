"""Responses of vLLM or another server in a file (JSON, of chats or completions) as traces.

``choices[0]`` with ``logprobs`` or ``token_ids`` has the text's tokens, ``metrics.speculative_decoding.per_step_accepted`` and
``per_step_drafted`` the rounds, and ``usage.prompt_tokens`` the first position. All other fields of a file are reported by name,
so that nothing is dropped silently.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specviz.errors import BadInput, BadTrace, shown
from specviz.interop.chain import ChainSteps, run_of
from specviz.interop.responses import REASONS, Arrival, Response, TokenReader, add_rounds, converted, rounds_by_counts
from specviz.trace.schema import Trace
from specviz.trace.wire import strict_json

MOST_BYTES = 64 << 20
MOST_TRACES = 256
_RESPONSE = {"choices", "usage", "metrics", "model", "id", "object", "created", "prompt_token_ids"}
NO_TIMES = "No times are in this file: every step shows 0."
NO_ROUNDS = "The response says nothing of its rounds: every token is a round of its own here."


@dataclass(frozen=True)
class Imported:
    """Contents of a file: traces, the names of fields that were not read, and notes for the user."""

    traces: tuple[Trace, ...]
    unread: tuple[str, ...]
    notes: tuple[str, ...]


def read(path: str | Path) -> Imported:
    """Read all responses in a file. Raises BadInput for a file that holds none."""
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
    if "choices" not in objects[0]:
        raise BadInput(f"{place.name} is no response with choices; it has {', '.join(sorted(objects[0]))[:200] or 'nothing'}.")
    traces, unread = [], set[str]()
    for fields in objects[:MOST_TRACES]:
        traces.append(_trace(converted(Response, fields)))
        unread |= fields.keys() - _RESPONSE
        unread |= {f"metrics.{key}" for key in fields.get("metrics") or () if key != "speculative_decoding"}
    notes = list(dict.fromkeys(word for trace in traces for word in trace.run.warnings if word != NO_TIMES))
    if len(objects) > MOST_TRACES:
        notes.append(f"Of {len(objects)} responses the first {MOST_TRACES} were read.")
    # As many names of unread fields as fit in a sentence.
    return Imported(tuple(traces), tuple(name[:60] for name in sorted(unread)[:30]), tuple(notes))


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


def _trace(response: Response) -> Trace:
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
    warnings = (NO_TIMES, *filter(None, (warning, reader.always_one)))
    target = response.model or "unknown"
    run = run_of(target, "imported", "Imported response", device="unknown", recorded_at="", warnings=warnings)
    return Trace(run, tuple(steps.steps), steps.end(reason))

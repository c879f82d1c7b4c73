"""Wire format: records to lines of a trace file and back, in short arrays with five significant digits."""

from __future__ import annotations

import json
from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from typing import Any, TextIO

from specviz.errors import BadTrace
from specviz.trace.schema import (
    PHASES,
    SCHEMA_VERSION,
    Baseline,
    Bonus,
    Candidate,
    Codebook,
    Divergence,
    End,
    Nanoseconds,
    Node,
    Note,
    Run,
    Sampling,
    Step,
    TargetRow,
)

Record = Run | Step | End

MAX_LINE = 1 << 20
"""Most bytes of one line, its end not counted."""
MAX_ENDS = 2
"""End lines of a file: a run writes one when it is over, and a second one once its baseline has been timed."""
_PACKED = 2048
"""Characters of JSON from which a note that was read stays JSON."""

_RUN_PLAIN = (
    "modality", "target", "method", "title", "exactness", "device", "dtype", "tier", "prompt", "max_new_tokens",
    "bound", "draft", "chat_template", "tokenizer_hash", "machine", "recorded_at",
)  # fmt: skip
_ATOMS = frozenset((str, int, bool, type(None)))
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def rounded(value: Any) -> Any:
    """Plain JSON with every float cut to five significant digits, mappings as dicts and sequences as lists."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {str(key): entry if type(entry) in _ATOMS else rounded(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [entry if type(entry) in _ATOMS else rounded(entry) for entry in value]
    return value


def line(record: Record, seq: int) -> str:
    """``record`` as line ``seq`` (from 0) of its file, without line end. Raises BadTrace on what JSON cannot hold."""
    kind, body = _KINDS[type(record)]
    try:
        text = _encode({"v": SCHEMA_VERSION, "seq": seq, "kind": kind, **body(record)})
    except (ValueError, TypeError, RecursionError, OverflowError) as fault:
        raise BadTrace(f"A {kind} record cannot be written: {_cause(record, fault)}.") from fault
    if len(text) * 4 > MAX_LINE or not text.isascii():
        text = _bounded(text, kind)
    return text


def _cause(record: Record, fault: Exception) -> str:
    if isinstance(fault, ValueError) and "JSON compliant" in str(fault):
        where = f" in step {record.index}" if isinstance(record, Step) else ""
        return f"a number{where} is NaN or infinite, as when a model's arithmetic overflows; try dtype float32"
    return str(fault) or type(fault).__name__


def _bounded(text: str, kind: str) -> str:
    """Refuse a line that no reader would take; half characters, which UTF-8 cannot hold, become U+FFFD."""
    data = text.encode("utf-8", "surrogatepass")
    if len(data) > MAX_LINE:
        raise BadTrace(f"A {kind} record of {len(data)} bytes is longer than the {MAX_LINE} that a line may have.")
    return data.decode("utf-8", "replace")


def _trimmed(values: list[Any], least: int) -> list[Any]:
    while len(values) > least and values[-1] is None:
        values.pop()
    return values


def _short(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.5g}")


def _run(run: Run) -> dict[str, Any]:
    sampling = run.sampling
    return {
        **{name: getattr(run, name) for name in _RUN_PLAIN},
        "parameters": rounded(run.parameters),
        "sampling": {
            "temperature": _short(sampling.temperature),
            "top_k": sampling.top_k,
            "top_p": _short(sampling.top_p),
            "seed": sampling.seed,
            **({"generation": sampling.generation} if sampling.generation else {}),
        },
        "prompt_pieces": run.prompt_pieces,
        "libraries": dict(run.libraries),
        "warnings": run.warnings,
        **_image_fields(run),
    }


def _image_fields(run: Run) -> dict[str, Any]:
    """The grid, the guidance, the map of the codes; those that are None are left out."""
    book = run.codebook
    fields: dict[str, Any] = {"grid": run.grid, "codebook": None, "guidance": _short(run.guidance)}
    if book is not None:
        patches = {"patches": book.patches} if book.patches else {}
        fields["codebook"] = {"size": book.size, "places": book.places, "colours": book.colours, **patches}
    return {name: value for name, value in fields.items() if value is not None}


def _node(node: Node) -> list[Any]:
    values = [
        node.parent, node.token, node.text, _short(node.q), _short(node.p), node.status, _short(node.threshold),
        _short(node.draw), node.grid,
    ]  # fmt: skip
    return _trimmed(values, 6)


def _bonus(bonus: Bonus | None) -> list[Any] | None:
    if bonus is None:
        return None
    return _trimmed([bonus.parent, bonus.token, bonus.text, _short(bonus.p), bonus.source, bonus.grid], 5)


def _step(step: Step) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "index": step.index,
        "position": step.position,
        "nodes": [_node(node) for node in step.nodes],
        "path": step.path,
        "bonus": _bonus(step.bonus),
        "emitted": step.emitted,
        "pieces": step.pieces,
        "rule": step.rule,
        "time": [*(getattr(step.time, phase) for phase in PHASES), *([step.time.aside] if step.time.aside else [])],
        "draft_calls": step.draft_calls,
        "verified": step.verified,
        "padded": step.padded,
    }
    if step.cut is not None:
        fields["cut"] = step.cut
    if step.passes != 1:
        fields["passes"] = step.passes
    if step.certain:
        fields["certain"] = True
    if step.rows:
        fields["rows"] = [
            [row.node, [[candidate.token, candidate.text, _short(candidate.p)] for candidate in row.top]] for row in step.rows
        ]
    if step.notes:
        fields["notes"] = [{"type": note.type, **rounded(note.data)} for note in step.notes]
    return fields


def _end(end: End) -> dict[str, Any]:
    return {
        "reason": end.reason,
        "message": end.message,
        "output_ids": end.output_ids,
        "text": end.text,
        "prefill_ns": end.prefill_ns,
        "metrics": rounded(end.metrics),
        "baseline": None if end.baseline is None else _baseline(end.baseline),
        **({"picture": end.picture} if end.picture else {}),
        **({"captures": end.captures, "capture_ns": end.capture_ns} if end.captures else {}),
        **({"busy": end.busy} if end.busy else {}),
    }


def _baseline(baseline: Baseline) -> dict[str, Any]:
    divergence = baseline.first_divergence
    return {
        "token_ns": baseline.token_ns,
        "prefill_ns": baseline.prefill_ns,
        "equal": baseline.equal,
        "first_divergence": None if divergence is None else {"position": divergence.position, "gap": _short(divergence.gap)},
        **({"pieces": baseline.pieces} if baseline.pieces else {}),
        **({"picture": baseline.picture} if baseline.picture else {}),
        **({"capture_ns": baseline.capture_ns} if baseline.capture_ns else {}),
    }


_KINDS: dict[type, tuple[str, Callable[[Any], dict[str, Any]]]] = {
    Run: ("run", _run),
    Step: ("step", _step),
    End: ("end", _end),
}


class TraceWriter:
    """Makes each line as its record arrives, so that a file and a live screen share the very same lines.

    ``out`` is an open text file (UTF-8) that gets every line at once, flushed, so a run that dies leaves what it did.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out
        self._before: type | None = None
        self._ends = 0
        self.count = 0

    def add(self, record: Record) -> str:
        """The record's line, without its line end. Raises BadTrace when it comes out of order: run, steps, end(s)."""
        kind = type(record)
        fits = kind is Run if self._before is None else kind is End or (kind is Step and self._before is not End)
        if not fits or (kind is End and self._ends == MAX_ENDS):
            raise BadTrace("A trace is one run record, then steps, then an end or two; this record is out of that order.")
        text = line(record, self.count)
        if self._out is not None:
            self._out.write(text + "\n")
            self._out.flush()
        self._before = kind
        self._ends += kind is End
        self.count += 1
        return text


class _PackedNote(Mapping[str, Any]):
    """A note's data as JSON text, read anew for each part that is asked for: Python objects take twenty times the memory."""

    __slots__ = ("_json",)

    def __init__(self, text: str) -> None:
        self._json = text.encode("utf-8")

    def _read(self) -> dict[str, Any]:
        fields: dict[str, Any] = json.loads(self._json)
        return fields

    def __getitem__(self, name: str) -> Any:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def items(self) -> ItemsView[str, Any]:
        """All of it, read once."""
        return self._read().items()

    def values(self) -> ValuesView[Any]:
        """The values, read once."""
        return self._read().values()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and self._read() == dict(other.items())

    def __repr__(self) -> str:
        return repr(self._read())


def decoded(fields: Mapping[str, Any]) -> Record:
    """A line's JSON object as its record. The object has passed the schema, so every field has its type."""
    readers: dict[str, Callable[[Mapping[str, Any]], Record]] = {"run": _as_run, "step": _as_step, "end": _as_end}
    return readers[fields["kind"]](fields)


def _integers(values: list[Any]) -> tuple[int, ...]:
    return tuple(map(int, values))  # the schema lets 3.0 through, which JSON does not tell apart from 3


def _grid(values: list[Any] | None) -> tuple[int, int] | None:
    return None if values is None else (int(values[0]), int(values[1]))


def _as_run(fields: Mapping[str, Any]) -> Run:
    sampling = fields["sampling"]
    plain = {name: fields[name] for name in _RUN_PLAIN if name in fields}
    return Run(
        **{**plain, "max_new_tokens": int(fields["max_new_tokens"])},
        parameters=fields["parameters"],
        sampling=Sampling(
            sampling["temperature"],
            int(sampling["top_k"]),
            sampling["top_p"],
            int(sampling["seed"]),
            int(sampling.get("generation", 0)),
        ),
        prompt_pieces=tuple(fields["prompt_pieces"]),
        libraries=fields.get("libraries", {}),
        warnings=tuple(fields.get("warnings", ())),
        **_as_image_fields(fields),
    )


def _as_image_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    book = fields.get("codebook")
    return {
        "grid": _grid(fields.get("grid")),
        "guidance": fields.get("guidance"),
        "codebook": None if book is None else _as_codebook(book),
    }


def _as_codebook(book: Mapping[str, Any]) -> Codebook:
    return Codebook(int(book["size"]), book["places"], book["colours"], book.get("patches", ""))


def _as_node(values: list[Any]) -> Node:
    parent, token, text, q, p, status, threshold, draw, grid = values + [None] * (9 - len(values))
    return Node(int(parent), int(token), text, q, p, status, threshold, draw, _grid(grid))


def _as_bonus(values: list[Any] | None) -> Bonus | None:
    if values is None:
        return None
    parent, token, text, p, source, grid = values + [None] * (6 - len(values))
    return Bonus(int(parent), int(token), text, p, source, _grid(grid))


def _as_step(fields: Mapping[str, Any]) -> Step:
    return Step(
        index=int(fields["index"]),
        position=int(fields["position"]),
        nodes=tuple(map(_as_node, fields["nodes"])),
        path=_integers(fields["path"]),
        bonus=_as_bonus(fields.get("bonus")),
        emitted=_integers(fields["emitted"]),
        pieces=tuple(fields["pieces"]),
        rule=fields["rule"],
        time=Nanoseconds(*_integers(fields["time"])),
        cut=fields.get("cut"),
        draft_calls=int(fields.get("draft_calls", 0)),
        verified=int(fields.get("verified", 0)),
        padded=int(fields.get("padded", 1)),
        rows=tuple(
            TargetRow(int(node), tuple(Candidate(int(token), text, p) for token, text, p in top))
            for node, top in fields.get("rows", ())
        ),
        notes=tuple(_as_note(note) for note in fields.get("notes", ())),
        passes=int(fields.get("passes", 1)),
        certain=bool(fields.get("certain", False)),
    )


def _as_note(fields: Mapping[str, Any]) -> Note:
    """The note in a line that has passed the checks, its data as it is where it is small."""
    data = {name: value for name, value in fields.items() if name != "type"}
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return Note(fields["type"], data if len(text) < _PACKED else _PackedNote(text))


def _as_end(fields: Mapping[str, Any]) -> End:
    baseline = fields.get("baseline")
    return End(
        reason=fields["reason"],
        output_ids=_integers(fields["output_ids"]),
        text=fields["text"],
        prefill_ns=int(fields["prefill_ns"]),
        metrics=fields.get("metrics", {}),
        message=fields.get("message", ""),
        baseline=None if baseline is None else _as_baseline(baseline),
        picture=fields.get("picture", ""),
        captures=int(fields.get("captures", 0)),
        capture_ns=int(fields.get("capture_ns", 0)),
        busy=fields.get("busy", ""),
    )


def _as_baseline(fields: Mapping[str, Any]) -> Baseline:
    divergence = fields.get("first_divergence")
    return Baseline(
        token_ns=_integers(fields["token_ns"]),
        prefill_ns=int(fields["prefill_ns"]),
        equal=fields["equal"],
        first_divergence=None if divergence is None else Divergence(int(divergence["position"]), divergence.get("gap")),
        pieces=tuple(fields.get("pieces", ())),
        picture=fields.get("picture", ""),
        capture_ns=int(fields.get("capture_ns", 0)),
    )

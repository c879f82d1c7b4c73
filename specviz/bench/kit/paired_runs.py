"""Paired runs: many methods on many prompts, each beside the target's own run; the samples that a suite makes rows of.

Beside time goes memory, what a method holds besides its target: weights, caches, stores, and whatever its resources refer to.
"""

from __future__ import annotations

import gc
import statistics
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from specviz.bench.kit.measure import Bencher, PictureQuestion, TimedRun
from specviz.errors import SpecvizError
from specviz.runner import Prepared

BETWEEN = 2
"""So many methods run between two of the target's own runs, which bound the drift of the machine."""
_NOT_OURS = (type, ModuleType, BuiltinFunctionType, torch.device, torch.dtype, type(threading.Lock()), threading.Event)
"""Types of objects that no method holds for itself: what they refer to is not followed."""


@dataclass(frozen=True)
class Arm:
    """A method with its parameters, under a name of its own."""

    label: str
    method: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """One prompt decoded by one arm. ``gain`` is the target's own seconds a token over the arm's; ``same`` says that both
    wrote the same text; ``lengths`` are the accepted drafts of each step that was not cut; ``emitted``, ``steps``, target
    ``passes`` and drafter ``forwards`` count over those steps too, and ``offered`` are the drafted nodes of each; ``repeated``
    is the share of 4-grams the text had written before.
    """

    kind: str
    gain: float
    same: bool
    lengths: tuple[int, ...]
    emitted: int
    passes: int
    forwards: int
    verified: int
    repeated: float
    offered: tuple[int, ...] = ()

    @property
    def steps(self) -> int:
        return len(self.lengths)

    @property
    def tau(self) -> float:
        """Tokens a target pass, bonus included; 1 when every step was cut."""
        return self.emitted / self.passes if self.passes else 1.0


@dataclass
class Samples:
    """What was gathered, by arm; ``missing`` says why an arm could not run, ``held_bytes`` how many bytes of weights, caches and
    stores it had beside the target after its first run."""

    by_arm: dict[str, list[Sample]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    held_bytes: dict[str, int] = field(default_factory=dict)

    def of(self, label: str) -> list[Sample]:
        """An arm's samples, none when it could not run."""
        return self.by_arm.get(label, [])

    def mean(self, label: str, of: Callable[[Sample], float]) -> float | None:
        """Mean over the kinds of the mean over each kind's prompts."""
        kinds = self.by_kind(label, of)
        return statistics.mean(kinds.values()) if kinds else None

    def by_kind(self, label: str, of: Callable[[Sample], float]) -> dict[str, float]:
        """The mean over each kind's prompts."""
        by_kind: dict[str, list[float]] = {}
        for sample in self.of(label):
            by_kind.setdefault(sample.kind, []).append(of(sample))
        return {kind: statistics.mean(values) for kind, values in by_kind.items()}

    def total(self, label: str, of: Callable[[Sample], float]) -> float:
        """Sum over all prompts."""
        return sum(of(sample) for sample in self.of(label))

    def pairs(self, first: str, second: str, of: Callable[[Sample], float]) -> list[tuple[float, float]]:
        """The two arms' numbers prompt by prompt."""
        return [(of(ours), of(theirs)) for ours, theirs in zip(self.of(first), self.of(second), strict=False)]

    def by_depth(self, label: str) -> list[float]:
        """Acceptance by depth for arms that draft chains: of the steps that reached depth d - 1 and offered a node at d the
        share that went on. Where the last share is 0, nothing was accepted that deep, and what lies deeper was never judged.
        """
        return [statistics.mean(went_on) for went_on in self._went_on(label)]

    def reaching(self, label: str) -> list[int]:
        """How many steps each share of :meth:`by_depth` rests on."""
        return [len(went_on) for went_on in self._went_on(label)]

    def _went_on(self, label: str) -> list[list[bool]]:
        """By depth, of the steps that got to it and offered a node there, whether each went on."""
        steps = [both for sample in self.of(label) for both in zip(sample.lengths, sample.offered, strict=True)]
        depths = range(1, 2 + max((length for length, _ in steps), default=0))
        outcomes = [
            [length >= depth for length, offered in steps if offered >= depth and length >= depth - 1] for depth in depths
        ]
        return [went_on for went_on in outcomes if went_on]


def gather(
    bench: Bencher,
    arms: Sequence[Arm],
    prompts: Mapping[str, Sequence[str | PictureQuestion]],
    temperature: float,
    say: Callable[[str], None] = lambda line: None,
    between: int = BETWEEN,
) -> Samples:
    """Every arm on every prompt, ``between`` of them from one run of the target alone to the next. An arm that cannot run
    here is left out, and why is told."""
    samples = Samples()
    first = next(iter(prompts.values()))[0]
    ready = [arm for arm in arms if _runs(bench, arm, first, temperature, samples)]
    for kind, texts in prompts.items():
        for number, text in enumerate(texts, start=1):
            for arm, sample in _prompt(bench, ready, kind, text, temperature, between):
                samples.by_arm.setdefault(arm.label, []).append(sample)
            summary = ", ".join(f"{arm.label} {_last_sample(samples, arm)}" for arm in ready)
            say(f"T = {temperature:g}, {kind} {number} of {len(texts)}: {summary}")
    return samples


def _last_sample(samples: Samples, arm: Arm) -> str:
    sample = samples.of(arm.label)[-1]
    return f"τ {sample.tau:.2f} {sample.gain:.2f}×"


def _runs(bench: Bencher, arm: Arm, prompt: str | PictureQuestion, temperature: float, samples: Samples) -> bool:
    """Whether the arm's parts are all here; also its warm-up: the first run of a process is no measure."""
    try:
        ready = bench.prepared(arm.method, prompt, temperature, parameters=arm.parameters)
        composition = ready.compose()
        decoding = bench.timed_run(ready, composition=composition)
        samples.held_bytes[arm.label] = held_bytes(composition, ready)
    except SpecvizError as problem:
        samples.missing[arm.label] = str(problem)
        return False
    if not decoding.ids:
        samples.missing[arm.label] = "it wrote nothing"
    return bool(decoding.ids)


def _prompt(
    bench: Bencher, arms: Sequence[Arm], kind: str, text: str | PictureQuestion, temperature: float, between: int
) -> Iterator[tuple[Arm, Sample]]:
    """The arms in groups, the target's own run before and after each group."""
    alone = bench.prepared("autoregressive", text, temperature)
    before = bench.timed_run(alone)
    for start in range(0, len(arms), between):
        group = [(arm, _run(bench, arm, text, temperature)) for arm in arms[start : start + between]]
        after = bench.timed_run(alone)
        own = statistics.mean([before.per_token, after.per_token])
        for arm, (ready, timed) in group:
            yield arm, sample_of(kind, timed, own, before.ids, ready.target.eos_ids)
        before = after


def _run(bench: Bencher, arm: Arm, text: str | PictureQuestion, temperature: float) -> tuple[Prepared, TimedRun]:
    ready = bench.prepared(arm.method, text, temperature, parameters=arm.parameters)
    return ready, bench.timed_run(ready)


def sample_of(kind: str, timed: TimedRun, own: float, alone: Sequence[int], ends: frozenset[int] = frozenset()) -> Sample:
    """What a timed run says, against ``own`` seconds a token and the text ``alone`` of the target's own run."""
    whole = [step for step in timed.steps if step.cut is None]
    return Sample(
        kind=kind,
        gain=own / timed.per_token,
        same=tuple(alone) == timed.ids,
        lengths=tuple(len(step.path) for step in whole),
        emitted=sum(len(step.emitted) for step in whole),
        passes=sum(step.passes for step in whole),
        forwards=sum(step.draft_calls for step in whole),
        verified=sum(step.verified for step in whole),
        repeated=repetition([token for token in timed.ids if token not in ends]),
        offered=tuple(step.verified for step in whole),
    )


def repetition(ids: Sequence[int], gram: int = 4) -> float:
    """Share of a text's 4-grams that it had already written: greedy text of small models loops, and loops are easy."""
    grams = [tuple(ids[place : place + gram]) for place in range(len(ids) - gram + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def held_bytes(composition: Any, ready: Any) -> int:
    """Bytes that ``composition`` keeps alive and the prepared request ``ready`` would not hold without it.

    Every object is counted once. A tensor counts its whole storage, unless the target's weights live there: heads that
    read the target's embedding do not hold it.
    """
    outside = [ready, *vars(ready).values(), getattr(ready.loaded, "model", None), getattr(ready.target, "model", None)]
    model = getattr(ready.loaded, "model", None)
    known = {_room(value)[0] for value in _tensors(model)}
    visited, waiting, total = {id(node) for node in outside}, [composition], 0
    while waiting:
        node = waiting.pop()
        if id(node) in visited or isinstance(node, _NOT_OURS):
            continue
        visited.add(id(node))
        if isinstance(node, torch.Tensor):
            place, size = _room(node)
            total += 0 if place in known else size
            known.add(place)
        elif isinstance(node, np.ndarray):
            total += node.nbytes if node.base is None else 0
            waiting += [node.base] if node.base is not None else []
        else:
            total += sys.getsizeof(node)
            waiting += _referents(node)
    return total


def _room(tensor: torch.Tensor) -> tuple[int, int]:
    """Where a tensor's numbers lie, and how many bytes there are; weights packed for the processor say neither."""
    if tensor.layout != torch.strided:
        return id(tensor), tensor.numel() * tensor.element_size()
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def _tensors(model: Any) -> Iterable[torch.Tensor]:
    """Weights and buffers of a model, nothing where there is none."""
    return [*model.parameters(), *model.buffers()] if isinstance(model, torch.nn.Module) else ()


def _referents(node: Any) -> list[Any]:
    """What an object refers to; of a function what it closes over, not the module it was written in."""
    if isinstance(node, MethodType):
        return [node.__self__, node.__func__]
    if isinstance(node, FunctionType):
        cells = [cell.cell_contents for cell in node.__closure__ or () if _filled(cell)]
        return [*cells, *(node.__defaults__ or ())]
    return gc.get_referents(node)


def _filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True

"""Paired runs and statistics: each variant on each prompt, against plain decoding by the target in the same process."""

from __future__ import annotations

import gc
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

import numpy as np
import torch

from specviz.engine.interfaces import Composition
from specviz.errors import SpecvizError
from specviz.pipeline.request import Memory, Request
from specviz.pipeline.runner import Prepared, prepare
from specviz.trace.metrics import tau
from specviz.trace.schema import Step

T = TypeVar("T")


@dataclass(frozen=True)
class TimedRun:
    """One decoded prompt: output ids, steps, and decoding time in seconds, excluding prefill and CUDA graph capture."""

    seconds: float
    steps: tuple[Step, ...]
    ids: tuple[int, ...]

    @property
    def tau(self) -> float:
        """Tokens per target pass; 1 if every step was cut short."""
        return tau(self.steps) or 1.0

    @property
    def per_token(self) -> float:
        return self.seconds / max(1, len(self.ids))


@dataclass(frozen=True)
class PictureQuestion:
    """A picture (the bytes of a PNG file) and a question about the picture."""

    picture: bytes
    question: str


Prompts = Mapping[str, "Sequence[str | PictureQuestion]"]
"""Prompts by kind."""
COMMON: dict[str, Any] = {}
"""Settings that every :class:`Bencher` adds to all requests, such as ``dtype``."""


@dataclass
class Bencher:
    """Runner of requests on one target. ``tokens``: output tokens per run. ``settings``: fields of every request."""

    target: str
    tokens: int = 96
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.settings = {**COMMON, **self.settings}

    def prepared(
        self, method: str, prompt: str | PictureQuestion, temperature: float = 0.0, memory: Memory | None = None, **more: Any
    ) -> Prepared:
        """Prepare a request. The model is loaded once per process; if ``memory`` is None, the run starts with an empty memory."""
        if isinstance(prompt, PictureQuestion):
            more, prompt = {**more, "image": prompt.picture}, prompt.question
        request = Request(
            method=method,
            prompt=prompt,
            target=self.target,
            max_new_tokens=self.tokens,
            temperature=temperature,
            parameters=more.pop("parameters", {}),
            **{**self.settings, **more},
        )
        return prepare(request, memory)

    def timed_run(self, ready: Prepared, seed: int = 0, record: str = "off", composition: Composition | None = None) -> TimedRun:
        """Decode a prepared request and time it, by default with a new composition. Raises SpecvizError if the run failed."""
        decoding = ready.decoding(composition or ready.compose(), seed, record)
        gc.collect()
        started = time.perf_counter()
        steps = tuple(decoding.steps())
        outcome = decoding.outcome
        seconds = time.perf_counter() - started - (outcome.prefill_ns + outcome.capture_ns) / 1e9
        if outcome.reason not in ("eos", "budget", "context"):
            raise SpecvizError(f"The run ended with {outcome.reason}: {outcome.message}")
        return TimedRun(seconds, steps, tuple(outcome.output_ids))


def in_own_thread(work: Callable[[], T]) -> T:
    """Run ``work`` in a temporary thread and return the result.

    Every computing thread keeps OpenMP workers. When workers outnumber cores, all sleep between operations instead of spinning,
    so the workers of an idle thread slow down runs in other threads.
    """
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(work).result()


_NOT_OURS = (type, ModuleType, BuiltinFunctionType, torch.device, torch.dtype, type(threading.Lock()), threading.Event)
"""Types of objects that no method owns; :func:`held_bytes` does not follow their references."""


@dataclass(frozen=True)
class Variant:
    """A method with parameters. ``label``: its name in the results."""

    label: str
    method: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """One prompt decoded by one variant.

    ``gain``: speed-up, the target's seconds per token divided by the variant's. ``same``: whether the target produced the same
    text. ``lengths`` and ``offered`` [step]: accepted draft tokens and verified nodes of each uncut step. ``emitted``,
    ``passes``, ``forwards`` and ``verified``: sums of tokens, target passes, drafter forwards and nodes over the uncut steps.
    ``repeated``: fraction of repeated 4-grams in the text. ``seconds``: decoding time, of which ``drafting`` went into drafts.
    ``more``: measurements of a single suite.
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
    seconds: float = 0.0
    drafting: float = 0.0
    more: Mapping[str, float] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        return len(self.lengths)

    @property
    def tau(self) -> float:
        """Tokens per target pass, bonus included; 1 if every step was cut short."""
        return self.emitted / self.passes if self.passes else 1.0


Measure = Callable[[Prepared, TimedRun, "str | PictureQuestion"], Mapping[str, float]]


@dataclass
class Samples:
    """Samples by variant.

    ``missing`` maps a variant to the reason why it could not run. ``held_bytes`` maps a variant to the bytes that its weights,
    caches and stores hold after its first run, excluding the target's weights.
    """

    by_variant: dict[str, list[Sample]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    held_bytes: dict[str, int] = field(default_factory=dict)

    def of(self, label: str) -> list[Sample]:
        """Return the samples of the variant; an empty list if the variant could not run."""
        return self.by_variant.get(label, [])

    def mean(self, label: str, of: Callable[[Sample], float]) -> float | None:
        """Return the mean of the means of :meth:`by_kind`, so that every kind has equal weight."""
        kinds = self.by_kind(label, of)
        return statistics.mean(kinds.values()) if kinds else None

    def by_kind(self, label: str, of: Callable[[Sample], float]) -> dict[str, float]:
        """Return the mean over the prompts of every kind."""
        by_kind: dict[str, list[float]] = {}
        for sample in self.of(label):
            by_kind.setdefault(sample.kind, []).append(of(sample))
        return {kind: statistics.mean(values) for kind, values in by_kind.items()}

    def total(self, label: str, of: Callable[[Sample], float]) -> float:
        return sum(of(sample) for sample in self.of(label))

    def by_depth(self, label: str) -> list[tuple[float, int]]:
        """Return (acceptance rate, number of steps) per depth, for variants that draft chains.

        Depth d counts the steps that accepted a node at depth d - 1 and drafted one at d. If the last rate is 0, no step accepted
        a node at that depth, so deeper nodes were never tested.
        """
        steps = [both for sample in self.of(label) for both in zip(sample.lengths, sample.offered, strict=True)]
        depths = range(1, 2 + max((length for length, _ in steps), default=0))
        outcomes = [
            [length >= depth for length, offered in steps if offered >= depth and length >= depth - 1] for depth in depths
        ]
        return [(statistics.mean(went_on), len(went_on)) for went_on in outcomes if went_on]


def gather(
    bench: Bencher,
    variants: Sequence[Variant],
    prompts: Prompts,
    temperature: float,
    say: Callable[[str], None] = lambda line: None,
    between: int = 2,
    remember: bool = False,
    measure: Measure | None = None,
) -> Samples:
    """Run every variant on every prompt, with runs of the target alone before and after each group of ``between`` variants.

    ``remember``: a variant keeps one memory over all prompts, and the seed changes with the kind. ``measure``: function that
    returns ``more`` of a sample. A variant that cannot run is skipped; ``missing`` of the result gives the reason.
    """
    samples = Samples()
    memories = {variant.label: Memory() if remember else None for variant in variants}
    first = next(iter(prompts.values()))[0]
    ready = [variant for variant in variants if _warm_up(bench, variant, first, temperature, samples)]
    for lap, (kind, texts) in enumerate(prompts.items()):
        for number, text in enumerate(texts, start=1):
            seed = lap if remember else 0
            alone = bench.prepared("autoregressive", text, temperature)
            before = bench.timed_run(alone, seed)
            for start in range(0, len(ready), between):
                group = []
                for variant in ready[start : start + between]:
                    request = bench.prepared(
                        variant.method, text, temperature, memories[variant.label], parameters=variant.parameters
                    )
                    group.append((variant, request, bench.timed_run(request, seed)))
                after = bench.timed_run(alone, seed)
                own = statistics.mean([before.per_token, after.per_token])
                for variant, request, timed in group:
                    more = measure(request, timed, text) if measure else {}
                    sample = sample_of(kind, timed, own, before.ids, request.target.eos_ids, more)
                    samples.by_variant.setdefault(variant.label, []).append(sample)
                before = after
            last = ", ".join(
                f"{variant.label} τ {(one := samples.of(variant.label)[-1]).tau:.2f} {one.gain:.2f}×" for variant in ready
            )
            say(f"T = {temperature:g}, {kind} {number} of {len(texts)}: {last}")
    return samples


def _warm_up(bench: Bencher, variant: Variant, prompt: str | PictureQuestion, temperature: float, samples: Samples) -> bool:
    """Run the variant once, since a process's first run is slow, and measure the bytes held. Returns whether it can run."""
    try:
        ready = bench.prepared(variant.method, prompt, temperature, parameters=variant.parameters)
        composition = ready.compose()
        decoding = bench.timed_run(ready, composition=composition)
        samples.held_bytes[variant.label] = held_bytes(composition, ready)
    except SpecvizError as problem:
        samples.missing[variant.label] = str(problem)
        return False
    if not decoding.ids:
        samples.missing[variant.label] = "no tokens were produced"
    return bool(decoding.ids)


def sample_of(
    kind: str, timed: TimedRun, own: float, alone: Sequence[int], ends: frozenset[int] = frozenset(),
    more: Mapping[str, float] | None = None,
) -> Sample:  # fmt: skip
    """Return the sample of a timed run. The target's run took ``own`` seconds per token and produced the ids ``alone``."""
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
        seconds=timed.seconds,
        drafting=sum(step.time.draft for step in whole) / 1e9,
        more=more or {},
    )


def repetition(ids: Sequence[int], gram: int = 4) -> float:
    """Return the fraction of n-grams that occurred earlier in the text.

    Small models loop when greedy; loops are easy to draft.
    """
    grams = [tuple(ids[place : place + gram]) for place in range(len(ids) - gram + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def held_bytes(composition: Any, ready: Any) -> int:
    """Return the bytes that ``composition`` keeps alive beyond the prepared request ``ready``.

    Every object counts once, a tensor with its whole storage. Tensors that share storage with the target's weights, such as the
    target's embedding in a drafter, do not count.
    """
    model = getattr(ready.loaded, "model", None)
    outside = [ready, *vars(ready).values(), model, getattr(ready.target, "model", None)]
    known = {_storage(value)[0] for value in _tensors(model)}
    visited, waiting, total = {id(node) for node in outside}, [composition], 0
    while waiting:
        node = waiting.pop()
        if id(node) in visited or isinstance(node, _NOT_OURS):
            continue
        visited.add(id(node))
        if isinstance(node, torch.Tensor):
            place, size = _storage(node)
            total += 0 if place in known else size
            known.add(place)
        elif isinstance(node, np.ndarray):
            total += node.nbytes if node.base is None else 0
            waiting += [node.base] if node.base is not None else []
        else:
            total += sys.getsizeof(node)
            waiting += _referents(node)
    return total


def _storage(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the address and size in bytes of a tensor's storage; for packed CPU weights, which expose neither, estimates."""
    if tensor.layout != torch.strided:
        return id(tensor), tensor.numel() * tensor.element_size()
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def _tensors(model: Any) -> Iterable[torch.Tensor]:
    return [*model.parameters(), *model.buffers()] if isinstance(model, torch.nn.Module) else ()


def _referents(node: Any) -> list[Any]:
    """Return the objects that ``node`` refers to. A function refers to its closure and defaults, but not to its module."""
    if isinstance(node, MethodType):
        return [node.__self__, node.__func__]
    if isinstance(node, FunctionType):
        cells = [cell.cell_contents for cell in node.__closure__ or () if _cell_contents(cell)]
        return [*cells, *(node.__defaults__ or ())]
    return gc.get_referents(node)


def _cell_contents(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True

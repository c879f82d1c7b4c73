"""Decoding loop and recorder: one run, round by round, and the trace steps of its rounds.

After the prefill, a round drafts, verifies, judges and commits, until end of sequence, budget, context limit or a stop. The
batched loop differs from the single one only in the pass that scores trees.

On CUDA the recorder gathers the numbers for the screen on the device and copies them once, asynchronously, into pinned memory. It
builds the step during the next pass. On a CPU it builds the step at once.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from specviz.engine import threads
from specviz.engine.clock import Stopwatch, Untimed
from specviz.engine.interfaces import (
    Composition,
    Context,
    Draft,
    Outcome,
    Round,
    RoundResult,
    RunCache,
    Session,
    Target,
    TargetPass,
    TokenText,
)
from specviz.engine.sampling import Noise, Warp
from specviz.engine.stop import Interrupted, ProgressHook, Stop, heed, on_prefill_progress, stoppable
from specviz.engine.to_device import to_device
from specviz.errors import BadInput, ModelUnavailable, OutOfMemory, SpecvizError
from specviz.trace.schema import PRUNED, Bonus, Candidate, Node, Note, Step, TargetRow

LEVELS = ("off", "path", "tree")
TOP = 3
_LOG = logging.getLogger(__name__)
_NO_MEMORY = ("DefaultCPUAllocator", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether ``error`` means that memory ran out. Some CPU and CUDA libraries report this only in the message."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError | OutOfMemory):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)


def _ignore(*_: object) -> None:
    """No-op hook, for runs without progress or timing."""


@dataclass
class RunState:
    """One run from the token ids ``prompt``, round by round; ``outcome`` holds the result.

    The prompt has at least one token and leaves room for another in the target's context. ``progress`` receives the prefill
    progress of a long prompt: a sentence and the fraction done.
    """

    target: Target
    composition: Composition
    prompt: Sequence[int]
    warp: Warp
    noise: Noise
    budget: int
    recorder: Recorder
    cancel: Stop = field(default_factory=Stop)
    ignore_eos: bool = False
    progress: Callable[[str, float | None], None] = _ignore
    outcome: Outcome = field(default_factory=Outcome)

    def __post_init__(self) -> None:
        self.ids = list(self.prompt)
        self.round = 0
        self.outcome.output_ids = self.recorder.output_ids
        self.untimed = self.outcome.untimed = Untimed(self.target.device)

    def context(self, mark: Callable[[str], None] = _ignore) -> Context:
        """Return the context of this round. ``mark``: function that ends a phase of the round's clock."""
        room, ahead = self.target.context_length - len(self.ids), self.target.boundary - len(self.ids)
        return Context(
            ids=self.ids,
            prompt_length=len(self.prompt),
            round=self.round,
            warp=self.warp,
            noise=self.noise,
            device=self.target.device,
            max_depth=room if ahead < 0 else min(room, ahead + 1),
            record_notes=self.recorder.record_notes,
            untimed=self.untimed,
            mark=mark,
        )

    def prefill(self, cache: RunCache) -> None:
        """Prefill the cache and the drafter with the prompt except its last token.

        Raises Interrupted if the run is stopped between two chunks of a long prompt.
        """
        started = time.perf_counter_ns()
        with self.untimed.here(), stoppable(self.cancel):
            heed()
            with on_prefill_progress(self._progress_hook("Reading the prompt")):
                scored = cache.prefill(self.prompt[:-1]) if len(self.prompt) > 1 else None
            with on_prefill_progress(self._progress_hook("The drafter reads the prompt")):
                context = replace(self.context(), max_depth=self.target.context_length - len(self.ids))
                self.composition.controller.begin(context, scored)
        if self.target.device.type == "cuda":
            torch.cuda.synchronize(self.target.device)
        self.outcome.prefill_ns = time.perf_counter_ns() - started - self.untimed.spent

    def _progress_hook(self, what: str) -> ProgressHook:
        def hook(done: int, total: int) -> None:
            self.progress(f"{what}: {done:,} of {total:,} tokens", done / total)

        return hook

    def stopped(self) -> None:
        """Record in ``outcome`` that the user or the time limit ended the run."""
        self.outcome.message = self.cancel.reason
        self.outcome.reason = "time_limit" if self.outcome.message else "cancelled"

    def commit_round(self, cache: RunCache, context: Context, draft: Draft, scored: TargetPass, clock: Stopwatch) -> RoundResult:
        """Judge, commit, and update the drafter, which counts as drafting time."""
        verdict = self.composition.acceptance.judge(draft, scored, context)
        clock.mark("judge")
        tokens = draft.tree.host_tokens
        path = [verdict.replaced.get(node, tokens[node]) for node in verdict.path]
        emitted, cut, stop = self._cut(path if verdict.bonus is None else [*path, verdict.bonus])
        # The last emitted token, the next root, is not in the cache yet.
        cache.keep((0, *verdict.path) if verdict.bonus is not None else (0, *verdict.path)[:-1])
        clock.mark("commit")
        finished = Round(context, draft, scored, verdict, emitted)
        self.composition.controller.observe(finished)
        clock.mark("draft")
        # Drafters and pending steps hold the old list, which must not grow.
        self.ids = [*self.ids, *emitted]
        self.round += 1
        clock.stop()
        return RoundResult(finished, cut, stop)

    def _cut(self, tokens: list[int]) -> tuple[list[int], str | None, str | None]:
        """Return the tokens kept, the reason for a cut, and the reason for a stop: end of sequence, budget or context."""
        left = self.budget - (len(self.ids) - len(self.prompt))
        room = self.target.context_length - len(self.ids)
        limit, reason = (left, "budget") if left <= room else (room, "context")
        ends = [] if self.ignore_eos else [place + 1 for place, token in enumerate(tokens) if token in self.target.eos_ids]
        if ends and ends[0] <= limit:
            return tokens[: ends[0]], "eos" if ends[0] < len(tokens) else None, "eos"
        if len(tokens) >= limit:
            return tokens[:limit], reason if len(tokens) > limit else None, reason
        return tokens, None, None

    def note_fault(self, error: Exception) -> None:
        """Record in ``outcome`` that ``error`` ended the run: out of memory, a message for the user, or a bug."""
        if is_out_of_memory(error):
            self.outcome.reason = "out_of_memory"
            self.outcome.message = (
                f"{self.target.device.type.upper()} memory ran out; use a smaller tree, fewer new tokens or a smaller "
                "model. The steps so far are kept."
            )
            return
        self.outcome.reason = "error"
        if isinstance(error, SpecvizError):
            self.outcome.message = str(error)
            return
        self.outcome.message = f"{type(error).__name__}: {error}"
        _LOG.error("A run ended by a fault of the program", exc_info=error)


class Decoding(RunState):
    """One run with its own session. Iterate :meth:`steps`, then read ``outcome``."""

    def steps(self) -> Generator[Step, None, None]:
        """Decode, yielding each recorded step. A fault ends the run and is reported in ``outcome``."""
        session: Session | None = None
        # On CUDA a step is recorded during the next round's pass, so it is yielded one round later.
        self.recorder.deferred = self.target.device.type == "cuda"
        try:
            composition, capacity = self.composition, min(self.target.context_length, len(self.prompt) + self.budget)
            if not composition.opener:
                session = self.target.open(capacity, composition.hidden_state_layers)
            else:
                session = composition.opener.open(self.target, capacity, composition.hidden_state_layers)
            self.prefill(session)
            yield from self._rounds(session)
        except Interrupted:
            self.stopped()
        except Exception as error:  # the steps so far survive a fault in any component
            self.note_fault(error)
            try:
                last = self.recorder.pop()
            except Exception as again:  # usually the same fault
                _LOG.warning("The last step before the fault is lost: %s", again)
            else:
                if last:
                    yield last
        finally:
            try:
                self.composition.controller.close()
            finally:
                if session:
                    session.close()

    def _rounds(self, session: Session) -> Iterator[Step]:
        stop: str | None = None
        recorder = self.recorder
        while not stop and not self.cancel.is_set():
            threads.adjust()
            clock = Stopwatch(self.target.device, self.untimed)
            with self.untimed.here():
                settled = self._round(session, clock)
            stop, earlier = settled.stop, recorder.pop()
            nodes = len(settled.finished.draft.tree)
            now = recorder.push(settled.finished, settled.cut, clock, session.padded(nodes))
            for step in (earlier, now):
                if step:
                    recorder.report_times(step, self.composition.learn)
                    yield step
        last = self.recorder.pop()
        if not stop:
            self.stopped()
        else:
            self.outcome.reason = stop
        if last:
            yield last

    def _round(self, session: Session, clock: Stopwatch) -> RoundResult:
        clock.start(self.recorder.spent_ns)
        context = self.context(clock.mark)
        draft = self.composition.controller.draft(context)
        clock.mark("draft")
        scored = session.score(draft.tree)
        clock.mark("verify")
        self.recorder.make()
        return self.commit_round(session, context, draft, scored, clock)


@dataclass
class Pending:
    """Round whose step is not built yet.

    ``numbers``: the TOP log-probabilities [visited, TOP], their token ids, and log-probabilities of children [visited, child].
    Below level "tree", only the largest logit of each visited row. ``notes``: made before the next pass overwrites what the
    target's notes read.
    """

    round: Round
    cut: str | None
    clock: Stopwatch
    padded: int
    numbers: tuple[Tensor, ...]
    notes: tuple[Note, ...]
    ready: torch.cuda.Event | None = None


@dataclass
class Recorder:
    """Recorder of a run's steps. ``level``: "off" records counts and times, "path" the accepted path too, "tree" everything.

    ``grid``: (rows, columns) of an image, whose cells are the output tokens in reading order. ``ends``: tokens that are emitted
    with empty text. ``deferred``: whether a step is built during the next round's pass, when its tokens join ``output_ids``.
    ``spent_ns``: time spent recording the last round; it counts as host time of the current round.
    """

    text: TokenText
    level: str = "tree"
    grid: tuple[int, int] | None = None
    ends: frozenset[int] = frozenset()
    output_ids: list[int] = field(default_factory=list)
    deferred: bool = False
    spent_ns: int = 0
    _waiting: Pending | None = None
    _step: Step | None = None
    _index: int = 0

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise BadInput(f"There is no recording level {self.level!r}; choose one of {', '.join(LEVELS)}.")

    @property
    def record_notes(self) -> bool:
        """Whether to record notes that are costly to compute."""
        return self.level == "tree"

    def push(self, finished: Round, cut: str | None, clock: Stopwatch, padded: int) -> Step | None:
        """Record a judged round. Returns its step, or None if ``deferred``."""
        started = time.perf_counter_ns()
        self._waiting = self._capture(finished, cut, clock, padded)
        self.spent_ns = time.perf_counter_ns() - started
        return None if self.deferred else self.pop()

    def make(self) -> None:
        """Build the step of the pending round, if any. Raises ModelUnavailable for infinite or NaN values."""
        waiting, self._waiting = self._waiting, None
        if not waiting:
            return
        started = time.perf_counter_ns()
        self._step = self._finish(waiting)
        self.output_ids.extend(self._step.emitted)
        self.spent_ns += time.perf_counter_ns() - started

    def report_times(self, step: Step, learn: Callable[[Step], None] | None) -> None:
        """Pass a step's times to ``learn``; this counts as host time of the next round."""
        if learn:
            started = time.perf_counter_ns()
            learn(step)
            self.spent_ns += time.perf_counter_ns() - started

    def pop(self) -> Step | None:
        """Return the step that is built but not yet taken, else the pending round's step, else None."""
        if self._step is None:
            self.make()
        step, self._step = self._step, None
        return step

    def _capture(self, finished: Round, cut: str | None, clock: Stopwatch, padded: int) -> Pending:
        """Copy the step's numbers off the device without synchronizing."""
        numbers, notes = self._numbers(finished), tuple[Note, ...]()
        if self.record_notes:
            notes = (*finished.draft.notes, *finished.target.notes(), *finished.verdict.notes)
        pending = Pending(finished, cut, clock, padded, numbers, notes)
        device = finished.context.device
        if device.type == "cuda":
            pinned = [torch.empty(part.shape, dtype=part.dtype, pin_memory=True) for part in numbers]
            pending.numbers = tuple(host.copy_(part, non_blocking=True) for host, part in zip(pinned, numbers, strict=True))
            pending.ready = torch.cuda.Event()
            pending.ready.record(torch.cuda.current_stream(device))
        return pending

    def _numbers(self, finished: Round) -> tuple[Tensor, ...]:
        """Return the visited rows' top log-probabilities and ids, and log-probabilities of their children and the bonus token."""
        visited = finished.verdict.visited
        logits = finished.target.logits.index_select(0, to_device(visited, finished.target.logits.device))
        if self.level != "tree":
            return (logits.amax(-1).float(),)
        rows = finished.context.warp.log_probabilities(logits)
        best = rows.topk(min(TOP, rows.shape[-1]), dim=-1)
        tree, last = finished.draft.tree, finished.verdict.bonus or 0
        child_ids = [[*(tree.host_tokens[child] for child in tree.shape.children[node]), last] for node in visited]
        width = max(len(row) for row in child_ids)
        ids = to_device([row + [0] * (width - len(row)) for row in child_ids], rows.device)
        return best.values.float(), best.indices, rows.gather(-1, ids).float()

    def _finish(self, pending: Pending) -> Step:
        """Build the step, after waiting for a pending copy."""
        if pending.ready:
            pending.ready.synchronize()
        finished, verdict = pending.round, pending.round.verdict
        _refuse_bad_numbers(pending)
        rows, p_of, bonus_p = self._read(pending)
        emitted, bonus = tuple(finished.emitted), None
        if verdict.bonus is not None and len(emitted) > len(verdict.path):
            end = verdict.visited[-1]
            parent = end if self.level == "tree" else len(verdict.path)
            cell = self._cell(finished, finished.draft.tree.shape.depths[end] + 1)
            bonus = Bonus(parent, verdict.bonus, self.text.of(verdict.bonus), bonus_p, verdict.source, cell)
        step = Step(
            index=self._index,
            position=finished.context.position,
            nodes=self._nodes(finished, p_of),
            path=verdict.path if self.level == "tree" else tuple(range(1, len(verdict.path) + 1)),
            bonus=bonus,
            emitted=emitted,
            pieces=written(self.text, self.output_ids, emitted, self.ends) if self.level != "off" else ("",) * len(emitted),
            rule=verdict.rule if len(finished.draft.tree) > 1 else "none",
            time=pending.clock.read(),
            cut=pending.cut,
            draft_calls=finished.draft.calls,
            verified=len(finished.draft.tree) - 1,
            padded=pending.padded,
            rows=rows,
            notes=tuple(Note(note.type, self._texts(note.data)) for note in pending.notes),
            passes=verdict.passes,
            certain=verdict.certain and len(finished.draft.tree) > 1,
        )
        self._index += 1
        return step

    def _read(self, pending: Pending) -> tuple[tuple[TargetRow, ...], dict[int, float], float | None]:
        """Return the target's rows, p of each judged node, and p of the bonus token, from the numbers on the host."""
        if self.level != "tree":
            return (), {}, None
        best, ids = pending.numbers[0].exp().tolist(), pending.numbers[1].tolist()
        child_p = pending.numbers[2].exp().tolist()
        verdict, children = pending.round.verdict, pending.round.draft.tree.shape.children
        rows: list[TargetRow] = []
        p_of: dict[int, float] = {}
        for place, node in enumerate(verdict.visited):
            top = tuple(Candidate(i, self.text.of(i), p) for i, p in zip(ids[place], best[place], strict=True) if p > 0)
            rows.append(TargetRow(node, top))
            p_of.update(zip(children[node], child_p[place], strict=False))
        end = verdict.visited[-1]
        return tuple(rows), p_of, child_p[-1][len(children[end])]

    def _nodes(self, finished: Round, p_of: Mapping[int, float]) -> tuple[Node, ...]:
        draft, verdict = finished.draft, finished.verdict
        tree = draft.tree
        if self.level == "tree":
            indices: Sequence[int] = range(len(tree))
            parents: Sequence[int] = tree.shape.parents
        else:
            indices = (0, *verdict.path)
            parents = range(-1, len(verdict.path))
        nodes = []
        for node, parent in zip(indices, parents, strict=True):
            token = verdict.replaced.get(node, tree.host_tokens[node])
            nodes.append(
                Node(
                    parent=parent,
                    token=token,
                    text=self.text.of(token),
                    q=draft.confidence[node] if node < len(draft.confidence) else None,
                    p=p_of.get(node) if node not in verdict.replaced else None,  # p of the drafted token, not of its replacement
                    status=verdict.statuses[node],
                    threshold=verdict.thresholds.get(node),
                    draw=verdict.draws.get(node),
                    grid=self._cell(finished, tree.shape.depths[node]),
                )
            )
        if self.level == "tree":
            depths = list(tree.shape.depths)
            for up, token, q in draft.pruned:
                depths.append(depths[up] + 1)
                cell = self._cell(finished, depths[-1])
                nodes.append(Node(up, token, self.text.of(token), q, None, PRUNED, grid=cell))
        return tuple(nodes)

    def _cell(self, finished: Round, depth: int) -> tuple[int, int] | None:
        """Row and column of the image cell of a node at this depth; None outside an image."""
        if self.grid is None:
            return None
        cell = finished.context.position + depth - finished.context.prompt_length
        rows, columns = self.grid
        return divmod(cell, columns) if 0 <= cell < rows * columns else None

    def _texts(self, data: Any) -> Any:
        """Add the text of each token id in a note; drafters know only ids."""
        if isinstance(data, Mapping):
            entry = {key: self._texts(value) for key, value in data.items()}
            if "token" in data:
                entry["text"] = self.text.of(data["token"])
            if "tokens" in data:
                entry["texts"] = [self.text.of(token) for token in data["tokens"]]
            return entry
        if isinstance(data, list | tuple) and data and isinstance(data[0], Mapping):
            return [self._texts(value) for value in data]
        return data


def _refuse_bad_numbers(pending: Pending) -> None:
    """Raise ModelUnavailable if target rows, thresholds or the drafter's confidences are infinite or NaN.

    The largest logit of a row suffices: it is infinite or NaN if any logit is.
    """
    finished, verdict = pending.round, pending.round.verdict
    largest = pending.numbers[0].reshape(len(verdict.visited), -1)[:, 0]
    drafted = (*verdict.thresholds.values(), *(q for q in finished.draft.confidence if q is not None))
    whose = "" if all(map(math.isfinite, drafted)) else "drafter"
    if not bool(largest.isfinite().all()):
        whose = "target"
    if whose:
        raise ModelUnavailable(
            f"The {whose}'s output for token {finished.context.position + 2} of the text is infinite or NaN: the "
            "weights are damaged, or too large for the number format. Download the model again, or choose a wider format."
        )


def written(text: TokenText, ids: Sequence[int], more: Sequence[int], ends: frozenset[int]) -> tuple[str, ...]:
    """Return the text that each token of ``more`` adds after ``ids``, "" for ``ends``."""
    pieces = text.pieces(ids, more)
    return tuple("" if token in ends else piece for token, piece in zip(more, pieces, strict=True))

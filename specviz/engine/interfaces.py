"""Interfaces between the decoding loop and its components, and the controller that most methods use.

Axis names: ``node`` (of one draft tree, root first), ``vocab``, ``hidden``, ``support`` (tokens to which the drafter assigns
probability).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from specviz.engine.clock import Untimed
from specviz.engine.sampling import Noise, Warp
from specviz.engine.tree import DraftTree
from specviz.trace.schema import Note, Step


@dataclass(frozen=True)
class TargetPass:
    """Output of one target pass: raw logits [node, vocab], and hidden states [node, hidden] of the tapped layers.

    ``notes``: function that returns notes on the pass; called only when notes are recorded.
    """

    logits: Tensor
    hidden: Mapping[int, Tensor] = field(default_factory=dict)
    notes: Callable[[], tuple[Note, ...]] = tuple


class RunCache(Protocol):
    """Key-value cache of a run: its own session, or a row of a batch."""

    def prefill(self, ids: Sequence[int]) -> TargetPass:
        """Append ``ids`` to the cache. Returns logits of the last position only, [1, vocab], and hidden states [position,
        hidden]."""

    def keep(self, path: Sequence[int]) -> None:
        """Keep the cache entries of these nodes of the last tree (root first, one path); drop the rest."""


class Session(RunCache, Protocol):
    """Cache of one run on a target. Sessions never share state."""

    @property
    def length(self) -> int:
        """Number of committed tokens in the cache."""

    def score(self, tree: DraftTree) -> TargetPass:
        """Score the tree in one target pass. The cache keeps its length until ``keep`` is called."""

    def padded(self, nodes: int) -> int:
        """Return the number of rows of a pass over ``nodes``, padding included."""

    def rewind(self, length: int) -> None:
        """Drop all but the first ``length`` cached tokens."""

    def close(self) -> None:
        """Release memory."""


class Target(Protocol):
    """Model that verifies drafts; shared by runs and never modified by them."""

    name: str
    vocab_size: int
    eos_ids: frozenset[int]
    context_length: int
    boundary: int
    """Number of tokens beyond which passes compute differently (LongRoPE), so drafts stop there; 0 for none."""
    device: torch.device
    dtype: torch.dtype
    tier: str

    def open(self, capacity: int, taps: Sequence[int] = ()) -> Session:
        """Open a fresh session with room for ``capacity`` committed tokens and a tree.

        ``taps``: layers whose hidden states passes return.
        """


class TokenText(Protocol):
    """Display text of token ids."""

    def of(self, token: int) -> str:
        """Return the text of one token; bytes that are not a whole character are written as \\xNN."""

    def pieces(self, ids: Sequence[int], more: Sequence[int]) -> tuple[str, ...]:
        """Return the text that each token of ``more`` adds after ``ids``; joined, the pieces are the decoded text."""


@dataclass(frozen=True)
class Context:
    """State of a round. ``ids``: committed tokens, the root last. ``round``: index of the step, from 0."""

    ids: Sequence[int]
    prompt_length: int
    round: int
    warp: Warp
    noise: Noise
    device: torch.device
    max_depth: int
    """Maximum number of tokens that this round may add: ``max_depth`` - 1 drafted nodes and the bonus token.

    At the beginning of a run, the number of free positions in the context window.
    """
    record_notes: bool = True
    """Whether to record notes that are costly to compute."""
    untimed: AbstractContextManager[None] = field(default_factory=nullcontext)
    """Context manager for work done only for notes; its time is not charged to the method."""
    mark: Callable[[str], None] = lambda phase: None
    """Function that ends a phase of the round's clock, for components that do the work of several phases."""

    @property
    def position(self) -> int:
        """Absolute position of the root."""
        return len(self.ids) - 1

    def notes(self, make: Callable[[], Sequence[Note]]) -> tuple[Note, ...]:
        """Return the notes from ``make`` without charging their time to the method; () if notes are not recorded."""
        if not self.record_notes:
            return ()
        with self.untimed:
            return tuple(make())


@dataclass(frozen=True)
class Proposal:
    """Distribution of a node's children: ``probability`` is [vocab] if ``ids`` is None, else both are [support]."""

    probability: Tensor
    ids: Tensor | None = None


@dataclass(frozen=True)
class Pick:
    """Choice of a tree builder at ``node``.

    ``proposal``: the distribution. ``perturbed``: Gumbel-perturbed log-probabilities, None if nothing was sampled. ``order``:
    order in which children were taken from the support. ``picked``: number of children.
    """

    node: int
    proposal: Proposal
    perturbed: Tensor | None
    order: Tensor
    picked: int


@dataclass(frozen=True)
class Draft:
    """Drafted tree, with the distributions for the acceptance rule and details for the screen.

    ``proposals`` maps an inner node to the distribution *that its children were sampled from*. Without an entry, the children
    were chosen deterministically. ``confidence``: the drafter's probability of each node, None if unknown. ``pruned``: (parent,
    token, confidence) of nodes drafted but not sent to the target.
    """

    tree: DraftTree
    proposals: Mapping[int, Proposal] = field(default_factory=dict)
    confidence: Sequence[float | None] = ()
    calls: int = 0
    pruned: Sequence[tuple[int, int, float | None]] = ()
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """Result of an acceptance rule.

    ``path``: accepted nodes without the root. ``bonus``: None if the step ends with a drafted token. ``visited``: nodes whose
    target row was read. ``replaced``: new tokens of path nodes. ``passes``: number of target passes. ``certain``: whether the
    drafted tokens were chosen deterministically and verified as point masses.
    """

    rule: str
    path: tuple[int, ...]
    bonus: int | None
    source: str
    statuses: tuple[str, ...]
    visited: tuple[int, ...]
    thresholds: Mapping[int, float] = field(default_factory=dict)
    draws: Mapping[int, float] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    replaced: Mapping[int, int] = field(default_factory=dict)
    passes: int = 1
    certain: bool = False


@dataclass(frozen=True)
class Round:
    """Finished round, for components that learn from it. ``emitted``: tokens committed after the root."""

    context: Context
    draft: Draft
    target: TargetPass
    verdict: Verdict
    emitted: Sequence[int]


@dataclass(frozen=True)
class RoundResult:
    """Judged round before recording. ``cut``: reason why tokens were dropped, if any. ``stop``: reason why the run ends, if it
    does."""

    finished: Round
    cut: str | None
    stop: str | None


@dataclass
class Outcome:
    """Result of a run, updated as it proceeds. ``reason`` and ``message`` are as in ``trace.End``."""

    output_ids: list[int] = field(default_factory=list)
    reason: str = "budget"
    message: str = ""
    prefill_ns: int = 0
    untimed: Untimed | None = None

    @property
    def captures(self) -> int:
        """Number of passes captured in this run."""
        return self.untimed.captures if self.untimed else 0

    @property
    def capture_ns(self) -> int:
        """Nanoseconds spent on capturing, excluded from all other times."""
        return self.untimed.capturing if self.untimed else 0


class Drafter(Protocol):
    """Source of draft tokens. Each pair of drafter and builder defines the methods that the builder calls."""

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        """Begin a run. ``prefill``: the target's pass over the prompt ``context.ids`` without its last token."""

    def observe(self, finished: Round) -> None:
        """Learn from a finished round: its committed tokens, and the target's rows for the whole tree."""

    def close(self) -> None:
        """Release memory."""


Source = TypeVar("Source", contravariant=True)
"""Interface of drafters that a tree builder requires."""

AnyDrafter = TypeVar("AnyDrafter", bound=Drafter)


class TreeBuilder(Protocol[Source]):
    """Turns a drafter's proposals into a tree."""

    def build(self, drafter: Source, context: Context) -> Draft:
        """Build a tree rooted at ``context.ids[-1]`` whose paths have at most ``context.max_depth - 1`` drafted nodes."""


class Acceptance(Protocol):
    """Rule that decides which tokens of a scored tree are output."""

    def judge(self, draft: Draft, target: TargetPass, context: Context) -> Verdict:
        """Judge the tree. Raises BadInput for drafts for which the rule is not exact."""


class SessionOpener(Protocol):
    """Opens the session of a run whose method needs more of the target than :class:`Session`."""

    unshared: str
    """Reason, for the user, why such a session cannot be a row of a batch."""

    def open(self, target: Target, capacity: int, taps: Sequence[int]) -> Session:
        """Open a session, as :meth:`Target.open` does. Raises a SpecvizError if the target has no such sessions."""


class Controller(Drafter, Protocol):
    """Chooses each round's drafter and tree builder; most methods use the same ones in every round."""

    def draft(self, context: Context) -> Draft: ...


@dataclass(frozen=True)
class Composition:
    """Components of a method.

    ``hidden_state_layers``: target layers that the drafter reads. ``opener``: replacement for :meth:`Target.open`.
    ``generation``: number of runs that the drafter has learned from (see :class:`~specviz.engine.sampling.Noise`). ``learn``:
    function that receives each finished step, to size later trees.
    """

    controller: Controller
    acceptance: Acceptance
    hidden_state_layers: tuple[int, ...] = ()
    draft_name: str = ""
    warnings: tuple[str, ...] = ()
    opener: SessionOpener | None = None
    generation: int = 0
    learn: Callable[[Step], None] | None = None


class SingleDrafter(Generic[AnyDrafter]):
    """Controller with one drafter and one tree builder."""

    def __init__(self, drafter: AnyDrafter, builder: TreeBuilder[AnyDrafter]) -> None:
        self.drafter = drafter
        self.builder = builder

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self.drafter.begin(context, prefill)

    def draft(self, context: Context) -> Draft:
        return self.builder.build(self.drafter, context)

    def observe(self, finished: Round) -> None:
        self.drafter.observe(finished)

    def close(self) -> None:
        self.drafter.close()


def single_drafter(
    drafter: AnyDrafter, builder: TreeBuilder[AnyDrafter], acceptance: Acceptance, hidden_state_layers: tuple[int, ...] = (),
    draft_name: str = "", warnings: tuple[str, ...] = (),
) -> Composition:  # fmt: skip
    """Compose a method from one drafter, one tree builder and one acceptance rule."""
    return Composition(SingleDrafter(drafter, builder), acceptance, hidden_state_layers, draft_name, warnings)

"""Interfaces between the loop and other packages, and the controller of most methods. The loop depends on these alone.

Axis names: ``node`` (of one draft tree, root first), ``vocab``, ``hidden``, ``support`` (tokens to which the drafter gives mass).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from specviz.engine.sampling import Noise, Warp
from specviz.engine.tree import DraftTree
from specviz.trace.schema import Note, Step


@dataclass(frozen=True)
class TargetPass:
    """Output of one target pass: raw logits [node, vocab], and hidden states [node, hidden] of the tapped layers.

    ``notes`` returns the pass's own notes, and is called only when notes are recorded.
    """

    logits: Tensor
    hidden: Mapping[int, Tensor] = field(default_factory=dict)
    notes: Callable[[], tuple[Note, ...]] = tuple


class RunCache(Protocol):
    """A run's cache in the target: its own session, or a row of a batch."""

    def prefill(self, ids: Sequence[int]) -> TargetPass:
        """Append ``ids`` to the cache. Logits are the last position's only, [1, vocab]; hidden is [position, hidden]."""

    def keep(self, path: Sequence[int]) -> None:
        """Keep the cache entries of these nodes of the last tree (root first, one path), drop the rest."""


class Session(RunCache, Protocol):
    """One run's cache in a target. Sessions of one target never share state."""

    @property
    def length(self) -> int:
        """Number of committed tokens in the cache."""

    def score(self, tree: DraftTree) -> TargetPass:
        """Run the target once over the tree. The cache keeps its length until ``keep`` is called."""

    def padded(self, nodes: int) -> int:
        """Return the number of rows of a pass over ``nodes``, padding included."""

    def rewind(self, length: int) -> None:
        """Drop all but the first ``length`` cached tokens."""

    def close(self) -> None:
        """Release the memory."""


class Target(Protocol):
    """A model that verifies. Runs share it and never change it."""

    name: str
    vocab_size: int
    eos_ids: frozenset[int]
    context_length: int
    boundary: int
    """Number of tokens beyond which passes compute differently (LongRoPE), so no draft crosses it; 0 for none."""
    device: torch.device
    dtype: torch.dtype
    tier: str

    def open(self, capacity: int, taps: Sequence[int] = ()) -> Session:
        """Open a fresh session with room for ``capacity`` committed tokens, plus the nodes of a tree.

        ``taps`` are the hidden-state layers to return.
        """


class TokenText(Protocol):
    """Display text of token ids."""

    def of(self, token: int) -> str:
        """Return this token's own text; bytes that are not a character by themselves are written as \\xNN."""

    def pieces(self, ids: Sequence[int], more: Sequence[int]) -> tuple[str, ...]:
        """Return the text that each of ``more`` adds after ``ids``; concatenated, the pieces are the decoded text."""


@dataclass(frozen=True)
class Context:
    """Context of a round: every committed token, the root last. ``round`` counts steps from 0."""

    ids: Sequence[int]
    prompt_length: int
    round: int
    warp: Warp
    noise: Noise
    device: torch.device
    max_depth: int
    """Maximum number of tokens that this round may add: ``max_depth`` - 1 drafted nodes and the bonus token. At the beginning of
    a run, the number of free positions in the context window."""
    record_notes: bool = True
    """Whether to make notes that cost time."""
    untimed: AbstractContextManager[None] = field(default_factory=nullcontext)
    """Context manager for work on notes alone, whose time does not count as the method's."""
    mark: Callable[[str], None] = lambda phase: None
    """Ends a phase of the round's clock, for a component that does the work of several phases."""

    @property
    def position(self) -> int:
        """Absolute position of the root."""
        return len(self.ids) - 1

    def notes(self, make: Callable[[], Sequence[Note]]) -> tuple[Note, ...]:
        """Return the notes from ``make``, whose time does not count as the method's; empty if notes are not recorded."""
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
    """A tree builder's choice at ``node``: the distribution, its Gumbel-perturbed log-probabilities (None if nothing was
    drawn), the order in which children were taken from the support, and their number.
    """

    node: int
    proposal: Proposal
    perturbed: Tensor | None
    order: Tensor
    picked: int


@dataclass(frozen=True)
class Draft:
    """A drafted tree, with its distributions for the acceptance rule and details for the screen.

    ``proposals`` maps an inner node to the distribution of its children, *as sampled from*; a node without one has children
    chosen deterministically (each a point mass). ``confidence`` is the drafter's own probability per node for the
    screen, None if unavailable. ``pruned`` are (parent, token, confidence) drafted but not sent to the target.
    """

    tree: DraftTree
    proposals: Mapping[int, Proposal] = field(default_factory=dict)
    confidence: Sequence[float | None] = ()
    calls: int = 0
    pruned: Sequence[tuple[int, int, float | None]] = ()
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """Result of an acceptance rule. ``path`` excludes the root; ``visited`` are the nodes whose target row was read.

    ``bonus`` is None if the step ends with a drafted position. ``replaced`` are nodes of the path whose drafted token was
    replaced, and ``passes`` counts the target passes. ``certain``: the drafted tokens were chosen deterministically and
    verified as point masses.
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
    """A finished round, for components that learn from it. ``emitted`` are the tokens committed after the root."""

    context: Context
    draft: Draft
    target: TargetPass
    verdict: Verdict
    emitted: Sequence[int]


class Drafter(Protocol):
    """Source of proposals. Its interface to a tree builder (rows, continuations, successors) is left to the pair."""

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        """Begin a run: the prompt is ``context.ids``; ``prefill`` is the target's pass over all but its last token."""

    def observe(self, finished: Round) -> None:
        """Learn from a finished round: its committed tokens, and the target's rows for the whole tree."""

    def close(self) -> None:
        """Release memory."""


Source = TypeVar("Source", contravariant=True)
"""Drafter interface that a tree builder requires."""

AnyDrafter = TypeVar("AnyDrafter", bound=Drafter)


class TreeBuilder(Protocol[Source]):
    """Turns a drafter's proposals into a tree."""

    def build(self, drafter: Source, context: Context) -> Draft:
        """Build a tree rooted at ``context.ids[-1]`` whose paths have at most ``context.max_depth - 1`` drafted nodes."""


class Acceptance(Protocol):
    """Rule that selects the tokens of a scored tree for the output."""

    def judge(self, draft: Draft, target: TargetPass, context: Context) -> Verdict:
        """Walk the tree under this rule. Raises BadInput for drafts that the rule is not exact for."""


class SessionOpener(Protocol):
    """Opens the session of a run whose method requires more of its target than :class:`Session`."""

    unshared: str
    """Reason why such a session cannot be a row of a batch, for the user."""

    def open(self, target: Target, capacity: int, taps: Sequence[int]) -> Session:
        """As :meth:`Target.open`. Raises a SpecvizError for a target without such sessions."""


class Controller(Drafter, Protocol):
    """Chooses each round's drafter and tree builder; most methods use the same ones in every round."""

    def draft(self, context: Context) -> Draft: ...


@dataclass(frozen=True)
class Composition:
    """Components of a method. ``hidden_state_layers`` are the target layers that its drafter reads; ``opener`` replaces
    :meth:`Target.open`. ``generation`` counts the runs that its drafter learned from (see
    :class:`~specviz.engine.sampling.Noise`). ``learn`` receives the times of each finished step, which size later trees."""

    controller: Controller
    acceptance: Acceptance
    hidden_state_layers: tuple[int, ...] = ()
    draft_name: str = ""
    warnings: tuple[str, ...] = ()
    opener: SessionOpener | None = None
    generation: int = 0
    learn: Callable[[Step], None] | None = None


class SingleDrafter(Generic[AnyDrafter]):
    """Drafts the same way each round."""

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
    """Compose a method of one drafter, one tree builder and one acceptance rule."""
    return Composition(SingleDrafter(drafter, builder), acceptance, hidden_state_layers, draft_name, warnings)

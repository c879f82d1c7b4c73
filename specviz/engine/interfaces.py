"""Contracts between the loop and the rooms around it. The loop knows these and nothing else.

Axis names: ``node`` (of one draft tree, root first), ``vocab``, ``hidden``, ``support`` (tokens with drafter's mass).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from specviz.engine.sampling import Noise, Warp
from specviz.engine.tree import DraftTree
from specviz.trace.schema import Note, Step


@dataclass(frozen=True)
class TargetPass:
    """What one target pass gave: raw logits [node, vocab], and hidden states [node, hidden] of the tapped layers.

    ``notes`` makes the notes of the pass itself, and is called only when notes are recorded.
    """

    logits: Tensor
    hidden: Mapping[int, Tensor] = field(default_factory=dict)
    notes: Callable[[], tuple[Note, ...]] = tuple


class Session(Protocol):
    """One run's hold on a target: its cache. Sessions of one target never share state."""

    @property
    def length(self) -> int:
        """Committed tokens in the cache."""

    def prefill(self, ids: Sequence[int]) -> TargetPass:
        """Put ``ids`` into the cache. Logits are the last position's only, [1, vocab]; hidden is [position, hidden]."""

    def score(self, tree: DraftTree) -> TargetPass:
        """Run the target once over the tree. The cache keeps its length until ``keep`` is called."""

    def keep(self, path: Sequence[int]) -> None:
        """Keep the cache entries of these nodes of the last tree (root first, one path), drop the rest."""

    def padded(self, nodes: int) -> int:
        """Rows a pass over ``nodes`` really has, padding included."""

    def rewind(self, length: int) -> None:
        """Forget everything after the first ``length`` cached tokens."""

    def close(self) -> None:
        """Give the memory back."""


class Target(Protocol):
    """A model that verifies. Shared between runs, never changed by one."""

    name: str
    vocab_size: int
    eos_ids: frozenset[int]
    context_length: int
    boundary: int
    """Tokens behind which passes compute otherwise, so that no draft reaches across; 0 where there is no such place."""
    device: torch.device
    dtype: torch.dtype
    tier: str

    def open(self, capacity: int, taps: Sequence[int] = ()) -> Session:
        """A fresh session with room for ``capacity`` committed tokens; the nodes of a tree come on top of them.

        ``taps`` are the hidden-state layers wanted.
        """


class TokenText(Protocol):
    """Token ids to text, for people."""

    def of(self, token: int) -> str:
        """This token's own text; bytes that are no character by themselves are written as \\xNN."""

    def pieces(self, ids: Sequence[int], more: Sequence[int]) -> tuple[str, ...]:
        """What each of ``more`` adds to the text of ``ids``: their concatenation is the decoded text."""


@dataclass(frozen=True)
class Context:
    """What a drafter may look at: every committed token, the root last. ``round`` counts steps from 0."""

    ids: Sequence[int]
    prompt_length: int
    round: int
    warp: Warp
    noise: Noise
    device: torch.device
    max_depth: int
    """Most tokens that this round may add: those of a path, whose nodes are one fewer, and the token behind it. At the begin of
    a run, those that the context window has room for."""
    record_notes: bool = True
    """Whether notes that cost time are wanted."""
    untimed: AbstractContextManager[None] = field(default_factory=nullcontext)
    """What is done inside is for notes alone: its time is not the method's."""
    mark: Callable[[str], None] = lambda phase: None
    """Ends a phase of the round's clock, for a part that does the work of more than one."""

    @property
    def position(self) -> int:
        """Absolute position of the root."""
        return len(self.ids) - 1

    def notes(self, make: Callable[[], Sequence[Note]]) -> tuple[Note, ...]:
        """The notes that ``make`` gives, in time that is not the method's; none where none are recorded."""
        if not self.record_notes:
            return ()
        with self.untimed:
            return tuple(make())


@dataclass(frozen=True)
class Proposal:
    """The distribution of a node's children: ``probability`` is [vocab] when ``ids`` is None, else both are [support]."""

    probability: Tensor
    ids: Tensor | None = None


@dataclass(frozen=True)
class Pick:
    """What a tree builder took at ``node``: the distribution, its Gumbel-perturbed log-probabilities (None when nothing was
    drawn), the order in the support by which children were taken, and how many were.
    """

    node: int
    proposal: Proposal
    perturbed: Tensor | None
    order: Tensor
    picked: int


@dataclass(frozen=True)
class Draft:
    """A drafted tree, and what the accept rule and the screen need to know about how it came to be.

    ``proposals`` maps an inner node to the distribution of its children, *as sampled from*; a node without one has children
    chosen deterministically (each a point mass). ``confidence`` is the drafter's own probability per node for the
    screen, None where it has none. ``pruned`` are (parent, token, confidence) drafted but not sent to the target.
    """

    tree: DraftTree
    proposals: Mapping[int, Proposal] = field(default_factory=dict)
    confidence: Sequence[float | None] = ()
    calls: int = 0
    pruned: Sequence[tuple[int, int, float | None]] = ()
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """The judge's finding. ``path`` leaves the root out; ``visited`` are the nodes whose target row was looked at.

    ``bonus`` is None where the step ends with a drafted place. ``replaced`` are nodes of the path that carry another token
    than the drafted one, and ``passes`` counts the target's runs. ``certain``: a token that the drafter chose, rather than
    drew, was weighed as one of probability 1.
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
    """A finished round, for parts that learn from it. ``emitted`` are the tokens committed after the root."""

    context: Context
    draft: Draft
    target: TargetPass
    verdict: Verdict
    emitted: Sequence[int]


class Drafter(Protocol):
    """Proposes. What it offers a tree builder (rows, continuations, successors) is between the two of them."""

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        """A new run: the prompt is ``context.ids``; ``prefill`` is the target's pass over all but its last token."""

    def observe(self, finished: Round) -> None:
        """Learn from a finished round: committed tokens, the target's rows on the whole tree."""

    def close(self) -> None:
        """Give memory back."""


Source = TypeVar("Source", contravariant=True)
"""What a tree builder asks of a drafter."""


class TreeBuilder(Protocol[Source]):
    """Turns a drafter's proposals into a tree."""

    def build(self, drafter: Source, context: Context) -> Draft:
        """A tree whose root is ``context.ids[-1]``, no path of which has more than ``context.max_depth - 1`` drafted nodes."""


class Acceptance(Protocol):
    """Decides what of a scored tree enters the output."""

    def judge(self, draft: Draft, target: TargetPass, context: Context) -> Verdict:
        """Walk the tree under this rule. Raises BadInput when the draft is of a kind the rule is not exact for."""


class SessionOpener(Protocol):
    """Opens a run's session, where a method wants more of its target than every session gives."""

    unshared: str
    """Why such a session cannot be a row of a batch, in words for the user."""

    def open(self, target: Target, capacity: int, taps: Sequence[int]) -> Session:
        """As :meth:`Target.open`. Raises a SpecvizError for a target that has no such session."""


class Controller(Protocol):
    """Chooses, each round, who drafts and how; most methods always do the same thing."""

    def begin(self, context: Context, prefill: TargetPass | None) -> None: ...

    def draft(self, context: Context) -> Draft: ...

    def observe(self, finished: Round) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Composition:
    """What a method is made of. ``hidden_state_layers`` are those of the target that its drafter reads, ``opener`` opens the
    session where :meth:`Target.open` does not do. ``generation`` counts the runs that taught what it drafts from (see
    :class:`~specviz.engine.sampling.Noise`). ``learn`` takes the times of each finished step, which size later trees."""

    controller: Controller
    acceptance: Acceptance
    hidden_state_layers: tuple[int, ...] = ()
    draft_name: str = ""
    warnings: tuple[str, ...] = ()
    opener: SessionOpener | None = None
    generation: int = 0
    learn: Callable[[Step], None] | None = None

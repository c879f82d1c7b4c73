"""OWL's recurrent drafter, the [SPEC] token, and HOWL's choice between this drafter and suffix trees.

Lee et al. (arXiv 2510.07535). The drafter is a recurrent network, run level by level down a tree. For a root at position P, the
network starts from the root's embedding and two of the target's hidden states: of token P - 1, and of a [SPEC] token after it.
A [SPEC] token is a learned embedding with the position and attention mask of the next token. No token attends to a [SPEC] token.

HOWL combines OWL with suffix decoding. The suffix trees' score, an expected number of accepted tokens, must reach a fixed or an
adaptive threshold. Scores treat counts as probabilities, which is accurate only on some texts. The adaptive threshold therefore
corrects scores by the acceptance in this run, and compares with the acceptance of the network's trees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from specviz.drafting.memory.retrieval import Retrieval
from specviz.drafting.networks.recurrent_net import RecurrentRuntime, State
from specviz.drafting.runtimes.feature_levels import CapturedLevels, acquire, release
from specviz.drafting.runtimes.null import NullDrafter
from specviz.drafting.trees.retrieved import Retrieved, followed
from specviz.engine.interfaces import Context, Draft, Drafter, Round, Target, TargetPass, TreeBuilder
from specviz.engine.to_device import device_cache
from specviz.engine.tree import DraftTree, TreeShape
from specviz.errors import ModelUnavailable
from specviz.targets.text import TextSession, TextTarget, joined
from specviz.trace.notes.drafts import SuffixNote
from specviz.trace.notes.models import LastStateNote

TREE = 0.8
"""Prior for the accepted tokens per tree of the network."""
WEIGHT = 4.0
"""Weight of the priors, in trees of the network and in expected tokens of the memory."""
FADE = 0.97
"""Discount per round on past observations."""


@dataclass(frozen=True)
class SpecTokenPass(TargetPass):
    """Target pass with [SPEC] tokens.

    ``behind``: hidden states [node, hidden], by layer, of the [SPEC] tokens after the nodes. A prefill has a single [SPEC]
    token, after the last position.
    """

    behind: Mapping[int, Tensor] = field(default_factory=dict)


class RecurrentLevels(CapturedLevels[State]):
    """Levels of the recurrent drafter. A level depends only on the state of the level above."""

    def __init__(self, runtime: RecurrentRuntime) -> None:
        super().__init__(runtime.device)
        self._runtime = runtime
        self._last, self._root = torch.empty(0), torch.empty(0)

    def take(self, last: Tensor, root: int) -> None:
        """Set the inputs of a round.

        ``last`` [1, 2 * hidden]: hidden states of the token before the root and of the [SPEC] token after it. ``root``: token
        id.
        """
        self.trail = []
        self._last, self._root = self.given("last", last), self.numbers([root])

    def first(self) -> Tensor:
        return self._after(self._runtime.begin(self._last, self._root))

    def below(self, tokens: Tensor, parents: Tensor) -> Tensor:
        output, memory = self.trail[-1]
        return self._after(self._runtime.go_on((output[parents], memory[parents]), tokens))

    def _after(self, state: State) -> Tensor:
        self._here = state
        return self._runtime.logits(state[0])


class RecurrentDrafter(NullDrafter):
    """Drafter with a recurrent network. In a session without [SPEC] tokens, zeros replace the [SPEC] token's hidden state."""

    def __init__(self, runtime: RecurrentRuntime) -> None:
        self.support: Tensor | None = runtime.draft_ids
        self._runtime, self._tap = runtime, runtime.config.tap
        self._levels: RecurrentLevels | None = None
        self._last: Tensor | None = None
        """Hidden states of the last token and of the [SPEC] token after it, [1, 2 * hidden]."""

    @torch.inference_mode()
    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self.close()
        self._levels = acquire(self._runtime, 0, lambda runtime, _: RecurrentLevels(runtime))
        self._last = None if prefill is None else self._read(prefill, -1)

    def close(self) -> None:
        if self._levels is not None:
            release(self._runtime, self._levels)
            self._levels = None

    def observe(self, finished: Round) -> None:
        path = (0, *finished.verdict.path)[: len(finished.emitted)]
        self._last = self._read(finished.target, path[-1])

    def _read(self, passed: TargetPass, node: int) -> Tensor:
        own = passed.hidden[self._tap][node][None]
        behind = passed.behind[self._tap][node][None] if isinstance(passed, SpecTokenPass) else torch.zeros_like(own)
        return torch.cat((own, behind), dim=-1)

    @torch.inference_mode()
    def levels(self, context: Context) -> RecurrentLevels | None:
        """Return the levels of this round; None before the first target pass."""
        if self._last is None:
            return None
        assert self._levels is not None
        self._levels.take(self._last, context.ids[-1])
        return self._levels

    def calls(self) -> int:
        assert self._levels is not None
        return self._levels.take_calls()


@dataclass(frozen=True)
class SpecToken:
    """Opener of sessions with [SPEC] tokens. ``embedding`` [hidden]: embedding of the [SPEC] token."""

    embedding: Tensor
    unshared = (
        "A batch does not support the [SPEC] tokens of this method: "
        "set the parameter probe=false, or run the prompts one after another."
    )

    def open(self, target: Target, capacity: int, taps: Sequence[int]) -> SpecTokenSession:
        """Open a session for ``capacity`` tokens.

        Raises ContextFull if the context is shorter, and ModelUnavailable for a target that does not support [SPEC] tokens.
        """
        if type(target) is not TextTarget:
            raise ModelUnavailable(f"{target.name} does not support [SPEC] tokens; set the parameter probe=false.")
        if target.boundary:
            raise ModelUnavailable(
                f"{target.name} changes the rotary factors after {target.boundary} tokens, and a [SPEC] token would trigger "
                "the change early; set the parameter probe=false."
            )
        target.refuse(capacity)
        return SpecTokenSession(target, capacity, tuple(taps), self.embedding)


class SpecTokenSession(TextSession):
    """Session with a [SPEC] token after every node of a pass. The cache keeps no [SPEC] token."""

    def __init__(self, target: TextTarget, capacity: int, taps: tuple[int, ...], embedding: Tensor) -> None:
        self.token = target.vocab_size
        """Id of the [SPEC] token: the first id after the vocabulary."""
        table = target.model.get_input_embeddings()
        target = copy(target)
        target.embed = lambda tokens: torch.where(
            (tokens == self.token)[..., None], embedding.to(table.weight), table(tokens.clamp_max(self.token - 1))
        )
        super().__init__(target, capacity, taps)

    def padded(self, nodes: int) -> int:
        """Like :meth:`TextSession.padded`, for two rows per node."""
        return super().padded(2 * nodes)

    def prefill(self, ids: Sequence[int]) -> SpecTokenPass:
        """Like :meth:`TextSession.prefill`, with a [SPEC] token after the last of ``ids``."""
        passes = list[TargetPass]()
        for start, end in self._pieces(len(ids)):  # separate passes, between which a run can be stopped
            if end < len(ids):
                passes.append(self._read(ids[start:end]))
        logits, hidden = self._chain([*ids[start:], self.token], last=2)
        self._cache.advance(end - start)
        self._cache.rewind(self.length)  # drops the [SPEC] token
        last = _split(logits[:1], hidden, end - start)
        read = joined([*passes, last])
        return SpecTokenPass(read.logits, read.hidden, behind=last.behind)

    def score(self, tree: DraftTree) -> SpecTokenPass:
        """Like :meth:`TextSession.score`, with a [SPEC] token after each node."""
        leaves = tree.tokens.new_full((len(tree),), self.token)
        doubled = DraftTree(with_leaves(tree.shape), torch.cat((tree.tokens, leaves)))
        return _split(*self._scored(doubled), len(tree))


@device_cache(64)
def with_leaves(shape: TreeShape) -> TreeShape:
    """Return a shape with an additional leaf below each node. The leaves follow all nodes, in node order."""
    return TreeShape((*shape.parents, *range(len(shape))))


def _split(logits: Tensor, hidden: Mapping[int, Tensor], real: int) -> SpecTokenPass:
    """Separate the outputs of the first ``real`` rows, the tokens, from those of the [SPEC] tokens."""
    own = {layer: states[:real] for layer, states in hidden.items()}
    return SpecTokenPass(logits[:real], own, behind={layer: states[real:] for layer, states in hidden.items()})


class HybridController:
    """Controller that drafts from ``memory`` if the score reaches ``threshold``, else with ``network`` and ``builder``.

    ``threshold``: minimum score; None: an adaptive threshold, for a memory that withholds no draft. ``with_probes``: whether
    the session has [SPEC] tokens, for the notes.
    """

    def __init__(
        self, network: Drafter, builder: TreeBuilder[Any], memory: Retrieval | None = None, threshold: float | None = None,
        with_probes: bool = False,
    ) -> None:  # fmt: skip
        self.network, self.builder, self.memory = network, builder, memory
        self.threshold, self.with_probes = threshold, with_probes
        self._weighing = AdaptiveThreshold()
        self._memory_draft: Draft | None = None
        self._remembered = False

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self.network.begin(context, prefill)
        self._weighing = AdaptiveThreshold()
        if self.memory is not None:
            self.memory.begin(context, prefill)

    def draft(self, context: Context) -> Draft:
        threshold, score, self._remembered = self.threshold, None, False
        if self.memory is not None:
            # A look-up is no forward: its time must not enter the cost of the network's forwards.
            offer = self._memory_draft = replace(Retrieved().build(self.memory, context), calls=0)
            self._remembered = len(offer.tree) > 1
            if threshold is None:
                # Near the end of a run only a part of a draft fits, so the score is recomputed.
                threshold, score = self._weighing.bar(), expected(offer)
                self._remembered &= score >= threshold
            elif offer.notes:  # the memory applies a fixed threshold itself
                score = offer.notes[0].data["score"]
            if self._remembered:
                return self._noted(offer, "suffix", context, score, threshold)
        return self._noted(self.builder.build(self.network, context), "tree", context, score, threshold)

    def _noted(self, draft: Draft, half: str, context: Context, score: float | None, threshold: float | None) -> Draft:
        """Return ``draft`` with a :class:`LastStateNote` before all other notes."""
        own = LastStateNote(half=half, length=len(context.ids), score=score, threshold=threshold, with_probe=self.with_probes)
        # A generator: notes are only computed if recorded, and outside the timed part of the round.
        notes = (SuffixNote.of(note).replace(threshold=threshold).to_note() if half == "suffix" else note for note in draft.notes)
        return replace(draft, notes=context.notes(lambda: [own.to_note(), *notes]))

    def observe(self, finished: Round) -> None:
        self._weighing.learn(finished, self._memory_draft, self._remembered)
        self.network.observe(finished)
        if self.memory is not None:
            self.memory.observe(finished)

    def close(self) -> None:
        try:
            self.network.close()
        finally:
            if self.memory is not None:
                self.memory.close()


class AdaptiveThreshold:
    """Threshold for the memory's score, from the acceptance of network and memory in this run."""

    def __init__(self) -> None:
        self._trees = self._accepted = self._expected = self._right = 0.0

    def bar(self) -> float:
        """Return the minimum score at which the memory is expected to yield more accepted tokens than the network.

        Priors are not discounted, so the threshold stays bounded if one source does not draft for long.
        """
        tree = (self._accepted + WEIGHT * TREE) / (self._trees + WEIGHT)
        return tree * (self._expected + WEIGHT) / (self._right + WEIGHT)

    def learn(self, finished: Round, memory_draft: Draft | None, remembered: bool) -> None:
        """Update from a round. ``memory_draft``: draft of the memory. ``remembered``: whether this draft was verified.

        The memory's draft is compared with the committed tokens in any case. If the network drafted and the memory's draft
        matches all committed tokens, the score counts only the matched tokens. The rest is unknown.
        """
        self._trees, self._accepted = self._trees * FADE, self._accepted * FADE
        self._expected, self._right = self._expected * FADE, self._right * FADE
        if not remembered:
            self._trees += 1
            self._accepted += len(finished.emitted) - 1
        if memory_draft is not None and len(memory_draft.tree) > 1:
            tree, score = memory_draft.tree, expected(memory_draft)
            right = len(followed(tree.host_tokens, tree.shape.parents, finished.emitted))
            cut = not remembered and right == len(finished.emitted)
            self._expected += min(score, right) if cut else score
            self._right += right


def expected(draft: Draft) -> float:
    """Return the expected number of accepted tokens of a retrieved tree: the sum of the path probabilities of all nodes."""
    probabilities = [1.0]
    for parent, share in zip(draft.tree.shape.parents[1:], draft.confidence[1:], strict=True):
        probabilities.append(probabilities[parent] * (share or 0.0))
    return sum(probabilities[1:])

"""OWL's [SPEC] token: a learned embedding after every scored token, whose state the drafter reads too.

It has the position and attention mask that the next token would have, and no token attends to it. Lee et al. (arXiv 2510.07535).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specviz.engine.interfaces import Target, TargetPass
from specviz.engine.to_device import device_cache
from specviz.engine.tree import DraftTree, TreeShape
from specviz.errors import ModelUnavailable
from specviz.targets.text import TextSession, TextTarget, joined


@dataclass(frozen=True)
class SpecTokenPass(TargetPass):
    """Target pass with [SPEC] tokens. ``behind`` are the hidden states [node, hidden] of the [SPEC] token below each node, by
    layer; after a prefill, only the one after the last position, [1, hidden]."""

    behind: Mapping[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class SpecToken:
    """Opener of sessions with a [SPEC] token whose ``embedding`` is [hidden]."""

    embedding: Tensor
    unshared = (
        "A batched pass does not support the [SPEC] token that this method inserts after every token: "
        "give the parameter probe=false, or run the prompts one after another."
    )

    def open(self, target: Target, capacity: int, taps: Sequence[int]) -> SpecTokenSession:
        """Open a session. Raises ContextFull beyond the model's context, ModelUnavailable for an unsupported target."""
        if type(target) is not TextTarget:
            raise ModelUnavailable(f"{target.name} does not support the [SPEC] token; give the parameter probe=false.")
        if target.boundary:
            raise ModelUnavailable(
                f"{target.name} changes its rotary factors behind {target.boundary} tokens, which a [SPEC] token would bring "
                "forward; give the parameter probe=false."
            )
        target.refuse(capacity)
        return SpecTokenSession(target, capacity, tuple(taps), self.embedding)


class SpecTokenSession(TextSession):
    """One run's cache, which never keeps a [SPEC] token."""

    def __init__(self, target: TextTarget, capacity: int, taps: tuple[int, ...], embedding: Tensor) -> None:
        self.token = target.vocab_size
        """Id of the [SPEC] token: the first one after the vocabulary."""
        table = target.model.get_input_embeddings()

        def embed(tokens: Tensor) -> Tensor:
            own = table(tokens.clamp_max(self.token - 1))
            return torch.where((tokens == self.token)[..., None], embedding.to(own), own)

        super().__init__(target, capacity, taps, embed)

    def padded(self, nodes: int) -> int:
        """As :meth:`TextSession.padded`, for twice the rows."""
        return super().padded(2 * nodes)

    def prefill(self, ids: Sequence[int]) -> SpecTokenPass:
        """As :meth:`TextSession.prefill`, with a [SPEC] token after the last of ``ids``."""
        passes, behind = list[TargetPass](), dict[int, Tensor]()
        for start, end in self._pieces(len(ids)):
            if end < len(ids):
                passes.append(self._read(ids[start:end]))
                continue
            logits, hidden = self._chain([*ids[start:], self.token], last=2)
            self._cache.advance(end - start)
            self._cache.rewind(self.length)  # drops the [SPEC] token's keys and values
            last = _split(logits[:1], hidden, end - start)
            passes, behind = [*passes, last], dict(last.behind)
        read = joined(passes)
        return SpecTokenPass(read.logits, read.hidden, behind=behind)

    def score(self, tree: DraftTree) -> SpecTokenPass:
        """As :meth:`TextSession.score`, with a [SPEC] token below each node."""
        leaves = tree.tokens.new_full((len(tree),), self.token)
        doubled = DraftTree(with_leaves(tree.shape), torch.cat((tree.tokens, leaves)))
        return _split(*self._scored(doubled), len(tree))


@device_cache(64)
def with_leaves(shape: TreeShape) -> TreeShape:
    """Return the shape with one more leaf below each node; the leaves come after all nodes, in the nodes' order."""
    return TreeShape((*shape.parents, *range(len(shape))))


def _split(logits: Tensor, hidden: Mapping[int, Tensor], real: int) -> SpecTokenPass:
    """Split the outputs into those of the tokens and those of the [SPEC] tokens after them."""
    own = {layer: states[:real] for layer, states in hidden.items()}
    return SpecTokenPass(logits[:real], own, behind={layer: states[real:] for layer, states in hidden.items()})

"""Copy of a target in 8 bits for a GPU: the model's own class with other linear layers, captured in CUDA graphs like a target.

On a GPU, kernel launches dominate a pass over few rows: a copy with fewer bytes but without a captured pass is slower than a
captured target. :mod:`quantised_copy` has the copy for a CPU. Embedding, norms and buffers are the target's own tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from specviz.drafting.networks.attention import Layout
from specviz.engine.interfaces import Session, Target, TargetPass
from specviz.engine.stop import heed
from specviz.engine.tree import DraftTree
from specviz.errors import ModelUnavailable
from specviz.targets.text import TextTarget


class FewBitLinear(nn.Module):
    """A frozen linear layer with its matrix in this ``layout``."""

    def __init__(self, linear: nn.Linear, layout: Layout) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.product = layout(linear.weight)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        output = self.product(x.flatten(0, -2)).unflatten(0, x.shape[:-1])
        return output if self.bias is None else output + self.bias


def captured_copy(
    target: Target, layouts: tuple[Layout, Layout], layer_numbers: Sequence[int] | None = None, name: str = ""
) -> TextTarget:
    """Copy the target with its layers' and its head's matrices in these ``layouts``, and only the layers ``layer_numbers``
    (None: all). Raises ModelUnavailable for a target with recurrent layers, over several devices, or of an unsupported
    architecture.
    """
    if not isinstance(target, TextTarget) or target.spread:
        raise ModelUnavailable(
            f"{target.name} has recurrent layers or lies on several devices, and a copy of it would have neither: choose another "
            "intermediate model, such as small_draft."
        )
    own = target.model
    shared = {id(tensor): tensor for tensor in (*own.parameters(), *own.buffers())}
    model = copy.deepcopy(own, shared)
    body = model.get_decoder()
    if len(getattr(body, "layers", ())) != len(target.kinds):
        raise ModelUnavailable(f"{target.name} cannot be copied in a cheaper form: its layers are not where they are looked for.")
    if layer_numbers is not None:
        _leave_out(model, body, layer_numbers)
    head = model.get_output_embeddings()
    for module in list(model.modules()):
        for part, child in list(module.named_children()):
            if type(child) is nn.Linear:
                heed()
                setattr(module, part, FewBitLinear(child, layouts[child is head]))
    return TextTarget(model, name or target.name, sorted(target.eos_ids), target.tier)


def _leave_out(model: Any, body: Any, layer_numbers: Sequence[int]) -> None:
    """Keep only these layers, renumbered, since a layer's number is its index in the cache."""
    body.layers = nn.ModuleList([body.layers[number] for number in layer_numbers])
    for number, layer in enumerate(body.layers):
        layer.self_attn.layer_idx = number
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    config.num_hidden_layers = len(layer_numbers)
    if kinds:
        config.layer_types = [kinds[number] for number in layer_numbers]


class ShorterSession:
    """Session of a copy without some layers. ``taps`` are numbered as in the whole model; each is the input of the first
    remaining layer from there on."""

    def __init__(self, copied: Target, capacity: int, taps: Sequence[int], layer_numbers: Sequence[int]) -> None:
        self._places = {tap: sum(number < tap for number in layer_numbers) for tap in taps}
        self._session: Session = copied.open(capacity, sorted(set(self._places.values())))

    @property
    def length(self) -> int:
        """Committed tokens in the cache."""
        return self._session.length

    def padded(self, nodes: int) -> int:
        """Rows of a pass over ``nodes``, padding included."""
        return self._session.padded(nodes)

    def prefill(self, ids: Sequence[int]) -> TargetPass:
        """Append ``ids`` to the cache."""
        return self._numbered(self._session.prefill(ids))

    def score(self, tree: DraftTree) -> TargetPass:
        """One pass over the tree."""
        return self._numbered(self._session.score(tree))

    def _numbered(self, scored: TargetPass) -> TargetPass:
        return TargetPass(scored.logits, {tap: scored.hidden[place] for tap, place in self._places.items()})

    def keep(self, path: Sequence[int]) -> None:
        """Keep the entries of these nodes of the last tree."""
        self._session.keep(path)

    def rewind(self, length: int) -> None:
        """Drop all but the first ``length`` tokens from the cache."""
        self._session.rewind(length)

    def close(self) -> None:
        """Release the memory."""
        self._session.close()

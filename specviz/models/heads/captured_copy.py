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
from specviz.engine.interfaces import Target
from specviz.engine.stop import heed
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
    layers = getattr(model.get_decoder(), "layers", ())
    if len(layers) != len(target.kinds):
        raise ModelUnavailable(f"{target.name} cannot be copied in a cheaper form: its layers are not where they are looked for.")
    skipped = [layer for number, layer in enumerate(layers) if layer_numbers is not None and number not in layer_numbers]
    for layer in skipped:
        layer.forward = _unchanged
    left_out, head = {id(module) for layer in skipped for module in layer.modules()}, model.get_output_embeddings()
    for module in list(model.modules()):
        for part, child in list(module.named_children()):
            if type(child) is nn.Linear and id(child) not in left_out:
                heed()
                setattr(module, part, FewBitLinear(child, layouts[child is head]))
    return TextTarget(model, name or target.name, sorted(target.eos_ids), target.tier)


def _unchanged(hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
    """The forward pass of a layer that is left out: it keeps its number, which hidden states and the cache go by."""
    return hidden_states

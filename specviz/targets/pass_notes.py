"""Notes of a state-space pass over a tree, computed only when notes are recorded."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from specviz.engine.state_space import Activations, Carried, Recurrence
from specviz.engine.tree import TreeShape
from specviz.trace.notes.models import DecayHead, DecayMaskNote
from specviz.trace.schema import Note

SHOWN = (("slow", 0.1), ("middle", 0.5), ("fast", 0.9))
"""Heads worth showing, by how quickly they forget: their place in that order, 0 for the slowest."""
LARGEST = 96


@dataclass(frozen=True)
class PassNotes:
    """``carried`` is what the pass started from; called, it gives the pass's notes."""

    layers: Recurrence
    passed: Activations
    shape: TreeShape
    carried: Carried
    kinds: tuple[str, ...]

    def __call__(self) -> tuple[Note, ...]:
        """A note on the L matrix: logarithms of decay along every path for three heads, and what each way of keeping
        states would cost. A tree beyond ``LARGEST`` nodes, or a lone root, has none."""
        nodes = len(self.shape)
        if not 1 < nodes <= LARGEST:
            return ()
        log_decay = self.passed.steps * self.layers.rate.unsqueeze(-2)
        fade = self.shape.ancestors_on(log_decay.device).to(log_decay.dtype) @ log_decay
        order = (-log_decay.mean(-2)).flatten().argsort().tolist()
        state = self.carried.state
        state_bytes = state.numel() * state.element_size()
        return (
            DecayMaskNote(
                heads=[self._head(fade, order, *which) for which in SHOWN],
                taps=self.layers.taps,
                layers=["attention" if kind == "attention" else "state" for kind in self.kinds],
                state_bytes=state_bytes,
                per_node_bytes=state_bytes * nodes,
                replay_bytes=self.passed.bytes,
            ).to_note(),
        )

    def _head(self, fade: Tensor, order: list[int], name: str, place: float) -> DecayHead:
        """One head's logarithms of decay from the carried state to every node."""
        heads = self.layers.heads
        index = order[min(len(order) - 1, int(place * len(order)))]
        layer, head = divmod(index, heads)
        states = [number for number, kind in enumerate(self.kinds) if kind == "state"]
        values = [round(float(log_decay), 3) for log_decay in fade[layer, :, head].tolist()]
        return DecayHead(name, states[layer], head, values)

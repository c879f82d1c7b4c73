"""Recurrent draft network that reads only the target's states at the last token (OWL, arXiv 2510.07535).

The network reads the target's final hidden states at the last token and at a probe token after it, and then only the drafted
tokens. Without attention, nothing depends on the length of the text. The cell is the paper's: an LSTM with GELU after layer
normalisation. Input embedding and head are the target's. Axis names: ``row``, ``hidden`` (of the target), ``width`` (of the
cell), ``support`` (the draft vocabulary).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specviz.drafting.networks.decoder_layer import Layout, Product, plain
from specviz.drafting.networks.network import Network

State = tuple[Tensor, Tensor]
"""State of the cell: output and memory, each [row, width]."""


@dataclass(frozen=True)
class RecurrentConfig:
    """Sizes of the network. ``tap``: index, in transformers' numbering, of the target's hidden state that it reads."""

    vocab_size: int
    hidden: int
    tap: int
    entry: int = 336
    word: int = 208
    width: int = 288
    eps: float = 1e-6


class Cell:
    """Steps of the cell. ``enter``, ``word``, ``first`` and ``later``: products with the cell's matrices."""

    config: RecurrentConfig
    embedding: Tensor
    enter: Product
    word: Product
    first: Product
    later: Product

    def begin(self, features: Tensor, tokens: Tensor) -> State:
        """Return the cell's state from the target's states [row, 2 * hidden] (last token, probe) and the next tokens [row]."""
        entered = self.enter(unit(features, self.config))
        gates = self.first(torch.cat((entered, self.embedded(tokens)), dim=-1))
        return cell(gates, torch.zeros(len(tokens), self.config.width, dtype=gates.dtype, device=gates.device))

    def go_on(self, state: State, tokens: Tensor) -> State:
        """Advance the state by one token."""
        return cell(self.later(torch.cat((state[0], self.embedded(tokens)), dim=-1)), state[1])

    def embedded(self, tokens: Tensor) -> Tensor:
        """Return the cell's input [row, word] for tokens [row]."""
        return self.word(F.rms_norm(F.embedding(tokens, self.embedding), (self.config.hidden,), eps=self.config.eps))


class RecurrentNet(Cell, Network):
    """The network for training.

    ``embedding`` [vocab, hidden] and ``head`` [support, hidden]: the target's tensors, frozen and shared. ``probe`` [hidden]:
    learned embedding of the probe. ``draft_ids`` [support]: token ids of the head's rows.
    """

    title, shape, needs_vocabulary = "recurrent drafter", RecurrentConfig, True
    head: Tensor
    enter: nn.Linear
    word: nn.Linear
    first: nn.Linear
    later: nn.Linear

    def __init__(self, config: RecurrentConfig, embedding: Tensor, head: Tensor, draft_ids: Tensor) -> None:
        super().__init__(config, embedding, head, draft_ids)
        self.enter = nn.Linear(2 * config.hidden, config.entry, bias=False)
        self.word = nn.Linear(config.hidden, config.word, bias=False)
        self.first = nn.Linear(config.entry + config.word, 4 * config.width, bias=False)
        self.later = nn.Linear(config.width + config.word, 4 * config.width, bias=False)
        self.leave = nn.Linear(config.width, config.hidden, bias=False)
        self.norm = nn.Parameter(torch.ones(config.hidden))
        self.probe = nn.Parameter(torch.zeros(config.hidden))

    def logits(self, output: Tensor) -> Tensor:
        """Map the cell's output [row, width] to logits [row, support]."""
        ready = F.rms_norm(self.leave(output).to(self.norm), (self.config.hidden,), self.norm, self.config.eps)
        return F.linear(ready, self.head)

    def runtime(self, layout: Layout = plain) -> RecurrentRuntime:
        """Return the inference runtime."""
        return RecurrentRuntime(self, layout)


def unit(features: Tensor, config: RecurrentConfig) -> Tensor:
    """Scale each of the two states [row, 2 * hidden] to unit mean square; a missing state (zeros) stays zero."""
    pair = features.view(len(features), 2, config.hidden)
    return F.rms_norm(pair, (config.hidden,), eps=config.eps).flatten(1)


def cell(gates: Tensor, memory: Tensor) -> State:
    """Apply forget, input, output and candidate gates [row, 4 * width] to a memory [row, width]."""
    forget, into, out, fresh = gates.chunk(4, dim=-1)
    memory = memory * forget.sigmoid() + _activate(fresh) * into.sigmoid()
    return _activate(memory) * out.sigmoid(), memory


def _activate(x: Tensor) -> Tensor:
    return F.gelu(F.layer_norm(x, (x.shape[-1],)))


class RecurrentRuntime(Cell):
    """Inference runtime: frozen weights, packed for the machine and shared between runs, which keep their own states."""

    def __init__(self, net: RecurrentNet, layout: Layout) -> None:
        self.config, self.draft_ids, self.probe = net.config, net.draft_ids, net.probe
        self.embedding, self.device = net.embedding, net.embedding.device
        self.enter, self.word = layout(net.enter.weight), layout(net.word.weight)
        self.first, self.later = layout(net.first.weight), layout(net.later.weight)
        self._leave, self._head = layout(net.leave.weight), layout((net.head * net.norm).contiguous())

    def logits(self, output: Tensor) -> Tensor:
        return self._head(F.rms_norm(self._leave(output), (self.config.hidden,), eps=self.config.eps))

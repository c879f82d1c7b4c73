"""Recurrent drafter network that reads the target's last token alone: OWL (arXiv 2510.07535).

It reads the target's final hidden state at the last token (and that of a probe behind it) once, and then only the tokens
it drafts itself. There is no attention, so nothing in it depends on how long the text is. The cell is the paper's, an LSTM
whose non-linearity is GeLU after layer normalisation; every token enters through the target's own embedding, and the output
is read by the target's own head.
Axis names: ``row``, ``hidden`` (of the target), ``width`` (of the cell), ``support`` (the draft vocabulary).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specviz.drafting.networks.weights import read_weights, write_weights
from specviz.errors import ModelUnavailable

Product = Callable[[Tensor], Tensor]
Layout = Callable[[Tensor], Product]
"""How a matrix [out, in] is kept for products."""
State = tuple[Tensor, Tensor]
"""What the cell hands on: output and memory, [row, width] each."""


@dataclass(frozen=True)
class RecurrentConfig:
    """The network's shape. ``tap`` is the target's hidden state it reads (transformers' numbering)."""

    vocab_size: int
    hidden: int
    tap: int
    entry: int = 336
    word: int = 208
    width: int = 288
    eps: float = 1e-6


class RecurrentNet(nn.Module):
    """``embedding`` [vocab, hidden] and ``head`` [support, hidden] are the target's own, frozen and shared; ``probe``
    [hidden] is the embedding of the probe, learned; ``draft_ids`` [support] names the head's rows."""

    embedding: Tensor
    head: Tensor
    draft_ids: Tensor

    def __init__(self, config: RecurrentConfig, embedding: Tensor, head: Tensor, draft_ids: Tensor) -> None:
        super().__init__()
        if embedding.shape != (config.vocab_size, config.hidden):
            raise ModelUnavailable(
                f"This drafter was made for an embedding of {config.vocab_size} x {config.hidden}, "
                f"the target has {embedding.shape[0]} x {embedding.shape[1]}: choose the target it was trained for."
            )
        self.config = config
        self.enter = nn.Linear(2 * config.hidden, config.entry, bias=False)
        self.word = nn.Linear(config.hidden, config.word, bias=False)
        self.first = nn.Linear(config.entry + config.word, 4 * config.width, bias=False)
        self.later = nn.Linear(config.width + config.word, 4 * config.width, bias=False)
        self.leave = nn.Linear(config.width, config.hidden, bias=False)
        self.norm = nn.Parameter(torch.ones(config.hidden))
        self.probe = nn.Parameter(torch.zeros(config.hidden))
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("head", head[draft_ids].contiguous(), persistent=False)
        self.register_buffer("draft_ids", draft_ids.long(), persistent=False)

    def begin(self, features: Tensor, tokens: Tensor) -> State:
        """From the last token's states [row, 2 * hidden], token's then probe's, and the token after it [row]."""
        entered = self.enter(unit(features, self.config))
        gates = self.first(torch.cat((entered, self.embedded(tokens)), dim=-1))
        return cell(gates, torch.zeros(len(tokens), self.config.width, dtype=gates.dtype, device=gates.device))

    def go_on(self, state: State, tokens: Tensor) -> State:
        """One token further."""
        return cell(self.later(torch.cat((state[0], self.embedded(tokens)), dim=-1)), state[1])

    def embedded(self, tokens: Tensor) -> Tensor:
        """[row, word]: tokens as the cell reads them."""
        return self.word(F.rms_norm(F.embedding(tokens, self.embedding), (self.config.hidden,), eps=self.config.eps))

    def logits(self, output: Tensor) -> Tensor:
        """The cell's output [row, width] to logits [row, support]."""
        ready = F.rms_norm(self.leave(output).to(self.norm), (self.config.hidden,), self.norm, self.config.eps)
        return F.linear(ready, self.head)


def unit(features: Tensor, config: RecurrentConfig) -> Tensor:
    """Both states [row, 2 * hidden], each scaled to unit mean square; one that is missing (zeros) stays so."""
    pair = features.view(len(features), 2, config.hidden)
    return F.rms_norm(pair, (config.hidden,), eps=config.eps).flatten(1)


def cell(gates: Tensor, memory: Tensor) -> State:
    """Forget, input, output and candidate [row, 4 * width] on a memory [row, width]."""
    forget, into, out, fresh = gates.chunk(4, dim=-1)
    memory = memory * forget.sigmoid() + _bend(fresh) * into.sigmoid()
    return _bend(memory) * out.sigmoid(), memory


def _bend(x: Tensor) -> Tensor:
    return F.gelu(F.layer_norm(x, (x.shape[-1],)))


def plain(weight: Tensor) -> Product:
    """The matrix as it is."""
    return partial(F.linear, weight=weight)


class RecurrentStepper:
    """Frozen weights laid out for the machine; shared between runs, each of which has its own states."""

    def __init__(self, net: RecurrentNet, layout: Layout = plain) -> None:
        self.config, self.draft_ids, self.probe = net.config, net.draft_ids, net.probe
        self._embedding = net.embedding
        self._enter, self._word = layout(net.enter.weight), layout(net.word.weight)
        self._first, self._later = layout(net.first.weight), layout(net.later.weight)
        self._leave, self._head = layout(net.leave.weight), layout((net.head * net.norm).contiguous())

    def begin(self, features: Tensor, tokens: Tensor) -> State:
        """See :meth:`RecurrentNet.begin`."""
        entered = self._enter(unit(features, self.config))
        gates = self._first(torch.cat((entered, self._embedded(tokens)), dim=-1))
        return cell(gates, torch.zeros(len(tokens), self.config.width, dtype=gates.dtype, device=gates.device))

    def go_on(self, state: State, tokens: Tensor) -> State:
        """See :meth:`RecurrentNet.go_on`."""
        return cell(self._later(torch.cat((state[0], self._embedded(tokens)), dim=-1)), state[1])

    def _embedded(self, tokens: Tensor) -> Tensor:
        words = F.rms_norm(F.embedding(tokens, self._embedding), (self.config.hidden,), eps=self.config.eps)
        return self._word(words)

    def logits(self, output: Tensor) -> Tensor:
        """See :meth:`RecurrentNet.logits`."""
        return self._head(F.rms_norm(self._leave(output), (self.config.hidden,), eps=self.config.eps))


def save(net: RecurrentNet, path: Path, card: Mapping[str, str]) -> None:
    """Write the learned weights (row-wise int8), the vocabulary and ``card``; the target's own are left out."""
    tensors = {name: value.detach() for name, value in net.state_dict().items()}
    tensors["draft_ids"] = net.draft_ids
    path.parent.mkdir(parents=True, exist_ok=True)
    write_weights(path, tensors, {**card, "config": json.dumps(asdict(net.config))})


def load(path: Path, embedding: Tensor, head: Tensor, dtype: torch.dtype, device: torch.device) -> RecurrentNet:
    """The drafter in ``path`` on the target's ``embedding`` and ``head`` [vocab, hidden].

    Raises ModelUnavailable when the file is none of ours or does not fit the target.
    """
    tensors, card = read_weights(path)
    if "config" not in card or "draft_ids" not in tensors:
        raise ModelUnavailable(f"{path.name} is no recurrent drafter: choose a file written by this app's training.")
    config = RecurrentConfig(**json.loads(card["config"]))
    ids = tensors.pop("draft_ids")
    net = RecurrentNet(config, embedding.detach().to(device, dtype), head.detach().to(device, dtype), ids.to(device))
    try:
        net.load_state_dict(tensors)
    except RuntimeError as problem:
        raise ModelUnavailable(f"{path.name} does not hold this drafter's weights: fetch the file again.") from problem
    return net.to(device, dtype).eval().requires_grad_(False)

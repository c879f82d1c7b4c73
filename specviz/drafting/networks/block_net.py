"""Semi-autoregressive network (Falcon): a recurrence over features, then one decoder layer over whole blocks of k positions.

Falcon (Gao et al., arXiv 2412.12639). Axis names: ``batch``, ``token`` (an input), ``hidden`` (of the target), ``width`` (of the
recurrence), ``head``, ``size`` (of a head), ``draft`` (the draft vocabulary).

Alignment, with k = ``block``: input i pairs the target's feature f_i with the embedding of token i + 1. Output i predicts
f_{i+k}, which yields the distribution of token i + k + 1. Inputs come in blocks of k, and a query attends to its own block and to
earlier blocks.

While drafting, P inputs are committed (token P is the root) and the last block is inputs P-k … P-1. The outputs of this block
predict f_P … f_{P+k-1}, the distributions of the k tokens after the root.

Only a query's mask depends on where blocks begin; keys and values come from a causal recurrence. Cached entries therefore stay
valid however many tokens are committed, and training may begin blocks at any phase.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specviz.drafting.networks.decoder_layer import Layout, Product, plain
from specviz.drafting.networks.network import Network
from specviz.drafting.networks.rotary import rates_of, turn

State = tuple[Tensor, Tensor]
"""Hidden and cell state of the recurrence, each [layer, batch, width]."""

# Up to this many inputs, single steps are faster on a CPU than the fused kernel, which first repacks all weights.
_SHORT = 4


@dataclass(frozen=True)
class BlockConfig:
    """Sizes of the network.

    ``tap``: index, in transformers' numbering, of the target's hidden state that the network and the target's head read. Hidden
    size, heads, rotary base and epsilon are the target's.
    """

    vocab_size: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    inner: int
    tap: int
    theta: float = 10000.0
    epsilon: float = 1e-5
    draft_vocab: int = 8192
    block: int = 2
    width: int = 320
    recurrent_layers: int = 2


class Layer(nn.Module):
    """One Llama layer over rows [batch, token, hidden], split so that keys and values can be cached."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.config = config
        reads, keys = config.heads * config.head_size, config.kv_heads * config.head_size
        self.before = nn.Parameter(torch.ones(config.hidden))
        self.qkv = nn.Linear(config.hidden, reads + 2 * keys, bias=False)
        self.out = nn.Linear(reads, config.hidden, bias=False)
        self.between = nn.Parameter(torch.ones(config.hidden))
        self.up = nn.Linear(config.hidden, 2 * config.inner, bias=False)
        self.down = nn.Linear(config.inner, config.hidden, bias=False)

    def project(self, x: Tensor, turns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries [batch, head, token, size], rotated keys and plain values (fewer heads); ``turns``: rotary
        factors."""
        config = self.config
        mixed = self.qkv(_norm(x, self.before, config.epsilon))
        mixed = mixed.view(*x.shape[:2], -1, config.head_size).transpose(1, 2)
        turned, value = mixed.split((config.heads + config.kv_heads, config.kv_heads), dim=1)
        query, key = turn(turned, *turns).split((config.heads, config.kv_heads), dim=1)
        return query, key, value

    def finish(self, x: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Return the layer's output from its input and the keys and values to attend to; ``mask`` is bool [.., token, column]."""
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
        x = x + self.out(attended.transpose(1, 2).reshape(*x.shape[:2], -1))
        gate, up = self.up(_norm(x, self.between, self.config.epsilon)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class FrozenLinear(nn.Module):
    """Frozen linear layer with a packed matrix."""

    def __init__(self, product: Product) -> None:
        super().__init__()
        self.product = product

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x)


@dataclass(frozen=True)
class Step:
    """Weights of a recurrent layer for single steps.

    ``enter``: product for the input. ``again``: product for the layer's previous output. ``bias``: sum of the two biases.
    """

    enter: Product
    again: Product
    bias: Tensor


class BlockNet(Network):
    """Network on the target's embedding [vocab, hidden]. The target's ``head`` reads the output features."""

    title, shape, needs_vocabulary = "block drafter", BlockConfig, True
    head: Tensor
    centre: Tensor
    scale: Tensor

    def __init__(self, config: BlockConfig, embedding: Tensor, head: Tensor, draft_ids: Tensor) -> None:
        """``head``: the target's [vocab, hidden]; only the rows of ``draft_ids`` [draft] are used."""
        super().__init__(config, embedding, head, draft_ids, rates_of(config.head_size, config.theta))
        self.recurrence = nn.LSTM(2 * config.hidden, config.width, config.recurrent_layers, batch_first=True)
        self.leave = nn.Linear(config.width, config.hidden, bias=False)
        self.layer = Layer(config)
        # Some entries of a feature are ten times larger than others and far from zero; standardising them stabilises training.
        self.register_buffer("centre", torch.zeros(2 * config.hidden))
        self.register_buffer("scale", torch.ones(2 * config.hidden))
        self._steps: tuple[Step, ...] = ()
        self._speak: Product | None = None

    @property
    def block(self) -> int:
        """Number of positions per forward (k)."""
        return self.config.block

    def inputs(self, tokens: Tensor, features: Tensor) -> Tensor:
        """Return the recurrence's inputs from tokens i + 1 [.., token] and features i [.., token, hidden]."""
        pair = torch.cat((F.embedding(tokens, self.embedding), features.to(self.embedding.dtype)), dim=-1)
        return (pair - self.centre) * self.scale

    def zero(self) -> State:
        """Return the state of one text before the first input."""
        shape = (self.config.recurrent_layers, 1, self.config.width)
        return self.embedding.new_zeros(shape), self.embedding.new_zeros(shape)

    def forward(self, tokens: Tensor, features: Tensor, phase: int = 0) -> Tensor:
        """Map inputs 0, 1, … of whole texts to outputs [batch, token, hidden]; for training.

        Blocks begin at inputs whose index is ``phase`` modulo k; earlier inputs form a short block.
        """
        token = tokens.shape[1]
        self.reach(token)
        x = self.leave(self.recurrence(self.inputs(tokens, features))[0])
        places = torch.arange(token, device=tokens.device)
        query, key, value = self.layer.project(x, self.turns(places))
        number = (places - phase).div(self.block, rounding_mode="floor")
        return self.layer.finish(x, query, key, value, number[None, :] <= number[:, None])

    def recur(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Run the recurrence over further inputs [batch, token, 2 hidden] after ``state``.

        Returns the decoder layer's inputs [batch, token, hidden] and the new state.
        """
        if inputs.shape[1] > _SHORT:
            outputs, state = self.recurrence(inputs, state)
            return self.leave(outputs), state
        hidden, cell = list(state[0]), list(state[1])
        for number, step in enumerate(self._steps or self._step_by_step()):
            gates, outputs = step.enter(inputs) + step.bias, []
            for place in range(inputs.shape[1]):
                input_gate, forget_gate, cell_gate, output_gate = (gates[:, place] + step.again(hidden[number])).chunk(4, dim=-1)
                cell[number] = torch.sigmoid(forget_gate) * cell[number] + torch.sigmoid(input_gate) * torch.tanh(cell_gate)
                hidden[number] = torch.sigmoid(output_gate) * torch.tanh(cell[number])
                outputs.append(hidden[number])
            inputs = torch.stack(outputs, dim=1)
        return self.leave(inputs), (torch.stack(hidden), torch.stack(cell))

    def _step_by_step(self, layout: Layout = plain) -> tuple[Step, ...]:
        """Return the recurrence's layers with their current weights, packed by ``layout``."""
        weights = self.recurrence.all_weights
        return tuple(Step(layout(enter), layout(again), bias + more) for enter, again, bias, more in weights)

    def runtime(self, layout: Layout = plain) -> BlockNet:
        """Return a copy for inference, with frozen matrices packed by ``layout``."""
        network = copy.deepcopy(self, {id(shared): shared for shared in (self.embedding, self.head)})
        network._steps, network._speak = network._step_by_step(layout), layout(network.head)
        inner = ((network.layer, name) for name in ("qkv", "out", "up", "down"))
        for part, name in ((network, "leave"), *inner):
            setattr(part, name, FrozenLinear(layout(getattr(part, name).weight)))
        return network

    def logits(self, features: Tensor) -> Tensor:
        """Map features to logits [.., draft] with the target's head, restricted to the draft vocabulary."""
        return F.linear(features, self.head) if self._speak is None else self._speak(features)


def _norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Return the RMS norm of x in the weight's dtype, because training may pass bfloat16."""
    return F.rms_norm(x.to(weight.dtype), (x.shape[-1],), weight, epsilon)

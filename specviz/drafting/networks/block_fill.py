"""Block-filling drafter: one pass over an anchor and masks yields the distributions of a block of tokens.

Implements DFlash (arXiv 2602.06036), DFlash 2 (z-lab's package ``dflash``) and DSpark (arXiv 2607.05147). The network is a
small decoder. Its context is the target's hidden states at a few layers, fused into one vector per token. The decoder's layers
read the context only as keys and values.

The rows are the embeddings of the *anchor* (the root) and of masks. A row predicts the token at its own position (*fill-in*) or
at the next one (*from the anchor*). Rows of a block attend to each other but know no drafted tokens, so their distributions are
marginals.

A small head may then correct the marginals token by token. DSpark's Markov head adds a bias that depends on the previous token;
DFlash 2's selector scores pairs of adjacent tokens among the top candidates. DSpark's confidence head predicts a token's
acceptance rate before it is drafted.

Axis names: ``block``, ``slot`` (of a block), ``row``, ``hidden``, ``head``, ``kv``, ``size`` (of a head), ``support`` (the draft
vocabulary), ``rank``, ``tap``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specviz.drafting.networks.decoder_layer import DecoderLayer, Layout, add_bias, layer_tensors, plain, projections
from specviz.drafting.networks.head_config import HeadConfig
from specviz.drafting.networks.network import Network
from specviz.drafting.networks.rotary import Rotating, turn

VANILLA, GATED, RECURRENT = "vanilla", "gated", "rnn"
MARKOV = (VANILLA, GATED, RECURRENT)
"""Published names of the kinds of Markov heads."""
Around = tuple[Tensor, Callable[[Tensor], Tensor]]
"""Convolved input of a sublayer, and the function that convolves its output."""
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Attention of a layer: function of the layer's number, queries [block, slot, head, size], and the block's keys and values
[block, slot, kv, size]. Returns [block, slot, head * size]."""


@dataclass(frozen=True)
class FillConfig(HeadConfig):
    """Sizes and conventions of a block drafter with ``block`` rows, anchor included. ``mask``: token id of the other rows."""

    first_norm: bool = True
    head_norms: bool = True
    block: int = 16
    mask: int = 0
    from_anchor: bool = False
    """Whether a row predicts the token after its own position, so that the anchor's row also predicts one."""
    causal: tuple[bool, ...] = ()
    """Per layer, whether a row attends to no later row of its block; () for no layer."""
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    softcap: float = 0.0
    """Logit soft-capping value (tanh); 0 for no capping."""
    conv_taps: int = 0
    """Kernel size, in rows, of the convolutions around a sublayer, current row included; 0 for no convolution."""
    conv_group: int = 1
    """Number of channels that share the dynamic part of a convolution kernel."""
    candidates: int = 0
    """Number of top tokens per slot among which the selector chooses; 0 for no selector."""
    markov: str = ""
    """Kind of Markov head, one of :data:`MARKOV`; "" for none."""
    rank: int = 0
    """Rank of the Markov head or of the selector."""
    confidence: bool = False
    confidence_reads_token: bool = False
    """Whether the confidence head reads the previous token in addition to the slot's output."""
    scaled: bool = False
    """Whether the target's hidden states are scaled elementwise by factors stored separately from ``fc``.

    This stabilises training and lets the matrix be quantised to int8.
    """
    draft_vocab: int = 0
    """Size of the draft vocabulary; 0 for the target's vocabulary."""

    @property
    def slots(self) -> int:
        """Number of tokens that a full block drafts."""
        return self.block if self.from_anchor else self.block - 1

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the learned tensors by published name."""
        hidden, rank, support = self.hidden, self.rank, self.draft_vocab or self.vocab_size
        shapes: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, len(self.taps) * self.target_hidden)}
        shapes |= {"hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}
        if self.scaled:
            shapes["fc.scale"] = shapes["fc.weight"][1:]
        for layer in range(self.layers):
            shapes |= {f"layers.{layer}.{name}": shape for name, shape in self._layer(layer).items()}
            for part in ("attention", "mlp") if self.conv_taps else ():
                start = f"layers.{layer}.{part}_conv"
                shapes[f"{start}.base_kernel"] = (2, self.conv_taps, hidden)
                shapes[f"{start}.kernel_projection.weight"] = (2 * self.conv_taps * hidden // self.conv_group, hidden)
        if self.candidates:
            books = {f"candidate_selector.{name}_codebook": (self.vocab_size, rank) for name in ("predecessor", "successor")}
            shapes |= {**books, "candidate_selector.hidden_projection.weight": (rank, hidden)}
        if self.markov:
            shapes |= {"markov_head.markov_w1.weight": (self.vocab_size, rank), "markov_head.markov_w2.weight": (support, rank)}
        if self.markov == GATED:
            shapes |= {"markov_head.gate_proj.weight": (rank, hidden + rank), "markov_head.gate_proj.bias": (rank,)}
        elif self.markov == RECURRENT:
            shapes |= {"markov_head.joint_proj.weight": (3 * rank, 2 * rank + hidden), "markov_head.joint_proj.bias": (3 * rank,)}
        if self.confidence:
            inputs = hidden + (rank if self.confidence_reads_token else 0)
            shapes |= {"confidence_head.proj.weight": (1, inputs), "confidence_head.proj.bias": (1,)}
        return shapes


class BlockFill(Network):
    """Learned weights of a block drafter, by published name.

    ``embedding`` [vocab, hidden] and ``head`` [support, hidden]: the drafter's own or the target's. ``dialect`` (the published
    format) and ``notes``: shown to the user.
    """

    title, shape = "block-filling drafter", FillConfig
    head: Tensor

    def __init__(self, config: FillConfig, embedding: Tensor, head: Tensor, draft_ids: Tensor | None = None) -> None:
        super().__init__(config, embedding, head, draft_ids)
        for name, shape in config.shapes().items():
            module, (*path, last) = self, name.split(".")
            for part in path:
                if part not in module._modules:
                    module.add_module(part, nn.Module())
                module = module._modules[part]  # type: ignore[assignment]
            module.register_parameter(last, nn.Parameter(embedding.new_zeros(shape), requires_grad=last != "scale"))
        self.dialect, self.notes = "", tuple[str, ...]()

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Learned weights by published name."""
        return dict(self.named_parameters())

    @property
    def parameter_bytes(self) -> int:
        """Bytes of the learned weights, excluding embedding and head."""
        return sum(value.nbytes for value in self.parameters())

    def read_as(self, fields: Mapping[str, Any] | None = None, **conventions: Any) -> BlockFill:
        """Return the same weights under other conventions, or with other ``fields`` of the config."""
        other, config = copy.copy(self), self.config
        other.config = replace(config, how=replace(config.how, **conventions), **(fields or {}))
        return other

    def with_ends(self, **ends: Tensor) -> BlockFill:
        """Return the same weights with another ``embedding``, ``head`` or ``draft_ids``."""
        other = copy.copy(self)
        other._buffers = {**self._buffers, **ends}
        return other

    def runtime(self, layout: Layout = plain) -> FillRuntime:
        """Return the inference runtime."""
        return FillRuntime(self, layout)


class _Layer(DecoderLayer):
    """Decoder layer with convolutions around its sublayers. ``context``: product for keys and values only."""

    def __init__(self, config: FillConfig, part: Mapping[str, Tensor], layout: Layout) -> None:
        super().__init__(config, part, layout)
        self.before, self.between = part["input_layernorm.weight"], part["post_attention_layernorm.weight"]
        self.context = layout(projections(config, part, "kv"))
        self.queries_norm, self.keys_norm = (None if self.norm is None else self.norm[head] for head in (0, -1))
        self.around_attention, self.around_feed = (_around(config, part, name, layout) for name in ("attention", "mlp"))


class FillRuntime(Rotating):
    """Inference runtime of a block drafter, shared between runs. With the ``plain`` layout, gradients flow through it to the
    network's weights.
    """

    def __init__(self, network: BlockFill, layout: Layout = plain) -> None:
        config: FillConfig = network.config
        self.config, self.embedding, self.draft_ids = config, network.embedding, network.draft_ids
        tensors = network.tensors
        self._fc = layout(tensors["fc.weight"] * tensors["fc.scale"] if config.scaled else tensors["fc.weight"])
        self._context_norm, self._last = tensors["hidden_norm.weight"], tensors["norm.weight"]
        self._layers = [_Layer(config, layer_tensors(tensors, number), layout) for number in range(config.layers)]
        self._head = layout(network.head)
        self._small = {name: value for name, value in tensors.items() if not name.startswith(("layers.", "fc."))}
        self._bias = layout(tensors["markov_head.markov_w2.weight"]) if config.markov else None
        self._table, self.rotary = config.table, self.embedding.new_empty(2, 0)
        self.reach(1024)

    def fuse(self, states: Tensor) -> Tensor:
        """Return the context vectors [row, hidden] from the target's hidden states [row, tap * hidden]."""
        return self._norm(self._fc(states), self._context_norm)

    def keys_values(self, number: int, fused: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return a layer's keys and values [row, kv, size] for the context vectors ``fused`` at positions ``places`` [row]."""
        layer, config = self._layers[number], self.config
        mixed = add_bias(layer.context(fused), None if layer.bias is None else layer.bias[config.heads * config.head_size :])
        keys, values = mixed.unflatten(-1, (2, config.kv_heads, config.head_size)).unbind(-3)
        return self._turned(keys, layer.keys_norm, places), values

    def fill(self, tokens: Tensor, places: Tensor, attend: Attend) -> Tensor:
        """Return outputs [block, row, hidden] of blocks at positions ``places`` [block, row]. Row 0 is the anchor, with the token
        ``tokens`` [block]."""
        config, blocks, slots = self.config, *places.shape
        masks = self.embedding[config.mask].expand(blocks, slots - 1, -1)
        x = torch.cat((F.embedding(tokens, self.embedding)[:, None], masks), dim=1) * config.embedding_scale
        for number, layer in enumerate(self._layers):
            inputs, after = layer.around_attention(self._norm(x, layer.before))
            queries, keys, values = layer.enter(inputs).split((config.heads, config.kv_heads, config.kv_heads), dim=-2)
            queries, keys = self._turned(queries, layer.queries_norm, places), self._turned(keys, layer.keys_norm, places)
            x = x + after(layer.leave(attend(number, queries, keys, values)))
            inputs, after = layer.around_feed(self._norm(x, layer.between))
            x = x + after(layer.feed(inputs))
        return self._norm(x, self._last)

    def visible(self, number: int, places: Tensor, columns: Tensor) -> Tensor | None:
        """Return the attention mask, bool [.., row, column], of rows at ``places`` [.., row] over positions ``columns``
        [column]; None if all are visible.

        In a causal layer a row attends to no later row; a window limits the distance.
        """
        causal = bool(self.config.causal) and self.config.causal[number]
        window = self.config.how.windows[number] if self.config.how.windows else 0
        if not causal and not window:
            return None
        apart = places[..., None] - columns
        seen = apart >= 0 if causal else torch.ones_like(apart, dtype=torch.bool)
        return seen & (apart.abs() < window) if window else seen

    def blocks(self, fused: Tensor, tokens: Tensor, anchors: Tensor, begins: Tensor | None = None) -> Tensor:
        """Return the outputs [block, slot, hidden] of the predicting rows of blocks, all in one pass.

        ``anchors`` [block]: indices into the text ``tokens`` [token]. ``fused`` [token, hidden]: context vectors. A block attends
        to the context before its anchor, from ``begins`` [block] on.
        """
        config, context = self.config, torch.arange(len(tokens), device=tokens.device)
        self.reach(len(tokens) + config.block)
        slots = torch.arange(config.block, device=tokens.device)
        places = anchors[:, None] + slots
        known = context < anchors[:, None]
        known = (known if begins is None else known & (context >= begins[:, None]))[:, None]

        def attend(number: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            before, read = self.keys_values(number, fused, context)
            groups = len(before[0])
            near, own = self.visible(number, places, context), self.visible(number, slots, slots)
            asked = (
                queries.unflatten(2, (groups, -1)).permute(2, 3, 0, 1, 4) * config.head_size**-0.5
            )  # [kv, group, block, slot, size]
            scores = (asked.flatten(1, 3) @ before.permute(1, 2, 0)).unflatten(1, asked.shape[1:4])
            scores = scores.masked_fill(~(known if near is None else known & near), -torch.inf)
            among = asked @ keys.permute(2, 0, 3, 1)[:, None]
            among = among if own is None else among.masked_fill(~own, -torch.inf)
            weights = torch.cat((scores, among.to(scores)), dim=-1).softmax(-1).to(values)
            seen = (weights[..., : len(tokens)].flatten(1, 3) @ read.transpose(0, 1)).unflatten(1, asked.shape[1:4])
            seen = seen + weights[..., len(tokens) :] @ values.permute(2, 0, 1, 3)[:, None]
            return seen.permute(2, 3, 0, 1, 4).flatten(2)

        return self.fill(tokens[anchors], places, attend)[:, config.block - config.slots :]

    def conditional_logits(self, outputs: Tensor, tokens: Tensor, anchors: Tensor) -> Tensor:
        """Return the logits [block, slot, support] for outputs of :meth:`blocks`, given the true token before each slot."""
        state, found, logits = self.state(anchors), list[Tensor](), self.logits(outputs)
        for slot in range(logits.shape[1]):
            before = tokens[(anchors + slot).clamp_max(len(tokens) - 1)]
            one, state = self.correct(logits[:, slot], outputs[:, slot], before, state)
            found.append(one)
        return torch.stack(found, dim=1)

    def logits(self, outputs: Tensor) -> Tensor:
        """Map outputs [.., hidden] to the logits [.., support] of the marginals."""
        config, logits = self.config, self._head(outputs)
        if config.logit_scale != 1:
            logits = logits * config.logit_scale
        return torch.tanh(logits / config.softcap) * config.softcap if config.softcap else logits

    @property
    def corrects(self) -> bool:
        """Whether a slot's distribution depends on the token before it."""
        return bool(self.config.markov or self.config.candidates)

    def state(self, tokens: Tensor) -> Tensor:
        """Return the Markov head's state [row, rank] before the first slot; of width 0 if the head has none."""
        return self._last.new_zeros(len(tokens), self.config.rank if self.config.markov == RECURRENT else 0)

    def correct(self, logits: Tensor, outputs: Tensor, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return a slot's logits [row, support] given the ``tokens`` [row] before it, and the next state [row, rank].

        ``logits`` [row, support]: logits of the marginal. ``outputs`` [row, hidden]: outputs of the slot.
        """
        small, config = self._small, self.config
        if config.candidates:
            best = logits.topk(min(config.candidates, logits.shape[-1]), dim=-1)
            reading = F.linear(outputs, small["candidate_selector.hidden_projection.weight"])
            reading = reading * small["candidate_selector.predecessor_codebook"][tokens]
            following = small["candidate_selector.successor_codebook"][best.indices]
            scores = best.values + (following @ reading[..., None])[..., 0]
            return torch.full_like(logits, -torch.inf).scatter(-1, best.indices, scores), state
        if self._bias is None:
            return logits, state
        word = F.embedding(tokens, small["markov_head.markov_w1.weight"])
        if config.markov == GATED:
            word = word * self._linear("markov_head.gate_proj", outputs, word).sigmoid()
        elif config.markov == RECURRENT:
            gate, fresh, spoken = self._linear("markov_head.joint_proj", state, word, outputs).chunk(3, dim=-1)
            state = gate.sigmoid() * state + (1 - gate.sigmoid()) * fresh.tanh()
            word = spoken.tanh()
        return logits + self._bias(word), state

    def confidence(self, outputs: Tensor, tokens: Tensor) -> Tensor:
        """Return the logits [row] of a slot's predicted acceptance rate, from its ``outputs`` and the ``tokens`` before it."""
        words = [F.embedding(tokens, self._small["markov_head.markov_w1.weight"])] if self.config.confidence_reads_token else []
        return self._linear("confidence_head.proj", outputs, *words)[..., 0]

    def _linear(self, name: str, *inputs: Tensor) -> Tensor:
        return F.linear(torch.cat(inputs, dim=-1), self._small[f"{name}.weight"], self._small[f"{name}.bias"])

    def _turned(self, x: Tensor, norm: Tensor | None, places: Tensor) -> Tensor:
        """Normalise and rotate x [.., head, size] to ``places`` [..]."""
        cosine, sine = self.turns(places)[..., None, :]
        return turn(x if norm is None else self._norm(x, norm), cosine, sine)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        # Training may pass bfloat16: the norm is computed in the weight's dtype.
        return F.rms_norm(x.to(weight.dtype), (x.shape[-1],), weight, self.config.how.eps)


def _around(config: FillConfig, part: Mapping[str, Tensor], name: str, layout: Layout) -> Callable[[Tensor], Around]:
    """Return DFlash 2's pair of causal convolutions over a block, before and after a sublayer; by default, no change.

    The kernels [side, tap, hidden] are a base plus a dynamic part, computed per row and shared by a group of channels. Side 0
    convolves the sublayer's input, side 1 its output; the dynamic parts of both are computed from the input.
    """
    if not config.conv_taps:
        return lambda x: (x, lambda output: output)
    base, projection = part[f"{name}_conv.base_kernel"], layout(part[f"{name}_conv.kernel_projection.weight"])

    def around(x: Tensor) -> Around:
        kernels = base + projection(x).unflatten(-1, (2, config.conv_taps, -1)).repeat_interleave(config.conv_group, dim=-1)

        def convolved(side: int, rows: Tensor) -> Tensor:
            slots = rows.shape[1]
            shifted = (F.pad(rows, (0, 0, tap, 0))[:, :slots] * kernels[:, :, side, tap] for tap in range(config.conv_taps))
            return torch.stack(list(shifted)).sum(0)

        return convolved(0, x), partial(convolved, 1)

    return around

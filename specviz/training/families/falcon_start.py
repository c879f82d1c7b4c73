"""Where the training of a block drafter starts: from the target's last layer and linear guesses, not from noise.

A linear map from input i (feature i, embedding of token i + 1) to the features after it has a closed form. Its most telling
directions, as many as the recurrence is wide, are what the cells hold at first: their gates stand open, so that the
recurrence begins as a projection that remembers little. One cell is constant. Of it the attention makes places: a key that
is the same everywhere, turned by its rotary position, is found by a query that is the same everywhere and turned k - 1
places further; the last input of the block then stands out. What it adds is a second linear guess: how the feature k ahead
hangs on the difference between that input and one's own. Axis names: ``row`` (an input), ``hidden``, ``size`` (of a head).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafters.networks.block_net import BlockConfig, BlockNet
from specviz.training.families.feature_start import dense, fit, gated_layer, shape_of
from specviz.training.features import DialogueFeatures

# How far cells swing: enough to be heard, little enough to be linear. What the constant one is fed.
_SWING, _CONSTANT = 0.4, 1.0
# Before the gates' bend: in and out stand open, what was is mostly forgotten.
_OPEN, _FORGETTING, _QUIET = 2.0, -1.0, 0.1
# What a place scores that is exactly where a query looks, and the fastest rotary pairs, which tell neighbours apart.
_STRENGTH, _PAIRS = 30.0, 8


def block_shape(config: Any, tap: int, draft_vocab: int, **own: int) -> BlockConfig:
    """A drafter with the target's own widths and rotary positions; ``own`` are further fields."""
    target = shape_of(config, (tap,), wide=False)
    return BlockConfig(
        vocab_size=target.vocab_size, hidden=target.hidden, heads=target.heads, kv_heads=target.kv_heads,
        head_size=target.head_size, inner=target.inner, tap=tap, theta=target.theta, epsilon=target.eps,
        draft_vocab=draft_vocab, **own,
    )  # fmt: skip


@torch.no_grad()
def start(net: BlockNet, model: Any, dialogues: Sequence[DialogueFeatures]) -> None:
    """Set every weight of ``net`` from the target ``model`` and what it thought of ``texts``."""
    _take_last_layer(net, model)
    _even_out(net, torch.cat([_read(net, dialogue) for dialogue in dialogues]))
    inputs = torch.cat([_read(net, dialogue)[_rows(net, dialogue)] for dialogue in dialogues])
    ahead = [torch.cat([_ahead(net, dialogue, step) for dialogue in dialogues]) for step in range(1, net.block + 1)]
    _open_recurrence(net, _directions(inputs, torch.cat(ahead, dim=-1), net.config.width - 1))
    states = [net.recurrence(_read(net, dialogue)[None])[0][0] for dialogue in dialogues]
    own = torch.cat([state[_rows(net, dialogue)] for state, dialogue in zip(states, dialogues, strict=True)])
    net.leave.weight.copy_(fit(own, ahead[-1], 1e-3).T)
    _look_at_the_last(net, [net.leave(state) for state in states], dialogues, ahead[-1])


def _read(net: BlockNet, dialogue: DialogueFeatures) -> Tensor:
    """All inputs of a dialogue, [row, 2 hidden]."""
    return net.inputs(dialogue.tokens[1:], dialogue.features[:-1, -1])


def _rows(net: BlockNet, dialogue: DialogueFeatures) -> Tensor:
    """The inputs that draft a token of the answer."""
    first = max(0, dialogue.first - 1 - net.block)
    return torch.arange(first, len(dialogue.tokens) - 1 - net.block, device=dialogue.tokens.device)


def _ahead(net: BlockNet, dialogue: DialogueFeatures, step: int) -> Tensor:
    """The features ``step`` after each of these inputs', [row, hidden]."""
    return dialogue.features[_rows(net, dialogue) + step, -1]


def _take_last_layer(net: BlockNet, model: Any) -> None:
    last, layer = model.base_model.layers[-1], net.layer
    with gated_layer(model):
        attention, mlp = last.self_attn, last.mlp
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        layer.qkv.weight.copy_(torch.cat([dense(projection) for projection in projections]))
        layer.up.weight.copy_(torch.cat([dense(mlp.gate_proj), dense(mlp.up_proj)]))
        layer.between.copy_(last.post_attention_layernorm.weight)
    layer.out.weight.zero_()  # it speaks once it has learned to: until then the linear guesses are better
    layer.down.weight.zero_()


def _even_out(net: BlockNet, inputs: Tensor) -> None:
    """Centre and scale what the recurrence reads; until now it read ``inputs`` as they are."""
    net.centre.copy_(inputs.mean(0))
    net.scale.copy_(1 / inputs.std(0).clamp_min(1e-6))


def _principal(rows: Tensor, count: int) -> Tensor:
    """The directions [hidden, count] in which ``rows`` vary most."""
    return torch.linalg.eigh(rows.T @ rows / len(rows)).eigenvectors.flip(1)[:, :count]


def _directions(inputs: Tensor, outputs: Tensor, count: int) -> Tensor:
    """Projections [direction, in] of the inputs that say most about ``outputs``, each with a swing of _SWING."""
    linear = fit(inputs, outputs - outputs.mean(0)) / outputs.double().std(0).clamp_min(1e-6)
    chosen = linear @ _principal(inputs.double() @ linear, count)
    return (chosen / (inputs.double() @ chosen).std(0).clamp_min(1e-6)).T * _SWING


def _open_recurrence(net: BlockNet, directions: Tensor) -> None:
    """Every layer passes its input on: the first the directions and a constant, the others what is below them."""
    width = net.config.width
    generator = torch.Generator(net.embedding.device).manual_seed(0)
    for number, (enter, again, bias, more) in enumerate(net.recurrence.all_weights):
        enter.normal_(std=_QUIET * enter.shape[1] ** -0.5, generator=generator)
        again.normal_(std=_QUIET * width**-0.5, generator=generator)
        bias.zero_()
        more.zero_()
        input_gate, forget_gate, candidate, output_gate = (slice(gate * width, (gate + 1) * width) for gate in range(4))
        bias[input_gate], bias[forget_gate], bias[output_gate] = _OPEN, _FORGETTING, _OPEN
        constant = torch.arange(width - 1, 4 * width, width)  # the last cell's gates hear nothing
        enter[constant], again[constant], enter[candidate] = 0, 0, 0
        if number:
            enter[candidate] = torch.eye(width, device=enter.device) / math.tanh(_CONSTANT)
        else:
            enter[candidate][: len(directions)] = directions.to(enter)
            bias[candidate.stop - 1] = _CONSTANT


def _look_at_the_last(net: BlockNet, x: Sequence[Tensor], dialogues: Sequence[DialogueFeatures], features_ahead: Tensor) -> None:
    """In every group of heads that share keys one looks at the block's last input and one at its own; the difference
    between what the two see tells what the linear guess could not know. ``x`` are the layer's inputs by dialogue."""
    config, layer, size = net.config, net.layer, net.config.head_size
    sharing, before = config.heads // config.kv_heads, config.heads * size
    if sharing < 2:
        return
    normed = [F.rms_norm(inputs, (config.hidden,), layer.before, config.epsilon) for inputs in x]
    rows = [_rows(net, dialogue) for dialogue in dialogues]
    everywhere = torch.cat([inputs[row] for inputs, row in zip(normed, rows, strict=True)])
    constant = fit(everywhere, torch.ones_like(everywhere[:, :1]), 1e-4)[:, 0].to(layer.qkv.weight)
    into, outward = _second_guess(net, x, normed, rows, features_ahead)
    weight = layer.qkv.weight
    weight[before + config.kv_heads * size :] = into.T
    keys = weight[before : before + config.kv_heads * size]
    for group in range(config.kv_heads):
        _place(keys[group * size : (group + 1) * size], constant, config, None)
        group_output = outward[:, group * size : (group + 1) * size]
        for head, ahead, sign in ((group * sharing, config.block - 1, 1), (group * sharing + 1, 0, -1)):
            query = slice(head * size, (head + 1) * size)
            _place(weight[query], constant, config, ahead)
            layer.out.weight[:, query] = sign * group_output


def _second_guess(
    net: BlockNet, x: Sequence[Tensor], normed: Sequence[Tensor], rows: Sequence[Tensor], ahead: Tensor
) -> tuple[Tensor, Tensor]:
    """What the features ``ahead`` differ by from the first guess, as a map of (what the block's last input is seen as - one's
    own), in two factors [hidden, value] and [hidden, value]. All places of a block but the last have their say."""
    config, values = net.config, net.config.kv_heads * net.config.head_size
    apart, missing = [], []
    for further in range(1, config.block):
        apart.append(torch.cat([inputs[row + further] - inputs[row] for inputs, row in zip(normed, rows, strict=True)]))
        missing.append(ahead - torch.cat([inputs[row] for inputs, row in zip(x, rows, strict=True)]))
    if not apart:
        return ahead.new_zeros(config.hidden, values), ahead.new_zeros(config.hidden, values)
    difference = torch.cat(apart).double()
    linear = fit(difference, torch.cat(missing))
    outward = F.pad(_principal(difference @ linear, values), (0, max(0, values - config.hidden)))
    return (linear @ outward).to(ahead), outward.to(ahead)


def _place(rows: Tensor, constant: Tensor, config: BlockConfig, ahead: int | None) -> None:
    """Turn rows [size, hidden] of a projection into the same vector everywhere: a query that looks ``ahead`` of its own
    place, or (None) a key, which keeps what it has in the slow rotary pairs."""
    half = config.head_size // 2
    pairs = min(_PAIRS, half)
    loud = math.sqrt(_STRENGTH * math.sqrt(config.head_size) / pairs)
    if ahead is not None:
        rows.zero_()
    for pair in range(pairs):
        angle = (ahead or 0) * config.theta ** (-pair / half)
        rows[pair] = loud * math.cos(angle) * constant
        rows[half + pair] = loud * math.sin(angle) * constant

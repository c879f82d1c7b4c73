"""``train falcon`` (Gao et al., arXiv 2412.12639): regression and distillation of the feature k steps ahead, with glancing.

Initialisation. The layer starts from the target's last layer. The recurrence starts from a linear prediction in closed form:
from input i (feature i, embedding of token i + 1) to the features that follow. The cells hold the principal directions of this
prediction. Open gates make the untrained recurrence a projection with little memory.

One cell is constant and provides positions. A constant key, rotated by the position, matches a query with the same vector,
rotated by k - 1 further positions. The attention thus finds the last input of the block. The difference between this input and
the current one gives a second linear prediction.

The loss of a position is SmoothL1 of the feature plus 0.1 (0.9 KL + 0.1 CE) of the token under the target's head. Coupled
sequential glancing distillation, after glancing transformers (Qian et al., arXiv 2008.07905), reveals some true inputs. The
number of revealed inputs falls during training from 0.4 times the wrong positions to none. A revealed input at the start of a
block has the feature and token from k steps ahead. The network thus learns how later positions of a block depend on the first.
Revealed inputs do not count in the loss, since they contain the answer. Axis names: ``row`` and ``input`` (the network's input at
a place), ``hidden``, ``size`` (of a head).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specviz.drafting.networks.block_net import BlockConfig, BlockNet
from specviz.training import acceptance, driver, parallel
from specviz.training.data import IGNORED
from specviz.training.driver import Job, Schedule, Step
from specviz.training.families import feature
from specviz.training.families.feature import FeatureTraining, TrainInputs, dense, fit, fitting, gated_layer, shape_of
from specviz.training.features import DialogueFeatures, FeatureStore

# Standard deviation of the cell candidates, small enough for tanh to stay linear; and input of the constant cell.
_SWING, _CONSTANT = 0.4, 1.0
# Gate biases before the sigmoid: input and output open, forget mostly closed; and scale of the random weights.
_OPEN, _FORGETTING, _QUIET = 2.0, -1.0, 0.1
# Attention score at the matching position, and number of rotary pairs used: the fastest ones, which separate neighbours.
_STRENGTH, _PAIRS = 30.0, 8


def block_shape(config: Any, tap: int, draft_vocab: int, **own: int) -> BlockConfig:
    """Return the config of a drafter with the target's sizes. ``own``: further fields of the config."""
    target = vars(shape_of(config, (tap,), wide=False))
    known = {name: value for name, value in target.items() if name in BlockConfig.__dataclass_fields__}
    return BlockConfig(**known, tap=tap, epsilon=target["eps"], draft_vocab=draft_vocab, **own)


@torch.no_grad()
def start(net: BlockNet, model: Any, dialogues: Sequence[DialogueFeatures]) -> None:
    """Initialise ``net`` from the target ``model`` and the features of ``dialogues``."""
    last, layer = model.base_model.layers[-1], net.layer
    with gated_layer(model):
        attention, mlp = last.self_attn, last.mlp
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        layer.qkv.weight.copy_(torch.cat([dense(projection) for projection in projections]))
        layer.up.weight.copy_(torch.cat([dense(mlp.gate_proj), dense(mlp.up_proj)]))
        layer.between.copy_(last.post_attention_layernorm.weight)
    layer.out.weight.zero_()  # an untrained layer would distort the linear predictions
    layer.down.weight.zero_()
    inputs, block = torch.cat(_inputs(net, dialogues)), net.block
    net.centre.copy_(inputs.mean(0))
    net.scale.copy_(1 / inputs.std(0).clamp_min(1e-6))
    texts, places, begin = _inputs(net, dialogues), list[Tensor](), 0
    for dialogue, text in zip(dialogues, texts, strict=True):  # the inputs that draft an answer token
        places.append(begin + torch.arange(max(0, dialogue.first - 1 - block), len(text) - block, device=text.device))
        begin += len(text)
    rows, thoughts = torch.cat(places), torch.cat([dialogue.features[1:, -1] for dialogue in dialogues])
    ahead = [thoughts[rows + step] for step in range(block)]
    # Projections [direction, in] of the inputs that best predict the features ahead, with a standard deviation of _SWING.
    read, outputs = torch.cat(texts)[rows], torch.cat(ahead, dim=-1)
    linear = fit(read, outputs - outputs.mean(0)) / outputs.double().std(0).clamp_min(1e-6)
    chosen = linear @ _principal(read.double() @ linear, net.config.width - 1)
    _open_recurrence(net, (chosen / (read.double() @ chosen).std(0).clamp_min(1e-6)).T * _SWING)
    states = torch.cat([net.recurrence(text[None])[0][0] for text in texts])
    net.leave.weight.copy_(fit(states[rows], ahead[-1], 1e-3).T)
    _attend_to_last(net, net.leave(states), rows, ahead[-1])


def _inputs(net: BlockNet, dialogues: Sequence[DialogueFeatures]) -> list[Tensor]:
    """Return the network's inputs [row, 2 * hidden] of each dialogue."""
    return [net.inputs(dialogue.tokens[1:], dialogue.features[:-1, -1]) for dialogue in dialogues]


def _principal(rows: Tensor, count: int) -> Tensor:
    """Return the first ``count`` principal directions [hidden, count] of ``rows`` [row, hidden]."""
    return torch.linalg.eigh(rows.T @ rows / len(rows)).eigenvectors.flip(1)[:, :count]


def _open_recurrence(net: BlockNet, directions: Tensor) -> None:
    """Initialise the recurrence as a projection: the first layer outputs the ``directions`` and a constant.

    Further layers output the output of the layer below.
    """
    width = net.config.width
    generator = torch.Generator(net.embedding.device).manual_seed(0)
    for number, (enter, again, bias, more) in enumerate(net.recurrence.all_weights):
        enter.normal_(std=_QUIET * enter.shape[1] ** -0.5, generator=generator)
        again.normal_(std=_QUIET * width**-0.5, generator=generator)
        bias.zero_()
        more.zero_()
        input_gate, forget_gate, candidate, output_gate = (slice(gate * width, (gate + 1) * width) for gate in range(4))
        bias[input_gate], bias[forget_gate], bias[output_gate] = _OPEN, _FORGETTING, _OPEN
        constant = torch.arange(width - 1, 4 * width, width)  # the gates of the constant cell have no inputs
        enter[constant], again[constant], enter[candidate] = 0, 0, 0
        if number:
            enter[candidate] = torch.eye(width, device=enter.device) / math.tanh(_CONSTANT)
        else:
            enter[candidate][: len(directions)] = directions.to(enter)
            bias[candidate.stop - 1] = _CONSTANT


def _attend_to_last(net: BlockNet, x: Tensor, rows: Tensor, ahead: Tensor) -> None:
    """Initialise the attention to predict what the linear prediction misses.

    In every group of heads with shared keys, one head attends to the last input of the block and one to the current input. The
    difference of the outputs predicts ``ahead`` [row, hidden] minus the linear prediction ``x`` [input, hidden] at ``rows``.
    Every row counts as the first position of a block.
    """
    config, layer, size = net.config, net.layer, net.config.head_size
    sharing, before, values = config.heads // config.kv_heads, config.heads * size, config.kv_heads * size
    if sharing < 2:
        return
    normed = F.rms_norm(x, (config.hidden,), layer.before, config.epsilon)
    constant = fit(normed[rows], torch.ones_like(normed[rows, :1]), 1e-4)[:, 0].to(layer.qkv.weight)
    difference = (normed[rows + 1] - normed[rows]).double()
    linear = fit(difference, ahead - x[rows])
    outward = F.pad(_principal(difference @ linear, values), (0, max(0, values - config.hidden)))
    weight = layer.qkv.weight
    weight[before + values :] = (linear @ outward).T.to(ahead)
    keys, outward = weight[before : before + values], outward.to(ahead)
    for group in range(config.kv_heads):
        _place(keys[group * size : (group + 1) * size], constant, config, None)
        group_output = outward[:, group * size : (group + 1) * size]
        for head, looks, sign in ((group * sharing, config.block - 1, 1), (group * sharing + 1, 0, -1)):
            query = slice(head * size, (head + 1) * size)
            _place(weight[query], constant, config, looks)
            layer.out.weight[:, query] = sign * group_output


def _place(rows: Tensor, constant: Tensor, config: BlockConfig, ahead: int | None) -> None:
    """Initialise ``rows`` [size, hidden] of a projection to give the same vector at all positions.

    ``ahead``: number of positions by which a query is rotated further; None for a key, whose slow rotary pairs do not change.
    """
    half = config.head_size // 2
    pairs = min(_PAIRS, half)
    loud = math.sqrt(_STRENGTH * math.sqrt(config.head_size) / pairs)
    if ahead is not None:
        rows.zero_()
    for pair in range(pairs):
        angle = (ahead or 0) * config.theta ** (-pair / half)
        rows[pair] = loud * math.cos(angle) * constant
        rows[half + pair] = loud * math.sin(angle) * constant


TOKEN_WEIGHT = 0.1
SOFT, HARD = 0.9, 0.1
FIRST_RATIO = 0.4
NOISE = 0.2 * 512
"""Width of the uniform noise on features, times the number of tokens of the text."""


class BlockTraining(FeatureTraining):
    """Training of a block drafter with glancing. The optimizer treats each gate of the recurrence as a matrix.

    A peak learning rate twice as high destroys the initialisation before training finds anything better.
    """

    net: BlockNet
    share = 0.0

    def __init__(self, net: BlockNet, inputs: TrainInputs, settings: Schedule) -> None:
        self.place, store = inputs.place, inputs.store
        stacked = {name: 4 for name, _ in net.named_parameters() if name.startswith("recurrence.weight")} | {"layer.up.weight": 2}
        measured = partial(levels, net, store)
        super().__init__(net, store, inputs.training, inputs.evaluation_set, settings, self.loss_sum, measured, stacked=stacked)

    def step(self, share: float) -> Step:
        self.share = share
        return super().step(share)

    def loss_sum(self, dialogue: DialogueFeatures, generator: torch.Generator, scale: float) -> Tensor:
        """Return the loss summed over the positions that count and are not revealed, times ``scale``."""
        net, texts, truth = self.net, noisy(dialogue, generator), labels_of(self.net, self.place, dialogue)
        phase, ratio = int(torch.randint(net.block, (), generator=generator)), FIRST_RATIO * (1 - self.share)
        counts = torch.ones_like(truth.places, dtype=torch.bool)
        if ratio > 0:
            replaced = choose_glances(net, texts, truth, phase, ratio, generator)
            texts, counts = reveal(texts, replaced, net.block), ~torch.isin(truth.places, replaced)
        return scale * total_loss(net, net(*texts, phase).flatten(0, 1)[truth.places[counts]], truth, counts)


class Texts(NamedTuple):
    """Inputs of the network for several texts, padded to the longest text.

    ``tokens`` [text, input]: token after each position. ``features`` [text, input, hidden]: features at the position. Only the
    last, incomplete block of a text sees padding, and no input of this block counts.
    """

    tokens: Tensor
    features: Tensor


def side_by_side(dialogue: DialogueFeatures) -> Texts:
    """Return the inputs for one dialogue or several joined ones."""
    tokens, features = (
        pad_sequence(values.split(dialogue.lengths), batch_first=True) for values in (dialogue.tokens, dialogue.features[:, -1])
    )
    return Texts(tokens[:, 1:], features[:, :-1])


def noisy(dialogue: DialogueFeatures, generator: torch.Generator) -> Texts:
    """Return the inputs with noise on the features, since a drafter later reads approximate features."""
    (tokens, features), device = side_by_side(dialogue), dialogue.tokens.device
    noise = torch.rand(features.shape, generator=fitting(generator, device), device=device).to(features) - 0.5
    width = torch.tensor([NOISE / (length - 1) for length in dialogue.lengths], device=device)
    return Texts(tokens, features + noise * width[:, None, None])


class Labels(NamedTuple):
    """Labels of the positions that count.

    ``places`` [place]: indices into the flattened inputs. ``features`` [place, hidden]: the target's features k steps ahead.
    ``logits`` [place, draft]: logits from these features.
    """

    places: Tensor
    features: Tensor
    logits: Tensor


@torch.no_grad()
def labels_of(net: BlockNet, place: Tensor, dialogue: DialogueFeatures) -> Labels:
    """Return the labels of all positions that draft an answer token inside the draft vocabulary.

    ``place`` [vocab]: index in the draft vocabulary, or IGNORED.
    """
    (tokens, features), ahead = side_by_side(dialogue), net.block
    inside = torch.zeros(tokens.shape, dtype=torch.bool)
    for row, (begin, first, end) in zip(inside, dialogue.spans, strict=True):
        row[max(0, first - begin - 1 - ahead) : end - begin - 1 - ahead] = True
    places = inside.flatten().nonzero()[:, 0].to(tokens.device)
    places = places[place[tokens.flatten()[places + ahead]] != IGNORED]
    thoughts = features.flatten(0, 1)[places + ahead]
    return Labels(places, thoughts, net.logits(thoughts))


@torch.no_grad()
def choose_glances(net: BlockNet, texts: Texts, truth: Labels, phase: int, ratio: float, generator: torch.Generator) -> Tensor:
    """Return the inputs to reveal, int64 [input]: random first positions of blocks, after a first pass without gradients.

    The number of inputs is ``ratio`` times the number of wrong predictions.
    """
    guessed = net.logits(net(*texts, phase).flatten(0, 1)[truth.places]).argmax(-1)
    wrong = int((guessed != truth.logits.argmax(-1)).sum())
    beginnings = truth.places[(truth.places % texts.tokens.shape[1] - phase) % net.block == 0]
    return beginnings[torch.randperm(len(beginnings), generator=generator)[: round(ratio * wrong)]]


def reveal(texts: Texts, places: Tensor, block: int) -> Texts:
    """Replace the inputs ``places`` of ``texts`` by the true inputs ``block`` steps ahead."""
    flat = (rows.flatten(0, 1) for rows in texts)
    return Texts(*(rows.index_copy(0, places, rows[places + block]).view_as(own) for rows, own in zip(flat, texts, strict=True)))


def total_loss(net: BlockNet, features: Tensor, truth: Labels, counts: Tensor) -> Tensor:
    """Return the loss summed over positions.

    ``counts`` [place]: mask of the labels that count. ``features``: the network's outputs at these labels, [counted, hidden].
    """
    target_logits, logits = truth.logits[counts], net.logits(features)
    regression = F.smooth_l1_loss(features, truth.features[counts], reduction="sum") / features.shape[-1]
    soft = F.kl_div(logits.log_softmax(-1), target_logits.log_softmax(-1), reduction="sum", log_target=True)
    hard = F.cross_entropy(logits, target_logits.argmax(-1), reduction="sum")
    return regression + TOKEN_WEIGHT * (SOFT * soft + HARD * hard)


def levels(net: BlockNet, store: FeatureStore, numbers: Sequence[int]) -> dict[str, float]:
    """Return :func:`acceptance.metrics` of the levels of one forward, from every position of the answers."""
    block = net.block

    def draft(dialogue: DialogueFeatures, starts: Tensor) -> list[Tensor]:
        tokens, features, begins = dialogue.tokens[None, 1:], dialogue.features[None, :-1, -1], starts + 1 - block
        outputs = torch.stack([net(tokens, features, phase)[0] for phase in range(block)])
        return [net.logits(outputs[begins % block, begins + level]) for level in range(block)]

    return acceptance.metrics(acceptance.chain_ranks(store.get(numbers), block, draft, net.draft_ids), alone=True)


def make(job: Job) -> None:
    """Train, measure on held-out answers, and write ``assets/weights/falcon.safetensors``."""
    inputs = feature.gather(job)
    settings = driver.settings_for(job, inputs.device)
    model, store = inputs.assets.target.model, inputs.store
    shape = block_shape(model.config, store.taps[-1], len(inputs.draft_ids))
    net = BlockNet(shape, inputs.assets.embedding, inputs.head, inputs.draft_ids).to(inputs.device)
    parallel.keep_cast(net.head)
    start(net, model, store.get(inputs.fitting_set(settings)))
    state = BlockTraining(net, inputs, settings)
    feature.run(job, inputs, state, net.save)

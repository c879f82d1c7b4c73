"""Feature drafters: ``train eagle`` and ``train eagle3``, and code shared with other families.

EAGLE-3's training-time test (Li et al., arXiv 2503.01840). Step 0 is a causal pass over the target's features. In step j, the
network reads the output of step j - 1 and the true next token, as when drafting. A start attends to the keys of step 0 up to
the start, and to its own keys of steps 1 to j. To limit the cost, only a random sample of starts continues to deeper steps.
Axis names: ``token``, ``start`` (positions that draft), ``hidden``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specviz.drafting.networks.eagle_head import EagleConfig, EagleHead
from specviz.errors import ModelUnavailable
from specviz.methods.medusa.drafter import paths_of
from specviz.methods.registry import published_tree
from specviz.training import acceptance, data, driver, parallel
from specviz.training.data import IGNORED, Dialogues
from specviz.training.driver import Job, Schedule, Step, TrainState
from specviz.training.features import DialogueFeatures, FeatureStore, TrainInputs, gather, joined, read_all, target_distribution
from specviz.training.parallel import apply_padded, pad_rows

MEASURED_DIALOGUES, DEPTH = 60, 5
MARKS = (500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000)
"""Numbers of answer tokens at which the learning curve is measured."""

_DEEPEST = 64
"""Maximum number of draft steps, for the rotary table."""
Own = list[tuple[Tensor, Tensor]]
"""Keys and values [start, kv, size] of the draft steps so far."""


def unroll(
    net: EagleHead, tokens: Tensor, features: Tensor, rows: Sequence[Tensor], embedded: Tensor | None = None,
    lengths: Sequence[int] = (),
) -> list[Tensor]:  # fmt: skip
    """Return the outputs [start, hidden] of each draft step.

    In step 0, start i reads feature i and token i + 1; the output of step j predicts token i + 2 + j. ``tokens`` [token] and
    ``features`` [token, tap * hidden]: one text, or several concatenated texts of these ``lengths``. ``rows[j]`` [start]: starts
    of step j, on the host; each step has a subset of the previous step's starts. ``embedded`` [token, hidden]: embeddings, if
    not those of ``tokens``.

    The last start is repeated up to a multiple of 16, which limits the number of shapes; see :func:`pad_rows`.
    """
    words = F.embedding(tokens, net.embedding) if embedded is None else embedded
    truth, wanted = Truth(net, words, features, lengths), [len(chosen) for chosen in rows]
    rows = [torch.cat((chosen, chosen[-1:].expand(-len(chosen) % 16))).cpu() for chosen in rows]
    outputs, own = [truth.first(rows[0])], Own()
    for step, (before, chosen) in enumerate(zip(rows, rows[1:], strict=False), start=1):
        stay = torch.searchsorted(before, chosen).to(tokens.device)
        own = [(key[stay], value[stay]) for key, value in own]
        ahead = truth.words[chosen.to(tokens.device) + 1 + step]
        outputs.append(truth.deeper(chosen, ahead, outputs[-1][stay], own, step))
    return [output[:number] for output, number in zip(outputs, wanted, strict=True)]


class Truth:
    """Step 0 of the network over concatenated texts. For attention, the texts form a padded batch."""

    def __init__(self, net: EagleHead, words: Tensor, features: Tensor, lengths: Sequence[int] = ()) -> None:
        """``words`` [token, hidden]: token embeddings. ``features`` and ``lengths``: as in :func:`unroll`."""
        self.net, self._device, self._lengths = net, words.device, torch.tensor(lengths or [len(words)])
        features = pad_rows(features[: len(words) - 1])
        self.words = F.pad(words, (0, 0, 0, len(features) + 1 - len(words)))
        places = torch.arange(len(features), device=self._device)
        net.reach(len(features) + _DEEPEST)
        self._x, self._residual = net.mix(self.words[1:], net.stepped(net.fuse(features), 0))
        keys, values = net.keys_values(self._x, places)
        self._begins = self._lengths.cumsum(0) - self._lengths
        self._places = torch.arange(int(self._lengths.max()))
        at = (self._begins[:, None] + self._places).clamp_max(len(keys) - 1).to(self._device)
        self._keys, self._values = keys[at].permute(0, 2, 3, 1), values[at].transpose(1, 2)

    def first(self, chosen: Tensor) -> Tensor:
        """Return the outputs [start, hidden] of step 0 at the starts ``chosen``, which are on the host."""
        starts = chosen.to(self._device)
        return self.net.finish(self._residual[starts], self._look(chosen, self.net.queries(self._x[starts], starts), []))

    def deeper(self, chosen: Tensor, words: Tensor, features: Tensor, own: Own, step: int) -> Tensor:
        """Return the outputs [start, hidden] of a draft step. Appends the keys and values of the step to ``own``.

        ``words`` [start, hidden]: embeddings of the next tokens. ``features`` [start, hidden]: outputs of the previous step.
        """
        net, places = self.net, chosen.to(self._device) + step
        x, residual = net.mix(words, net.stepped(features, step))
        own.append(net.keys_values(x, places))
        return net.finish(residual, self._look(chosen, net.queries(x, places), own))

    def _look(self, chosen: Tensor, queries: Tensor, own: Own) -> Tensor:
        """Return the attention output [start, head * size] of ``queries`` [start, head, size] at ascending starts ``chosen``."""
        text = torch.searchsorted(self._begins, chosen, right=True) - 1
        count = torch.bincount(text, minlength=len(self._begins))
        most = int(count.max())
        slot = text * most + torch.arange(len(chosen)) - (count.cumsum(0) - count)[text]
        until = torch.zeros(len(count) * most, dtype=torch.long).index_copy(0, slot, chosen - self._begins[text])
        hidden = (self._places > until.view(len(count), most, 1)).to(self._device)
        slot = slot.to(self._device)

        def side_by_side(rows: Tensor) -> Tensor:
            padded = rows.new_zeros(len(count) * most, *rows.shape[1:]).index_copy(0, slot, rows)
            return padded.view(len(count), most, *rows.shape[1:])

        heads, size = queries.shape[1:]
        kv = self._keys.shape[1]
        asked = side_by_side(queries * size**-0.5).unflatten(2, (kv, heads // kv)).permute(0, 2, 3, 1, 4)
        scores = (asked.flatten(2, 3) @ self._keys).unflatten(2, (heads // kv, most))
        scores = scores.masked_fill(hidden[:, None, None], float("-inf"))
        mine = [(side_by_side(key).transpose(1, 2)[:, :, None], side_by_side(value).transpose(1, 2)) for key, value in own]
        weights = torch.cat((scores, *((asked * key).sum(-1, keepdim=True).to(scores) for key, _ in mine)), -1).softmax(-1)
        seen = (weights[..., : len(self._places)].flatten(2, 3).to(self._values) @ self._values).unflatten(2, (-1, most))
        for place, (_, value) in enumerate(mine):
            seen = seen + weights[..., len(self._places) + place, None] * value[:, :, None]
        return seen.permute(0, 3, 1, 2, 4).reshape(-1, heads * size)[slot]


def starts_of(dialogue: DialogueFeatures, shares: Sequence[float], generator: torch.Generator) -> list[Tensor]:
    """Return the starts of each step for one dialogue or several joined ones, see :func:`sampled_starts`."""
    several = [
        [begin + rows for rows in sampled_starts(first - begin, end - begin, shares, generator)]
        for begin, first, end in dialogue.spans
    ]
    return [torch.cat([rows[step] for rows in several if step < len(rows)]) for step in range(max(map(len, several)))]


def sampled_starts(first: int, length: int, shares: Sequence[float], generator: torch.Generator) -> list[Tensor]:
    """Return for each step a random share of the starts that draft an answer token: a subset of the previous step's, ascending.

    Start i drafts token i + 2 first, so an answer that begins at ``first`` is drafted from start first - 2 on.
    """
    order, places = torch.rand(length, generator=generator), torch.arange(length)
    inside, starts = places >= max(0, first - 2), list[Tensor]()
    for step, share in enumerate(shares):
        inside &= places < length - 2 - step
        if share < 1:
            inside &= order < share
        starts.append(inside.nonzero()[:, 0])
    return [rows for rows in starts if len(rows)]


DEPTH_WEIGHT = 0.8
# Share of the starts that continue to each step; the loss is divided by the share. Deeper steps weigh less but cost as much per
# start, so they get fewer starts.
SHARES = (1.0, 0.35, 0.25, 0.15, 0.1)
EAGLE3_TAPS = slice(0, 3)
EAGLE3_NOISE = 0.2
"""Half the width of the uniform noise on features, in units of the feature's root mean square.

Without noise and dropout, a network of this size memorises the dialogues (τ 3.2 on training dialogues, 1.9 on others).
"""
DROPOUT = 0.1
"""Dropout rate of features and embeddings."""


def eagle3_loss(net: EagleHead, place: Tensor, dialogue: DialogueFeatures, generator: torch.Generator, scale: float) -> Tensor:
    """Return EAGLE-3's loss: the weighted sum over steps and starts of the cross-entropy in nats, times ``scale``.

    ``place`` [vocab]: index in the draft vocabulary, or IGNORED. Only answer tokens inside the draft vocabulary count.
    ``dialogue``: one dialogue or several joined ones.
    """
    rows = starts_of(dialogue, SHARES, generator)
    features = dialogue.features[:, EAGLE3_TAPS].flatten(1)
    features = features + (2 * uniform(features, generator) - 1) * EAGLE3_NOISE / net.fc.scale
    words = dropout(F.embedding(dialogue.tokens, net.embedding), DROPOUT, generator)
    outputs = unroll(net, dialogue.tokens, dropout(features, DROPOUT, generator), rows, words, dialogue.lengths)
    # One call of the head for all steps: on a CPU, casting the head's weights costs as much as a step.
    drafted = torch.cat([chosen + 2 + step for step, chosen in enumerate(rows)]).to(place.device)
    weight = torch.cat([torch.full((len(chosen),), DEPTH_WEIGHT**step / SHARES[step]) for step, chosen in enumerate(rows)])
    weight = weight.to(place.device) * (place[dialogue.tokens[drafted]] != IGNORED)
    distribution, at = target_distribution(net.head, dialogue)
    losses = F.cross_entropy(apply_padded(net.logits, torch.cat(outputs)), distribution[at[drafted]], reduction="none")
    return (losses * weight).sum() * scale


def dropout(values: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Dropout at rate ``share``, with an explicit generator."""
    return values * (uniform(values, generator) >= share) / (1 - share)


def uniform(like: Tensor, generator: torch.Generator) -> Tensor:
    """Return uniform noise from 0 to 1 in the shape of ``like``."""
    return torch.rand(like.shape, generator=fitting(generator, like.device), device=like.device)


def fitting(generator: torch.Generator, device: torch.device) -> torch.Generator:
    """Return ``generator`` if it suits ``device``, else a new generator on ``device``, seeded from ``generator``."""
    if generator.device.type == device.type:
        return generator
    return torch.Generator(device).manual_seed(int(torch.randint(1 << 62, (), generator=generator)))


EAGLE_TAPS = slice(3, 4)
TOKEN_WEIGHT = 0.1
EAGLE_NOISE = 0.2 * 512
"""Width of the uniform noise on features, times the number of tokens of the text."""


def eagle_loss(net: EagleHead, dialogue: DialogueFeatures, generator: torch.Generator, scale: float) -> Tensor:
    """Return EAGLE's loss (Li et al., arXiv 2401.15077) summed over the answer tokens, times ``scale``.

    The loss is SmoothL1 between features, plus 0.1 times the cross-entropy between the distributions under the target's head.
    """
    features, lengths = dialogue.features[:, EAGLE_TAPS].flatten(1), dialogue.lengths
    noise = torch.rand(features.shape, generator=fitting(generator, features.device), device=features.device) - 0.5
    width = torch.cat([torch.full((length, 1), EAGLE_NOISE / length) for length in lengths]).to(features.device)
    rows = starts_of(dialogue, [1.0], generator)
    words = dropout(F.embedding(dialogue.tokens, net.embedding), DROPOUT, generator)
    noisy = dropout(features + noise * width, DROPOUT, generator)
    output = unroll(net, dialogue.tokens, noisy, rows, words, lengths)[0]
    return regression(net, output, features[rows[0].to(features.device) + 1])[0].sum() * scale


def regression(net: EagleHead, outputs: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
    """Return EAGLE's loss [start] of ``outputs`` against the true ``features``, and the target's logits from ``features``."""
    with torch.no_grad():
        truth = apply_padded(partial(F.linear, weight=net.head), features)
    tokens = F.cross_entropy(apply_padded(net.logits, outputs), truth.softmax(-1), reduction="none")
    return F.smooth_l1_loss(outputs, features, reduction="none").mean(-1) + TOKEN_WEIGHT * tokens, truth


Loss = Callable[[DialogueFeatures, torch.Generator, float], Tensor]
"""Function of (dialogue, generator, scale) that returns a loss. The scale is 1 over the answer tokens of the update."""
Measure = Callable[[Sequence[int]], dict[str, float]]
"""Function from dialogue numbers to metrics, including the acceptance length ``tau``."""


class DialogueTraining(TrainState):
    """Training of a drafter that is measured on held-out dialogues."""

    dialogues: Dialogues
    held_out: Sequence[int]
    measured: Measure
    marks: Sequence[int] = MARKS

    visited: Callable[[], list[int]]
    """Function that returns the dialogues read in training, without repeats and in order."""
    distinct: Callable[[], int]
    """Function that returns the number of distinct tokens read in training."""

    def compared(self, count: int) -> dict[str, float]:
        """Return the metrics of ``count`` held-out dialogues, and the numbers of dialogues and tokens read in training.

        ``gap``: acceptance length on the same number of training dialogues, minus that on the held-out dialogues.
        """
        found, read = self.measured(self.held_out[:count]), self.visited()
        known = data.greedy_only(self.dialogues, read)[:count]
        gap = self.measured(known)["tau"] - found["tau"] if known else float("nan")
        return {"read": len(read), "distinct": self.distinct(), "gap": gap, **found}

    def measure(self) -> dict[str, float]:
        return self.compared(self.settings.measured)

    def metrics(self) -> dict[str, Any]:
        """Return metrics on ``MEASURED_DIALOGUES`` dialogues, the acceptance length by kind, and the learning curve."""
        kinds = data.by_kind(self.dialogues, self.held_out[:MEASURED_DIALOGUES])
        entries = [entry for entry in self.progress.history if "distinct" in entry]
        curve = [{name: entry[name] for name in ("tokens", "distinct", "tau", "gap")} for entry in entries]
        by_kind = {f"tau, {name}": self.measured(numbers)["tau"] for name, numbers in kinds.items()}
        return {**self.compared(MEASURED_DIALOGUES), **by_kind, "curve": curve}


class FeatureTraining(DialogueTraining):
    """Training of a drafter on the target's features."""

    def __init__(
        self, net: nn.Module, store: FeatureStore, training: Sequence[int], held_out: Sequence[int], settings: Schedule,
        loss: Loss, measured: Measure, **optimizer: Any,
    ) -> None:  # fmt: skip
        super().__init__(settings, net, weights=net.state_dict(), **optimizer)
        self.net, self.store, self.training, self.held_out, self.measured = net, store, training, held_out, measured
        self.loss, self.dialogues = loss, store.dialogues
        self.begin()

    def begin(self) -> None:
        """Continue with the dialogue where the checkpoint stopped."""
        order = islice(shuffled(self.training), len(self.past()), None)
        self.stream = iter(lambda: list(islice(order, self.settings.batch)), [])

    def answers(self, numbers: Sequence[int]) -> int:
        """Return the number of answer tokens of the dialogues ``numbers``."""
        return sum(len(self.dialogues.answer(number)) for number in numbers)

    def learn_from(self, batch: Sequence[int]) -> Step:
        """Return loss and gradients per answer token. Long dialogues come first, so that all workers finish together."""
        answers, seed = self.answers(batch), 1_000_003 * self.optimizer.updates
        longest_first = sorted(batch, key=lambda number: -len(self.dialogues.of(number)))

        def loss(examples: Sequence[tuple[int, int]]) -> Tensor:
            generator = torch.Generator().manual_seed(seed + examples[0][0])
            return self.loss(joined(self.store.get([number for _, number in examples])), generator, 1.0 / answers)

        return self.learn(list(enumerate(longest_first)), loss, answers)

    def past(self) -> list[int]:
        """Return the dialogues read in training, in order: as many as have the tokens read, since batches may change in size."""
        order, read, left = shuffled(self.training), list[int](), self.progress.tokens
        while left > 0:
            read.append(next(order))
            left -= self.answers(read[-1:])
        return read

    def visited(self) -> list[int]:
        return list(dict.fromkeys(self.past()))

    def distinct(self) -> int:
        return self.answers(self.visited())

    def metrics(self) -> dict[str, Any]:
        read_all(self.store, self.held_out[:MEASURED_DIALOGUES], self.settings.workers)
        return super().metrics()


def shuffled(numbers: Sequence[int]) -> Iterator[int]:
    """Yield ``numbers`` endlessly, reshuffled in every pass."""
    generator = np.random.default_rng([0])
    while True:
        yield from generator.permutation(np.asarray(numbers)).tolist()


class Sample(NamedTuple):
    """Rows for a least-squares fit.

    ``features`` [row, tap * hidden]: the target's features. ``embedded`` [row, hidden]: embedding of the next token. ``thought``
    [row, hidden]: the target's last hidden state at the next token.
    """

    features: Tensor
    embedded: Tensor
    thought: Tensor


def shape_of(config: Any, taps: tuple[int, ...], wide: bool) -> EagleConfig:
    """Return the config of a drafter with the target's sizes."""
    parts = config.get_text_config()
    return EagleConfig(
        vocab_size=parts.vocab_size, hidden=parts.hidden_size, heads=parts.num_attention_heads,
        kv_heads=parts.num_key_value_heads, head_size=parts.head_dim, inner=parts.intermediate_size, taps=taps, wide=wide,
        theta=float(parts.rope_parameters["rope_theta"]), eps=parts.rms_norm_eps,
    )  # fmt: skip


def sample(store: FeatureStore, chosen: list[int], embedding: Tensor, columns: slice) -> Sample:
    """Return the rows at the answer positions of the ``chosen`` dialogues. ``columns``: the drafter's taps in the store."""
    rows = []
    for dialogue in store.get(chosen):
        places = torch.arange(max(0, dialogue.first - 2), len(dialogue.tokens) - 1, device=dialogue.tokens.device)
        rows.append(
            (
                dialogue.features[places][:, columns].flatten(1),
                F.embedding(dialogue.tokens[places + 1], embedding),
                dialogue.features[places + 1, -1],
            )
        )
    return Sample(*(torch.cat(parts) for parts in zip(*rows, strict=True)))


@torch.no_grad()
def start(net: EagleHead, model: Any, rows: Sample) -> None:
    """Initialise ``net`` from the target ``model`` and a fit to ``rows``."""
    last, attention, mlp, hidden = model.base_model.layers[-1], net.layer.self_attn, net.layer.mlp, net.config.hidden
    with gated_layer(model):
        for name in ("gate_proj", "up_proj", "down_proj"):
            getattr(mlp, name).weight.copy_(dense(getattr(last.mlp, name)))
        net.layer.post_attention_layernorm.weight.copy_(last.post_attention_layernorm.weight)
        for name in ("q_proj", "k_proj", "v_proj"):
            getattr(attention, name).weight[:, -hidden:].copy_(dense(getattr(last.self_attn, name)))
        attention.o_proj.weight.copy_(dense(last.self_attn.o_proj))
    if net.config.wide:
        _start_wide(net, model, rows)
    else:  # the projection predicts the next feature, and the untrained layer adds nothing
        inputs = _even_out(net, torch.cat((rows.embedded, rows.features), dim=-1))
        net.fc.weight.copy_(fit(inputs, rows.thought).T)
        attention.o_proj.weight.zero_()
    mlp.down_proj.weight.zero_()


def dense(linear: Any) -> Tensor:
    """Return the weight [out, in] of a linear layer, unpacked if necessary."""
    if getattr(linear, "weight", None) is not None:
        return linear.weight.detach()
    packed: Tensor = linear.packed.to_dense()
    return packed


@contextmanager
def gated_layer(model: Any) -> Iterator[None]:
    """Turn errors in the ``with`` block, which reads the target's last layer, into ModelUnavailable."""
    try:
        yield
    except (AttributeError, RuntimeError) as problem:
        raise ModelUnavailable(
            f"The last layer of {type(model).__name__} is not a gated decoder layer, so a drafter cannot be initialised from it "
            f"({problem}): choose a Llama-like target."
        ) from problem


def _even_out(net: EagleHead, inputs: Tensor) -> Tensor:
    """Set the scale of the input projection from ``inputs`` and return the scaled inputs."""
    scale = inputs.square().mean(0).clamp_min(1e-12).rsqrt()
    net.fc.scale.copy_(scale)
    return inputs * scale


def fit(inputs: Tensor, outputs: Tensor, ridge: float = 1e-2) -> Tensor:
    """Return the float64 matrix [in, out] of a ridge regression from ``inputs`` [row, in] to ``outputs`` [row, out]."""
    x, y = inputs.double(), outputs.double()
    gram = x.T @ x / len(x)
    gram.diagonal().add_(gram.diagonal().mean() * ridge)
    return torch.linalg.solve(gram, x.T @ y / len(x))


def _start_wide(net: EagleHead, model: Any, rows: Sample) -> None:
    """Initialise the projection to predict from the features, and the attention to predict from the embedding."""
    config, attention = net.config, net.layer.self_attn
    net.norm.weight.copy_(model.base_model.norm.weight)
    features = _even_out(net, rows.features)
    embedded = F.rms_norm(rows.embedded, (config.hidden,), eps=config.eps)
    outputs = rows.thought / net.norm.weight.where(net.norm.weight.abs() > 1e-3, torch.ones_like(net.norm.weight))
    linear = fit(torch.cat((features, embedded), dim=-1), outputs)
    net.fc.weight.copy_(linear[: features.shape[1]].T)
    _attend_to_oneself(net, linear[features.shape[1] :], embedded)
    for name in "qkv":
        getattr(attention, f"{name}_proj").weight[:, config.hidden :].zero_()


def _attend_to_oneself(net: EagleHead, linear: Tensor, embedded: Tensor) -> None:
    """Initialise the attention: tokens attend to themselves; values and output apply a low-rank part of ``linear`` [in, out]."""
    config, attention, hidden = net.config, net.layer.self_attn, net.config.hidden
    size, groups = config.head_size, config.kv_heads
    spread = embedded.double().T @ embedded.double() / len(embedded)
    values, vectors = torch.linalg.eigh(spread)
    deviation = values.clamp_min(1e-8).sqrt()
    left, strength, right = torch.linalg.svd((vectors * deviation).T @ linear, full_matrices=False)
    rank = min(groups * size, len(strength))
    into = (vectors / deviation) @ left[:, :rank]
    value, output = torch.zeros_like(attention.v_proj.weight[:, :hidden]), torch.zeros_like(attention.o_proj.weight)
    value[:rank] = into.T.to(value)
    outward = (strength[:rank, None] * right[:rank]).T.to(value)
    sharing = config.heads // groups
    for head in range(config.heads):
        group = head // sharing
        group_output = outward[:, group * size : (group + 1) * size]
        output[:, head * size : head * size + group_output.shape[1]] = group_output / sharing
    attention.v_proj.weight[:, :hidden] = value
    attention.o_proj.weight.copy_(output)
    generator = torch.Generator().manual_seed(0)
    for group in range(groups):
        match = torch.linalg.qr(torch.randn(hidden, min(size, hidden), generator=generator)).Q.T.to(value)
        attention.k_proj.weight[group * size : group * size + len(match), :hidden] = match
        for head in range(group * sharing, (group + 1) * sharing):
            attention.q_proj.weight[head * size : head * size + len(match), :hidden] = match


def run(job: Job, inputs: TrainInputs, state: TrainState, save: driver.Save, *data_more: str, **card: str) -> None:
    """Train, measure, and write the weights file. ``data_more``: additions to the card's data line. ``card``: card entries."""
    line, tokenizer = data.dialogues_line(inputs.files, *data_more), inputs.assets.target.tokenizer_hash
    driver.run(job, state, line, save, tokenizer_hash=tokenizer, **card)


def make(job: Job) -> None:
    """Train, measure on held-out answers, and write ``assets/weights/NAME.safetensors``."""
    inputs, fused = gather(job), job.recipe.name == "eagle3"
    settings, store = driver.settings_for(job, inputs.device), inputs.store
    columns = EAGLE3_TAPS if fused else EAGLE_TAPS
    model, embedding = inputs.assets.target.model, inputs.assets.embedding
    shape = shape_of(model.config, store.taps[columns], fused)
    net = EagleHead(shape, embedding, inputs.head, inputs.draft_ids).to(inputs.device)
    parallel.keep_cast(net.head)
    start(net, model, sample(store, inputs.fitting_set(settings), embedding, columns))
    loss = partial(eagle3_loss, net, inputs.place) if fused else partial(eagle_loss, net)
    measured = partial(acceptance_metrics, net, store, columns, depth=DEPTH)
    state = FeatureTraining(net, store, inputs.training, inputs.evaluation_set, settings, loss, measured)
    run(job, inputs, state, net.save)


def acceptance_metrics(
    net: EagleHead, store: FeatureStore, columns: slice, numbers: Sequence[int], depth: int
) -> dict[str, float]:
    """Return the acceptance of chains from every position of the answers, and of EAGLE's 25-node tree down to ``depth``."""

    def draft(dialogue: DialogueFeatures, starts: Tensor) -> list[Tensor]:
        outputs = unroll(net, dialogue.tokens, dialogue.features[:, columns].flatten(1), [starts] * depth)
        return [net.logits(output) for output in outputs]

    ranks = acceptance.chain_ranks(store.get(numbers), depth, draft, net.draft_ids)
    return acceptance.metrics(ranks, {path[:depth] for path in paths_of(published_tree("eagle"))})

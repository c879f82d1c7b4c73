"""Drafters that read the target's hidden states: ``train eagle`` and ``train eagle3``, and code shared with other families.

Li et al. 2025, EAGLE-3 (arXiv 2503.01840), "training-time test": step 0 is an ordinary causal pass; in step j the network
reads its own output of step j - 1 together with the true next token. A row then attends as in drafting: to the true keys
up to its start, and to its own keys of steps 1 to j. Rows with different starts never interact after step 0. A random sample
of them can therefore continue while the rest stop, which sets the cost of the deeper steps.
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

from specviz.drafting.networks.feature_net import FeatureConfig, FeatureNet
from specviz.errors import ModelUnavailable
from specviz.methods.medusa.drafter import paths_of
from specviz.methods.resources import published_tree
from specviz.training import acceptance, data, driver, parallel
from specviz.training.data import IGNORED, Dialogues
from specviz.training.driver import Job, Schedule, Step, TrainState
from specviz.training.features import DialogueFeatures, FeatureStore, TrainInputs, gather, joined, read_all, target_distribution
from specviz.training.parallel import apply_padded, pad_rows

MEASURED_DIALOGUES = 60
DEPTH = 5
MARKS = (500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000)
"""Numbers of answer tokens at which the learning curve is measured; tokens of the first pass are all distinct."""

_RIDGE = 1e-2
# The scale of matching queries and keys before training, by which a token attends to itself.
_SELF = 1.0

_DEEPEST = 64
"""The maximum number of self-fed steps, for rotary positions."""
Own = list[tuple[Tensor, Tensor]]
"""Keys and values [start, kv, size] of each self-fed step so far."""


def unroll(
    net: FeatureNet, tokens: Tensor, features: Tensor, rows: Sequence[Tensor], embedded: Tensor | None = None,
    lengths: Sequence[int] = (),
) -> list[Tensor]:  # fmt: skip
    """Return the outputs [start, hidden] of each step. ``rows[j]`` are the starts of step j, a subset of the previous step's.

    Start i reads the feature of token i and token i + 1; its output of step j stands for token i + 1 + j. Its logits are the
    distribution of token i + 2 + j. ``tokens`` [token]; ``features`` [token, tap * hidden], those of a last token unused.
    ``embedded`` [token, hidden] replaces the tokens' embeddings if some are not words. ``lengths`` are the numbers of tokens of
    several concatenated texts. Keep ``rows`` on the host, since they determine the shapes.

    The last start is repeated up to a multiple of 16, which limits the shapes; see :func:`specviz.training.parallel.pad_rows`.
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
    """The network over the true features of several concatenated texts: keys and values [token, kv, size].

    A start attends to those of its own text up to its place. Only for attention do the texts form a batch, padded to the longest
    text and to the most starts.
    """

    def __init__(self, net: FeatureNet, words: Tensor, features: Tensor, lengths: Sequence[int] = ()) -> None:
        """``words`` [token, hidden] are the tokens' embeddings; ``features`` and ``lengths`` as in :func:`unroll`."""
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
        """The outputs [start, hidden] of step 0 at these starts (on the host)."""
        starts = chosen.to(self._device)
        return self.net.finish(self._residual[starts], self._look(chosen, self.net.queries(self._x[starts], starts), []))

    def deeper(self, chosen: Tensor, words: Tensor, features: Tensor, own: Own, step: int) -> Tensor:
        """Return the outputs [start, hidden] of a self-fed step on ``words`` and ``features`` (the previous outputs), both
        [start, hidden]. ``own`` are the keys and values of each start's earlier steps; those of this step are appended."""
        net, places = self.net, chosen.to(self._device) + step
        x, residual = net.mix(words, net.stepped(features, step))
        own.append(net.keys_values(x, places))
        return net.finish(residual, self._look(chosen, net.queries(x, places), own))

    def _look(self, chosen: Tensor, queries: Tensor, own: Own) -> Tensor:
        """Attend with the queries [start, head, size] of ascending starts (on the host); return [start, head * size]."""
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
    """The starts of one dialogue or of several joined dialogues, for :func:`unroll`."""
    several = [
        [begin + rows for rows in sampled_starts(first - begin, end - begin, shares, generator)]
        for begin, first, end in dialogue.spans
    ]
    return [torch.cat([rows[step] for rows in several if step < len(rows)]) for step in range(max(map(len, several)))]


def sampled_starts(first: int, length: int, shares: Sequence[float], generator: torch.Generator) -> list[Tensor]:
    """Draw for each step a random share of the starts that stay inside the answer, ascending and a subset of the previous step's.

    Start i drafts token i + 2 first: an answer that begins at ``first`` is drafted from start first - 2 on.
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
# Shares of the starts that continue to each step. Their weight grows as their share falls, so that each step counts as if all
# starts continued. Deeper steps weigh less but cost as much, so they get fewer starts.
SHARES = (1.0, 0.35, 0.25, 0.15, 0.1)
EAGLE3_TAPS = slice(0, 3)
EAGLE3_NOISE = 0.2
"""Half the width of the uniform noise on the features, in units of each feature's spread. Without it and DROPOUT, a network of
this size soon memorises its dialogues (τ 3.2 on training dialogues, 1.9 on others)."""
DROPOUT = 0.1
"""Share of the entries of features and embeddings that are dropped, independently at each place."""


def eagle3_loss(net: FeatureNet, place: Tensor, dialogue: DialogueFeatures, generator: torch.Generator, scale: float) -> Tensor:
    """EAGLE-3's loss with the target's head frozen and shared; the inputs are three hidden states, without feature regression.

    Returns the weighted sum over steps and starts of the cross-entropy (nats), times ``scale``. ``place`` [vocab] is a token's
    index in the draft vocabulary. Only answer tokens inside that vocabulary count. ``dialogue`` may be several joined dialogues.
    """
    rows = starts_of(dialogue, SHARES, generator)
    features = dialogue.features[:, EAGLE3_TAPS].flatten(1)
    features = features + (2 * uniform(features, generator) - 1) * EAGLE3_NOISE / net.fc.scale
    words = dropout(F.embedding(dialogue.tokens, net.embedding), DROPOUT, generator)
    outputs = unroll(net, dialogue.tokens, dropout(features, DROPOUT, generator), rows, words, dialogue.lengths)
    # All steps pass through the head at once: on a CPU, casting its rows costs as much as a step.
    drafted = torch.cat([chosen + 2 + step for step, chosen in enumerate(rows)]).to(place.device)
    weight = torch.cat([torch.full((len(chosen),), DEPTH_WEIGHT**step / SHARES[step]) for step, chosen in enumerate(rows)])
    weight = weight.to(place.device) * (place[dialogue.tokens[drafted]] != IGNORED)
    distribution, at = target_distribution(net.head, dialogue)
    losses = F.cross_entropy(apply_padded(net.logits, torch.cat(outputs)), distribution[at[drafted]], reduction="none")
    return (losses * weight).sum() * scale


def dropout(values: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Dropout with an explicit generator: sets this share of the entries to zero and scales the others up."""
    return values * (uniform(values, generator) >= share) / (1 - share)


def uniform(like: Tensor, generator: torch.Generator) -> Tensor:
    """Return uniform noise from 0 to 1 in the shape of ``like``."""
    return torch.rand(like.shape, generator=fitting(generator, like.device), device=like.device)


def fitting(generator: torch.Generator, device: torch.device) -> torch.Generator:
    """A generator for tensors on ``device``: the given one, or a new one seeded from it if the devices differ."""
    if generator.device.type == device.type:
        return generator
    return torch.Generator(device).manual_seed(int(torch.randint(1 << 62, (), generator=generator)))


EAGLE_TAPS = slice(3, 4)
TOKEN_WEIGHT = 0.1
EAGLE_NOISE = 0.2 * 512
"""Width of the noise on a text's features, divided by the text's number of tokens."""


def eagle_loss(net: FeatureNet, dialogue: DialogueFeatures, generator: torch.Generator, scale: float) -> Tensor:
    """EAGLE's loss: Li et al. 2024 (arXiv 2401.15077). SmoothL1 between features plus 0.1 times the cross-entropy between their
    distributions under the target's head. The inputs are noisy, since drafting reads approximate features.

    Returns the sum over the answer's tokens, times ``scale``; the regression is a mean over the feature's entries.
    ``dialogue`` may be several joined dialogues."""
    features, lengths = dialogue.features[:, EAGLE_TAPS].flatten(1), dialogue.lengths
    noise = torch.rand(features.shape, generator=fitting(generator, features.device), device=features.device) - 0.5
    width = torch.cat([torch.full((length, 1), EAGLE_NOISE / length) for length in lengths]).to(features.device)
    rows = starts_of(dialogue, [1.0], generator)
    words = dropout(F.embedding(dialogue.tokens, net.embedding), DROPOUT, generator)
    noisy = dropout(features + noise * width, DROPOUT, generator)
    output = unroll(net, dialogue.tokens, noisy, rows, words, lengths)[0]
    return regression(net, output, features[rows[0].to(features.device) + 1])[0].sum() * scale


def regression(net: FeatureNet, outputs: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
    """Return EAGLE's loss [start] of outputs against true features, and the target's logits there."""
    with torch.no_grad():
        truth = apply_padded(partial(F.linear, weight=net.head), features)
    tokens = F.cross_entropy(apply_padded(net.logits, outputs), truth.softmax(-1), reduction="none")
    return F.smooth_l1_loss(outputs, features, reduction="none").mean(-1) + TOKEN_WEIGHT * tokens, truth


Loss = Callable[[DialogueFeatures, torch.Generator, float], Tensor]
"""The loss of a dialogue (or several joined), from a generator and a scale (one over the update's answer tokens)."""
Measure = Callable[[Sequence[int]], dict[str, float]]
"""The figures of dialogues, with the acceptance length ``tau``, which selects the best weights."""


class DialogueTraining(TrainState):
    """Training of a drafter measured on held-out dialogues."""

    dialogues: Dialogues
    held_out: Sequence[int]
    measured: Measure
    marks = MARKS

    visited: Callable[[], list[int]]
    """Returns the dialogues that training has read, each once and in order."""
    distinct: Callable[[], int]
    """Returns the number of distinct tokens that training has read."""

    def compared(self, count: int) -> dict[str, float]:
        """Figures of ``count`` held-out dialogues, and the numbers of dialogues and tokens read in training.

        ``gap`` is the acceptance length on equally many training dialogues, chosen likewise, minus that on the held-out ones.
        """
        found, read = self.measured(self.held_out[:count]), self.visited()
        known = data.greedy_only(self.dialogues, read)[:count]
        gap = self.measured(known)["tau"] - found["tau"] if known else float("nan")
        return {"read": len(read), "distinct": self.distinct(), "gap": gap, **found}

    def measure(self) -> dict[str, float]:
        return self.compared(self.settings.measured)

    def figures(self) -> dict[str, Any]:
        """A milestone's figures on more dialogues, the acceptance length by kind, and the learning curve."""
        kinds = data.by_kind(self.dialogues, self.held_out[:MEASURED_DIALOGUES])
        entries = [entry for entry in self.progress.history if "distinct" in entry]
        curve = [{name: entry[name] for name in ("tokens", "distinct", "tau", "gap")} for entry in entries]
        by_kind = {f"tau, {name}": self.measured(numbers)["tau"] for name, numbers in kinds.items()}
        return {**self.compared(MEASURED_DIALOGUES), **by_kind, "curve": curve}


class FeatureTraining(DialogueTraining):
    """Training of a drafter on the target's features, with training and held-out dialogues."""

    def __init__(
        self, net: nn.Module, store: FeatureStore, training: Sequence[int], held_out: Sequence[int], settings: Schedule,
        loss: Loss, measured: Measure, **optimizer: Any,
    ) -> None:  # fmt: skip
        super().__init__(settings, net, weights=net.state_dict(), **optimizer)
        self.net, self.store, self.training, self.held_out, self.measured = net, store, training, held_out, measured
        self.loss, self.dialogues = loss, store.dialogues
        self.begin()

    def begin(self) -> None:
        """Continue the order of dialogues exactly where it stopped."""
        self.stream = islice(batches(self.training, self.settings), self.progress.updates, None)

    def answers(self, numbers: Sequence[int]) -> int:
        """The number of answer tokens of these dialogues."""
        return sum(len(self.dialogues.answer(number)) for number in numbers)

    def learn_from(self, batch: Sequence[int]) -> Step:
        """Loss and gradients of these dialogues per answer token; the longest go first, so that the workers finish together."""
        answers, seed = self.answers(batch), 1_000_003 * self.optimizer.updates
        longest_first = sorted(batch, key=lambda number: -len(self.dialogues.of(number)))

        def loss(examples: Sequence[tuple[int, int]]) -> Tensor:
            generator = torch.Generator().manual_seed(seed + examples[0][0])
            return self.loss(joined(self.store.get([number for _, number in examples])), generator, 1.0 / answers)

        return self.learn(list(enumerate(longest_first)), loss, answers)

    def visited(self) -> list[int]:
        past = islice(batches(self.training, self.settings), self.progress.updates)
        return list(dict.fromkeys(number for batch in past for number in batch))

    def distinct(self) -> int:
        return self.answers(self.visited())

    def figures(self) -> dict[str, Any]:
        read_all(self.store, self.held_out[:MEASURED_DIALOGUES], self.settings.workers)
        return super().figures()


def batches(training: Sequence[int], settings: Schedule) -> Iterator[list[int]]:
    """Yield endless batches of dialogue numbers from passes over all of them, each pass in a new order."""
    generator, waiting = np.random.default_rng([0]), list[int]()
    while True:
        while len(waiting) < settings.batch:
            waiting += generator.permutation(np.asarray(training)).tolist()
        yield waiting[: settings.batch]
        waiting = waiting[settings.batch :]


class Sample(NamedTuple):
    """Rows for a fit: true ``features`` [row, tap * hidden], the ``embedded`` next token [row, hidden], and the target's last
    hidden state at that token, ``thought`` [row, hidden]."""

    features: Tensor
    embedded: Tensor
    thought: Tensor


def shape_of(config: Any, taps: tuple[int, ...], wide: bool) -> FeatureConfig:
    """The shape of a drafter with the target's widths and rotary positions."""
    parts = config.get_text_config()
    return FeatureConfig(
        vocab_size=parts.vocab_size, hidden=parts.hidden_size, heads=parts.num_attention_heads,
        kv_heads=parts.num_key_value_heads, head_size=parts.head_dim, inner=parts.intermediate_size, taps=taps, wide=wide,
        theta=float(parts.rope_parameters["rope_theta"]), eps=parts.rms_norm_eps,
    )  # fmt: skip


def sample(store: FeatureStore, chosen: list[int], embedding: Tensor, columns: slice) -> Sample:
    """The rows at answer positions of the ``chosen`` dialogues; ``columns`` are the drafter's taps among the store's."""
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
def start(net: FeatureNet, model: Any, rows: Sample) -> None:
    """Set every weight of ``net`` from the target ``model`` and ``rows``."""
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
    else:  # the projection predicts the next feature; the layer adds nothing at first
        inputs = _even_out(net, torch.cat((rows.embedded, rows.features), dim=-1))
        net.fc.weight.copy_(fit(inputs, rows.thought).T)
        attention.o_proj.weight.zero_()
    mlp.down_proj.weight.zero_()


def dense(linear: Any) -> Tensor:
    """The weight [out, in] of a linear layer, unpacked if its layout is packed."""
    if getattr(linear, "weight", None) is not None:
        return linear.weight.detach()
    packed: Tensor = linear.packed.to_dense()
    return packed


@contextmanager
def gated_layer(model: Any) -> Iterator[None]:
    """Guard reads of the target's last layer: raises ModelUnavailable if its structure differs from a drafter's."""
    try:
        yield
    except (AttributeError, RuntimeError) as problem:
        raise ModelUnavailable(
            f"The last layer of {type(model).__name__} is not a gated decoder layer, from which a drafter starts "
            f"({problem}): choose a Llama-like target."
        ) from problem


def _even_out(net: FeatureNet, inputs: Tensor) -> Tensor:
    """Set the input projection's scale from ``inputs`` and return them scaled."""
    scale = 1 / inputs.square().mean(0).sqrt().clamp_min(1e-6)
    net.fc.scale.copy_(scale)
    return inputs * scale


def fit(inputs: Tensor, outputs: Tensor, ridge: float = _RIDGE) -> Tensor:
    """Return the float64 matrix [in, out] that approximately maps ``inputs`` to ``outputs``, by ridge regression."""
    x, y = inputs.double(), outputs.double()
    gram = x.T @ x / len(x)
    gram += ridge * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    return torch.linalg.solve(gram, x.T @ y / len(x))


def _start_wide(net: FeatureNet, model: Any, rows: Sample) -> None:
    """Initialise the projection as a prediction from the features, and self-attention as one from the embedding. Both are in
    units that the final norm hardly changes."""
    config, attention = net.config, net.layer.self_attn
    net.norm.weight.copy_(model.base_model.norm.weight)
    features = _even_out(net, rows.features)
    embedded = F.rms_norm(rows.embedded, (config.hidden,), eps=config.eps)
    outputs = rows.thought / net.norm.weight.where(net.norm.weight.abs() > 1e-3, torch.ones_like(net.norm.weight))
    linear = fit(torch.cat((features, embedded), dim=-1), outputs)
    net.fc.weight.copy_(linear[: features.shape[1]].T)
    _attend_to_oneself(net, linear[features.shape[1] :], embedded)
    attention.q_proj.weight[:, config.hidden :].zero_()
    attention.k_proj.weight[:, config.hidden :].zero_()
    attention.v_proj.weight[:, config.hidden :].zero_()


def _attend_to_oneself(net: FeatureNet, linear: Tensor, embedded: Tensor) -> None:
    """Make queries and keys match on equal tokens; values and output apply the best low-rank part of ``linear`` [in, out]."""
    config, attention, hidden = net.config, net.layer.self_attn, net.config.hidden
    size, groups = config.head_size, config.kv_heads
    spread = embedded.double().T @ embedded.double() / len(embedded)
    values, vectors = torch.linalg.eigh(spread)
    root = vectors * values.clamp_min(1e-8).sqrt()
    left, strength, right = torch.linalg.svd(root.T @ linear, full_matrices=False)
    rank = min(groups * size, len(strength))
    into = (vectors / values.clamp_min(1e-8).sqrt()) @ left[:, :rank]
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
        match = torch.linalg.qr(torch.randn(hidden, min(size, hidden), generator=generator)).Q.T.to(value) * _SELF
        attention.k_proj.weight[group * size : group * size + len(match), :hidden] = match
        for head in range(group * sharing, (group + 1) * sharing):
            attention.q_proj.weight[head * size : head * size + len(match), :hidden] = match


def run(job: Job, inputs: TrainInputs, state: TrainState, save: driver.Save, *data_more: str, **card: str) -> None:
    """Train, measure, and write the recipe's file; ``data_more`` and ``card`` are further entries of its card."""
    line, tokenizer = data.dialogues_line(inputs.files, *data_more), inputs.assets.target.tokenizer_hash
    driver.run(job, state, line, save, tokenizer_hash=tokenizer, **card)


def make(job: Job) -> None:
    """Train, measure on held-out answers, write ``assets/weights/NAME.safetensors`` and print its card line."""
    inputs, fused = gather(job), job.recipe.name == "eagle3"
    settings, store = driver.settings_for(job, inputs.device), inputs.store
    columns = EAGLE3_TAPS if fused else EAGLE_TAPS
    model, embedding = inputs.assets.target.model, inputs.assets.embedding
    shape = shape_of(model.config, store.taps[columns], fused)
    net = FeatureNet(shape, embedding, inputs.head, inputs.draft_ids).to(inputs.device)
    parallel.keep_cast(net.head)
    start(net, model, sample(store, inputs.fitting_set(settings), embedding, columns))
    loss = partial(eagle3_loss, net, inputs.place) if fused else partial(eagle_loss, net)
    measured = partial(acceptance_figures, net, store, columns, depth=DEPTH)
    state = FeatureTraining(net, store, inputs.training, inputs.evaluation_set, settings, loss, measured)
    run(job, inputs, state, net.save)


def acceptance_figures(
    net: FeatureNet, store: FeatureStore, columns: slice, numbers: Sequence[int], depth: int
) -> dict[str, float]:
    """Acceptance of chains from every position of these answers, and of EAGLE's tree of 25 nodes down to ``depth``."""

    def draft(dialogue: DialogueFeatures, starts: Tensor) -> list[Tensor]:
        outputs = unroll(net, dialogue.tokens, dialogue.features[:, columns].flatten(1), [starts] * depth)
        return [net.logits(output) for output in outputs]

    ranks = acceptance.chain_ranks(store.get(numbers), depth, draft, net.draft_ids)
    return acceptance.figures(ranks, {path[:depth] for path in paths_of(published_tree("eagle"))})

"""``train small_draft``, a small autoregressive draft model that learns what the target thinks of each token of its answers.

The target's distribution is read off the hidden states that the feature store keeps, so that one token teaches as much as many
would by themselves (DistillSpec, Zhou et al. 2024, arXiv 2310.08461). Where a target's states are not at hand,
:class:`TokenTraining` learns from the tokens alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specviz.drafting.networks.small_lm import SmallConfig, SmallLM
from specviz.training import data, driver, parallel
from specviz.training.acceptance import chain_agreement
from specviz.training.data import IGNORED, Dialogues, Markers
from specviz.training.driver import Job, Schedule, Step, TrainState
from specviz.training.families import feature
from specviz.training.families.feature import FeatureTraining, TrainInputs
from specviz.training.features import DialogueFeatures, target_distribution
from specviz.training.optimizer import LowRank

DEPTHS = (4, 6)
MEASURED, DEPTH = 80, 5
LENGTH = 256
"""Tokens of a row where tokens alone are learned from."""


class TokenTraining(TrainState):
    """A small language model, or a ``change`` to one, that learns from dialogues' tokens alone; and the dialogues kept out."""

    def __init__(
        self, model: SmallLM, dialogues: Dialogues, markers: Markers, parts: tuple[Sequence[int], Sequence[int]],
        settings: Schedule, change: LowRank | None = None,
    ) -> None:  # fmt: skip
        """``parts`` are the dialogues' numbers to train on and those kept out."""
        self.model = self.folding = model
        self.dialogues, self.markers, (self.training, self.held_out) = dialogues, markers, parts
        super().__init__(settings, change or model)
        self.place = data.places_in(model.draft_ids, model.config.vocab_size)
        self.settle()
        self.begin()

    def begin(self) -> None:
        """Rows from where a resumed training stopped: another seed rather than hours of skipping."""
        generator = np.random.default_rng([0, self.progress.updates])
        rows = data.rows(self.dialogues, self.training, self.markers, LENGTH, generator)
        self.stream = iter(lambda: list(islice(rows, self.settings.batch)), [])

    def learn_from(self, batch: Sequence[data.Row]) -> Step:
        """Mean cross-entropy (nats) over answer tokens of the draft vocabulary, and its gradients."""
        tokens, counts = (torch.from_numpy(np.stack(part)).to(self.device) for part in zip(*batch, strict=True))
        labels, read = torch.where(counts, self.place[tokens[:, 1:]], IGNORED), F.pad(tokens[:, :-2], (1, 0))
        scale = 1.0 / int((labels != IGNORED).sum())

        def loss(rows: Sequence[int]) -> Tensor:
            part = slice(rows[0], rows[-1] + 1)
            mask = labels[part] != IGNORED
            features = self.model.features(read[part], tokens[part, :-1])[mask]
            logits = F.linear(features, self.model.head(), self.model.bias)
            return F.cross_entropy(logits.float(), labels[part][mask], reduction="sum") * scale

        return self.learn(range(len(batch)), loss, int(counts.sum()))

    def measure(self) -> dict[str, float]:
        """Chains along held-out greedy answers."""
        greedy = data.greedy_only(self.dialogues, self.held_out)[:MEASURED]
        return chain_agreement(self.model, self.dialogues, greedy, self.markers, DEPTH)


def fresh(
    embedding: Tensor, markers: data.Markers, dialogues: data.Dialogues, training: Sequence[int], shape: Mapping[str, int]
) -> SmallLM:  # fmt: skip
    """A network on the target's ``embedding`` [vocab, hidden] that knows how often the training answers use each token."""
    torch.manual_seed(0)
    config = SmallConfig(vocab_size=embedding.shape[0], hidden=embedding.shape[1], **shape)
    ids, count = data.draft_vocabulary(dialogues, training, config.draft_vocab, config.vocab_size, [markers.end])
    model = SmallLM(config, embedding, torch.from_numpy(ids)).to(embedding.device)
    counts = torch.from_numpy(count)
    # Silent layers and a head that only knows word counts: training starts from a unigram model, not from noise.
    with torch.no_grad():
        scale = float(model.embedding[model.draft_ids].std()) * model.enter.weight.shape[1] ** 0.5
        model.enter.weight.normal_(std=1.0 / scale)
        model.leave.weight.zero_()
        model.bias.copy_(torch.log((counts.float() + 1) / (counts.sum() + len(counts))))
        block: Any
        for block in model.blocks:
            for layer in (block.qkv, block.up):
                layer.weight.normal_(std=model.config.width**-0.5)
            block.out.weight.zero_()
            block.down.weight.zero_()
    return model


class Distillation(FeatureTraining):
    """A draft model that learns the target's distributions. Dialogues of like length are read together: at this width a
    dialogue by itself is too little work for the products to be what takes the time."""

    net: SmallLM

    def __init__(self, inputs: TrainInputs, settings: Schedule) -> None:
        store = inputs.store
        dialogues, markers, shape = store.dialogues, inputs.assets.markers, {"draft_vocab": len(inputs.draft_ids)}
        net = fresh(inputs.assets.embedding, markers, dialogues, inputs.training, shape)
        frozen = net.embedding[net.draft_ids]
        parallel.keep_cast(frozen)
        self.folding = net
        loss = partial(distilled, net, frozen, data.places_in(net.draft_ids, net.config.vocab_size))
        self.chains = partial(chain_agreement, net, dialogues, markers=markers)
        measured = partial(self.chains, depth=DEPTHS[0])
        super().__init__(net, store, inputs.training, inputs.judged_on, settings, loss, measured)

    def figures(self) -> dict[str, Any]:
        """With longer chains."""
        chosen = self.held_out[: feature.MEASURED_DIALOGUES]
        return {**super().figures(), **{f"chain_{depth}": self.chains(chosen, depth=depth) for depth in DEPTHS[1:]}}


def distilled(
    model: SmallLM, frozen: Tensor, place: Tensor, dialogue: DialogueFeatures, generator: torch.Generator, scale: float
) -> Tensor:
    """Cross-entropy (nats) to the target's distribution over the draft vocabulary, summed over the answers' tokens that are in
    it, times ``scale``. ``frozen`` [draft, hidden] gives the target's logits; ``place`` [vocab] is a token's place in the draft
    vocabulary; ``dialogue`` may be several joined."""
    ids = pad_sequence([tokens[:-1] for tokens in dialogue.tokens.split(dialogue.lengths)], batch_first=True)
    ids = F.pad(ids, (0, -ids.shape[1] % 32))
    # One index over all answers: a mask a dialogue would make a GPU's host wait twice for each of them.
    answers = torch.cat([dialogue.tokens[first:end] for _, first, end in dialogue.spans])
    inside = (place[answers] != IGNORED).nonzero()[:, 0]
    distribution = target_distribution(frozen, dialogue)[0][inside]
    features = model.features(F.pad(ids[:, :-1], (1, 0)), ids)
    rows = [row[first - begin - 1 : end - begin - 1] for row, (begin, first, end) in zip(features, dialogue.spans, strict=True)]
    logits = parallel.evenly(partial(F.linear, weight=model.head(), bias=model.bias), torch.cat(rows)[inside])
    return F.cross_entropy(logits.float(), distribution.float(), reduction="sum") * scale


def make(job: Job) -> None:
    """Train, measure on held-out answers, write ``assets/weights/small_draft.safetensors`` and print its card line."""
    inputs = feature.gather(job)
    state = Distillation(inputs, driver.settings_for(job, inputs.device))
    feature.run(job, inputs, state, state.net.save)

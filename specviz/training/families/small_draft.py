"""``train small_draft``, a small autoregressive draft model distilled from the target's distributions on its own answers.

The feature store's hidden states give the target's distributions, from which one position teaches as much as many sampled tokens
(DistillSpec, Zhou et al. 2024, arXiv 2310.08461). Without a target's hidden states, :class:`TokenTraining` learns from the
tokens alone.
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
"""Tokens per row for training on tokens alone."""


class TokenTraining(TrainState):
    """Training of a small language model, or of a ``change`` to one, on dialogues' tokens alone."""

    def __init__(
        self, model: SmallLM, dialogues: Dialogues, markers: Markers, parts: tuple[Sequence[int], Sequence[int]],
        settings: Schedule, change: LowRank | None = None,
    ) -> None:  # fmt: skip
        """``parts`` are the numbers of the training dialogues and those of the held-out ones."""
        self.model = self.folding = model
        self.dialogues, self.markers, (self.training, self.held_out) = dialogues, markers, parts
        super().__init__(settings, change or model)
        self.place = data.draft_index(model.draft_ids, model.config.vocab_size)
        self.settle()
        self.begin()

    def begin(self) -> None:
        """Start new rows; a resumed run uses a new seed, since skipping rows would take hours."""
        generator = np.random.default_rng([0, self.progress.updates])
        rows = data.rows(self.dialogues, self.training, self.markers, LENGTH, generator)
        self.stream = iter(lambda: list(islice(rows, self.settings.batch)), [])

    def learn_from(self, batch: Sequence[data.Row]) -> Step:
        """The mean cross-entropy (nats) over answer tokens in the draft vocabulary, and its gradients."""
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
        """Acceptance of chains along held-out greedy answers."""
        greedy = data.greedy_only(self.dialogues, self.held_out)[:MEASURED]
        return chain_agreement(self.model, self.dialogues, greedy, self.markers, DEPTH)


def new_model(
    embedding: Tensor, markers: data.Markers, dialogues: data.Dialogues, training: Sequence[int], shape: Mapping[str, int]
) -> SmallLM:  # fmt: skip
    """A network on the target's ``embedding`` [vocab, hidden] that starts as a unigram model of the training answers."""
    torch.manual_seed(0)
    config = SmallConfig(vocab_size=embedding.shape[0], hidden=embedding.shape[1], **shape)
    ids, count = data.draft_vocabulary(dialogues, training, config.draft_vocab, config.vocab_size, [markers.end])
    model = SmallLM(config, embedding, torch.from_numpy(ids)).to(embedding.device)
    counts = torch.from_numpy(count)
    # Layers that add zero, and a head with token counts only: training starts from a unigram model, not from noise.
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
    """Distillation of a draft model from the target's distributions.

    Dialogues of similar length are read together: at this width, the matrix products of a single dialogue are too small to use a
    machine well.
    """

    net: SmallLM

    def __init__(self, inputs: TrainInputs, settings: Schedule) -> None:
        store = inputs.store
        dialogues, markers, shape = store.dialogues, inputs.assets.markers, {"draft_vocab": len(inputs.draft_ids)}
        net = new_model(inputs.assets.embedding, markers, dialogues, inputs.training, shape)
        frozen = net.embedding[net.draft_ids]
        parallel.keep_cast(frozen)
        self.folding = net
        loss = partial(distillation_loss, net, frozen, data.draft_index(net.draft_ids, net.config.vocab_size))
        self.chains = partial(chain_agreement, net, dialogues, markers=markers)
        measured = partial(self.chains, depth=DEPTHS[0])
        super().__init__(net, store, inputs.training, inputs.evaluation_set, settings, loss, measured)

    def figures(self) -> dict[str, Any]:
        """A milestone's figures on more dialogues, with longer chains."""
        chosen = self.held_out[: feature.MEASURED_DIALOGUES]
        return {**super().figures(), **{f"chain_{depth}": self.chains(chosen, depth=depth) for depth in DEPTHS[1:]}}


def distillation_loss(
    model: SmallLM, frozen: Tensor, place: Tensor, dialogue: DialogueFeatures, generator: torch.Generator, scale: float
) -> Tensor:
    """Sum the cross-entropy (nats) to the target's distribution over the answers' tokens in the draft vocabulary, times
    ``scale``. ``frozen`` [draft, hidden] gives the target's logits; ``place`` [vocab] is a token's index in the draft
    vocabulary; ``dialogue`` may be several joined dialogues."""
    ids = pad_sequence([tokens[:-1] for tokens in dialogue.tokens.split(dialogue.lengths)], batch_first=True)
    ids = F.pad(ids, (0, -ids.shape[1] % 32))
    # One index over all answers: with a mask per dialogue, the host would wait for the GPU twice per dialogue.
    answers = torch.cat([dialogue.tokens[first:end] for _, first, end in dialogue.spans])
    inside = (place[answers] != IGNORED).nonzero()[:, 0]
    distribution = target_distribution(frozen, dialogue)[0][inside]
    features = model.features(F.pad(ids[:, :-1], (1, 0)), ids)
    rows = [row[first - begin - 1 : end - begin - 1] for row, (begin, first, end) in zip(features, dialogue.spans, strict=True)]
    logits = parallel.apply_padded(partial(F.linear, weight=model.head(), bias=model.bias), torch.cat(rows)[inside])
    return F.cross_entropy(logits.float(), distribution.float(), reduction="sum") * scale


def make(job: Job) -> None:
    """Train, measure on held-out answers, write ``assets/weights/small_draft.safetensors`` and print its card line."""
    inputs = feature.gather(job)
    state = Distillation(inputs, driver.settings_for(job, inputs.device))
    feature.run(job, inputs, state, state.net.save)

"""``train small_draft``: a small autoregressive draft model, distilled on the target's answers.

The target's distributions, computed from the hidden states in the feature store, teach more per position than sampled tokens
(DistillSpec, Zhou et al., arXiv 2310.08461). Without hidden states, :class:`TokenTraining` learns from tokens only.
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
"""Tokens per row of :class:`TokenTraining`."""


class TokenTraining(TrainState):
    """Training of a small language model, or of a low-rank ``change``, on the tokens of dialogues."""

    def __init__(
        self, model: SmallLM, dialogues: Dialogues, markers: Markers, parts: tuple[Sequence[int], Sequence[int]],
        settings: Schedule, change: LowRank | None = None,
    ) -> None:  # fmt: skip
        """``parts``: numbers of the training dialogues and of the held-out dialogues."""
        self.model = self.folding = model
        self.dialogues, self.markers, (self.training, self.held_out) = dialogues, markers, parts
        super().__init__(settings, change or model)
        self.place = data.draft_index(model.draft_ids, model.config.vocab_size)
        self.settle()
        self.begin()

    def begin(self) -> None:
        """Start a stream of rows. A resumed run has a new seed, because skipping rows would take hours."""
        generator = np.random.default_rng([0, self.progress.updates])
        rows = data.rows(self.dialogues, self.training, self.markers, LENGTH, generator)
        self.stream = iter(lambda: list(islice(rows, self.settings.batch)), [])

    def learn_from(self, batch: Sequence[data.Row]) -> Step:
        """Return the mean cross-entropy in nats over answer tokens in the draft vocabulary, and gradients."""
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
        """Return the acceptance of chains along held-out greedy answers."""
        greedy = data.greedy_only(self.dialogues, self.held_out)[:MEASURED]
        return chain_agreement(self.model, self.dialogues, greedy, self.markers, DEPTH)


def new_model(
    embedding: Tensor, markers: data.Markers, dialogues: data.Dialogues, training: Sequence[int], shape: Mapping[str, int]
) -> SmallLM:  # fmt: skip
    """Return a network on the target's ``embedding`` [vocab, hidden], initialised as a unigram model of the training answers."""
    torch.manual_seed(0)
    config = SmallConfig(vocab_size=embedding.shape[0], hidden=embedding.shape[1], **shape)
    ids, count = data.draft_vocabulary(dialogues, training, config.draft_vocab, config.vocab_size, [markers.end])
    model = SmallLM(config, embedding, torch.from_numpy(ids)).to(embedding.device)
    counts = torch.from_numpy(count)
    # Layers that add zero, and a bias of log token frequencies, make a unigram model.
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

    Dialogues of similar length share a pass, because the matrix products of a single dialogue are too small for good
    utilisation.
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

    def metrics(self) -> dict[str, Any]:
        """Return the metrics for the card, with longer chains."""
        chosen = self.held_out[: feature.MEASURED_DIALOGUES]
        return {**super().metrics(), **{f"chain_{depth}": self.chains(chosen, depth=depth) for depth in DEPTHS[1:]}}


def distillation_loss(
    model: SmallLM, frozen: Tensor, place: Tensor, dialogue: DialogueFeatures, generator: torch.Generator, scale: float
) -> Tensor:
    """Return the cross-entropy to the target's distribution in nats, summed over answer tokens in the draft vocabulary.

    The sum is multiplied by ``scale``. ``frozen`` [draft, hidden]: rows of the target's head. ``place`` [vocab]: index in the
    draft vocabulary, or IGNORED. ``dialogue``: one dialogue or several joined ones.
    """
    ids = pad_sequence([tokens[:-1] for tokens in dialogue.tokens.split(dialogue.lengths)], batch_first=True)
    ids = F.pad(ids, (0, -ids.shape[1] % 32))
    # One index for all answers: a mask per dialogue would make the host wait for the GPU twice per dialogue.
    answers = torch.cat([dialogue.tokens[first:end] for _, first, end in dialogue.spans])
    inside = (place[answers] != IGNORED).nonzero()[:, 0]
    distribution = target_distribution(frozen, dialogue)[0][inside]
    features = model.features(F.pad(ids[:, :-1], (1, 0)), ids)
    rows = [row[first - begin - 1 : end - begin - 1] for row, (begin, first, end) in zip(features, dialogue.spans, strict=True)]
    logits = parallel.apply_padded(partial(F.linear, weight=model.head(), bias=model.bias), torch.cat(rows)[inside])
    return F.cross_entropy(logits.float(), distribution.float(), reduction="sum") * scale


def make(job: Job) -> None:
    """Train, measure on held-out answers, and write ``assets/weights/small_draft.safetensors``."""
    inputs = feature.gather(job)
    state = Distillation(inputs, driver.settings_for(job, inputs.device))
    feature.run(job, inputs, state, state.net.save)

"""``train smollm2_hybrid``: Mamba-2 mixers in place of some of SmolLM2's attention, distilled from SmolLM2.

The mixers learn SmolLM2's distributions, and its hidden states after each of them, on its own dialogues (as in MOHAWK, Bick et
al., arXiv 2408.10189, without its first stage). All other weights are SmolLM2's, so training reads the hidden state before the
first mixer from the feature store.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM

from specviz.drafting.networks.weights import write_weights
from specviz.models.hub import derived
from specviz.models.hub.opening import LOCAL
from specviz.models.hub.prepare import prepare
from specviz.training import driver, features
from specviz.training.driver import Job, Schedule, TrainState
from specviz.training.families import feature
from specviz.training.families.feature import FeatureTraining
from specviz.training.features import TARGET, DialogueFeatures, TrainInputs, store_for, target_distribution
from specviz.training.optimizer import LowRank

RANK = 64
"""Rank of the change to a mixer's matrices."""
HINT = 4.0
"""Weight of the distance of hidden states, beside a divergence in nats."""
READ = 320
"""Number of training dialogues that the mixers learn from: on a CPU, their hidden states take most of the time."""
MEASURED = 60
"""Number of held-out dialogues for the metrics."""


class MixerTraining(FeatureTraining):
    """Training of the mixers of a ``hybrid`` of the target, by a low-rank change of their matrices."""

    marks = ()

    def __init__(self, inputs: TrainInputs, hybrid: Any, settings: Schedule) -> None:
        net, layers = derived.mixers(hybrid), len(hybrid.model.layers)
        numbers = [int(number) for number in net]
        taps = tuple(sorted({numbers[0], *(number + 1 for number in numbers), layers}))
        target = inputs.assets.target
        self.store = store_for(target.model, target.name, inputs.dialogues, inputs.assets.markers, taps)
        self.dialogues, self.training, self.hybrid = inputs.dialogues, inputs.training[:READ], hybrid
        self.held_out = np.random.default_rng(0).permutation(inputs.held_out).tolist()
        self.head, self.support = inputs.head, inputs.head[inputs.draft_ids]
        self.loss = self.divergence
        TrainState.__init__(self, settings, LowRank(net, RANK, rest=True))
        self.begin()

    def streams(self, dialogue: DialogueFeatures) -> list[Tensor]:
        """Return the hybrid's hidden states [token, hidden] at the taps after the first; the last one is normalised."""
        assert not dialogue.others, "state must not pass between dialogues"
        body, taps = self.hybrid.model, self.store.taps
        x, found = dialogue.features[None, :, 0], list[Tensor]()
        turns = body.rotary_emb(x, torch.arange(x.shape[1], device=x.device)[None])
        for number in range(taps[0], taps[-1]):
            x = body.layers[number](x, position_embeddings=turns)[0]
            found += [x[0]] * (number + 1 in taps[1:-1])
        return [*found, body.final_layernorm(x[0])]

    def divergence(self, dialogue: DialogueFeatures, generator: torch.Generator, scale: float) -> Tensor:
        """Return the KL divergence from the target over the draft vocabulary, and ``HINT`` times the states' squared distance.

        Both are summed over answer tokens and multiplied by ``scale``.
        """
        streams, read = self.streams(dialogue), slice(dialogue.first - 1, -1)
        own = F.linear(streams[-1][read], self.support).log_softmax(-1)
        lost = F.kl_div(own, target_distribution(self.support, dialogue)[0], reduction="sum")
        for place, hint in enumerate(streams, start=1):  # the last one also keeps tokens outside the draft vocabulary in place
            pair = (F.rms_norm(state[read], state.shape[-1:]) for state in (hint, dialogue.features[:, place]))
            lost = lost + HINT * torch.sub(*pair).square().mean(-1).sum()
        return lost * scale

    @torch.no_grad()
    def compared(self, count: int) -> dict[str, float]:
        """Return the perplexity of hybrid and target on the answers of ``count`` held-out dialogues, their ratio, and how often
        both have the same most likely token."""
        nats, alike, tokens = torch.zeros(2, dtype=torch.float64), 0, 0
        for number in self.held_out[:count]:
            (dialogue,) = self.store.get([number])
            truth = dialogue.tokens[dialogue.first :]
            pair = self.streams(dialogue)[-1], dialogue.features[:, -1]
            both = [F.linear(last[dialogue.first - 1 : -1], self.head) for last in pair]
            nats += torch.tensor([float(F.cross_entropy(logits, truth, reduction="sum")) for logits in both])
            alike += int((both[0].argmax(-1) == both[1].argmax(-1)).sum())
            tokens += len(truth)
        own, target = (nats / tokens).exp().tolist()
        return {"perplexity": own, "target": target, "ratio": own / target, "top1": alike / tokens}

    def metrics(self) -> dict[str, Any]:
        return self.compared(MEASURED)


def make(job: Job) -> None:
    """Train the mixers, measure on held-out dialogues, and write the change to SmolLM2."""
    inputs, shape = features.gather(job), dict(job.recipe.shape)
    base: Any = AutoModelForCausalLM.from_pretrained(prepare(TARGET), dtype=torch.float32, **LOCAL)
    hybrid = derived.hybrid(base, shape).to(inputs.device)
    state = MixerTraining(inputs, hybrid, driver.settings_for(job, inputs.device))
    feature.run(
        job, inputs, state, lambda path, card: write_weights(path, state.optimizer.parameters, card),
        base=TARGET, config=json.dumps(shape),
    )  # fmt: skip

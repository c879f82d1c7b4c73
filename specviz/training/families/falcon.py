"""Falcon's recipe: Gao et al. 2024 (arXiv 2412.12639), regression and distillation of the feature k steps ahead, glancing.

The loss of a place is SmoothL1 of its feature plus 0.1 (0.9 KL + 0.1 CE) of its token under the target's own head. How much
is shown to the network falls from 0.4 of what it gets wrong to nothing while the training goes on.

That is its coupled sequential glancing distillation, after glancing transformers (Qian et al., arXiv 2008.07905). Where a block
begins, feature and token together are replaced by the truth k steps ahead, so that the network learns how the later places of
a block hang on the first. Such an input holds its own answer and is left out of the loss. Axis names: ``input``, ``hidden``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specviz.drafters.networks.block_net import BlockNet, save
from specviz.training import acceptance, driver, parallel
from specviz.training.data import IGNORED
from specviz.training.driver import Step
from specviz.training.families import feature
from specviz.training.families.eagle3 import fitting
from specviz.training.families.falcon_start import block_shape, start
from specviz.training.families.feature import FeatureTraining
from specviz.training.features import DialogueFeatures, FeatureStore
from specviz.training.registry import Job

TOKEN_WEIGHT = 0.1
SOFT, HARD = 0.9, 0.1
FIRST_RATIO = 0.4
NOISE = 0.2 * 512
"""Width of the uniform noise on the features of a text of one token; in a longer one it is that much weaker."""


ENOUGH = 800
"""With so many dialogues read already, while they were written or by another recipe, the target reads no more."""


class BlockTraining(FeatureTraining):
    """A block drafter that is shown less and less; ``place`` [vocab] is a token's place in the draft vocabulary. The gates of the
    recurrence are moved each for itself. At twice the peak rate the linear start is lost before anything better is learned."""

    net: BlockNet
    share = 0.0

    def __init__(
        self,
        net: BlockNet,
        place: Tensor,
        store: FeatureStore,
        training: Sequence[int],
        held_out: Sequence[int],
        settings: feature.Settings,
    ) -> None:
        self.place = place
        stacked = {name: 4 for name, value in net.named_parameters() if name.startswith("recurrence.weight")}
        measured = partial(levels, net, store)
        stacked |= {"layer.up.weight": 2}
        super().__init__(net, store, training, held_out, settings, self.taught, measured, stacked=stacked)

    def step(self, share: float) -> Step:
        """Take note of how far the training is."""
        self.share = share
        return super().step(share)

    def taught(self, dialogue: DialogueFeatures, generator: torch.Generator, scale: float) -> Tensor:
        """Sum over the counted places of an answer, or of several joined ones, that were not shown, times ``scale``."""
        net, text, truth = self.net, noisy(dialogue, generator), truth_of(self.net, self.place, dialogue)
        phase, ratio = int(torch.randint(net.block, (), generator=generator)), FIRST_RATIO * (1 - self.share)
        inputs, counts = text, torch.ones_like(truth.places, dtype=torch.bool)
        if ratio > 0:
            replaced = glanced(net, text, truth, phase, ratio, generator)
            inputs, counts = reveal(text, replaced, net.block), ~torch.isin(truth.places, replaced)
        return scale * summed(net, outputs(net, inputs, phase)[truth.places[counts]], truth, counts)


@dataclass(frozen=True)
class Inputs:
    """What the network reads: the tokens after each place [input], the features there [input, hidden]; of several texts behind
    each other ``lengths`` says how many inputs each has."""

    tokens: Tensor
    features: Tensor
    lengths: tuple[int, ...] = ()

    def within(self, places: Tensor) -> Tensor:
        """The same ``places`` counted from the beginning of their text."""
        ends = torch.tensor(self.lengths or (len(self.tokens),), device=places.device).cumsum(0)
        begins = F.pad(ends[:-1], (1, 0))
        return places - begins[torch.searchsorted(ends, places, right=True)]


def noisy(dialogue: DialogueFeatures, generator: torch.Generator) -> Inputs:
    """What the network reads of a dialogue. While drafting the features are its own and only nearly right, hence noise."""
    spans, device = dialogue.spans, dialogue.tokens.device
    places = torch.cat([torch.arange(begin, end - 1) for begin, _, end in spans]).to(device)
    lengths = tuple(end - 1 - begin for begin, _, end in spans)
    width = torch.cat([torch.full((length, 1), NOISE / length) for length in lengths]).to(device)
    features = dialogue.features[places, -1]
    noise = torch.rand(features.shape, generator=fitting(generator, device), device=device).to(features) - 0.5
    return Inputs(dialogue.tokens[places + 1], features + noise * width, lengths)


def outputs(net: BlockNet, inputs: Inputs, phase: int) -> Tensor:
    """What the network makes of each input, [input, hidden]. Several texts lie side by side in it, padded to the longest: what is
    behind a text only its last, broken-off block sees, of which no input counts."""
    if len(inputs.lengths) < 2:
        return net(inputs.tokens[None], inputs.features[None], phase)[0]
    tokens, features = (
        pad_sequence(values.split(list(inputs.lengths)), batch_first=True) for values in (inputs.tokens, inputs.features)
    )
    text = torch.tensor(inputs.lengths)
    inside = (torch.arange(tokens.shape[1]) < text[:, None]).to(tokens.device)
    return net(tokens, features, phase)[inside]


@dataclass(frozen=True)
class Truth:
    """What a text wants of the network at its counted ``places`` [place], numbers of inputs: the target's features k ahead
    [place, hidden], and what its head makes of them [place, draft]."""

    places: Tensor
    features: Tensor
    logits: Tensor


@torch.no_grad()
def truth_of(net: BlockNet, place: Tensor, dialogue: DialogueFeatures) -> Truth:
    """The places whose drafted token is in the answer and has a ``place`` [vocab] in the draft vocabulary."""
    ahead, device = net.block, dialogue.tokens.device
    several = [torch.arange(max(begin, first - 1 - ahead), end - 1 - ahead) for begin, first, end in dialogue.spans]
    # A text of n tokens is n - 1 inputs, so that each text behind the first begins one input earlier than the last did.
    earlier = torch.cat([torch.full_like(places, number) for number, places in enumerate(several)]).to(device)
    places = torch.cat(several).to(device)
    counted = place[dialogue.tokens[places + ahead + 1]] != IGNORED
    features = dialogue.features[places[counted] + ahead, -1]
    return Truth((places - earlier)[counted], features, net.logits(features))


@torch.no_grad()
def glanced(net: BlockNet, text: Inputs, truth: Truth, phase: int, ratio: float, generator: torch.Generator) -> Tensor:
    """A first pass without gradients, and which inputs to show after it."""
    guessed = net.logits(outputs(net, text, phase)[truth.places]).argmax(-1)
    beginnings = truth.places[(text.within(truth.places) - phase) % net.block == 0]
    return glances(int((guessed != truth.logits.argmax(-1)).sum()), ratio, beginnings, net.block, generator)


def glances(wrong: int, ratio: float, beginnings: Tensor, block: int, generator: torch.Generator) -> Tensor:
    """Inputs to replace, int64, ascending: ``ratio`` of the number that were ``wrong``, at random ``beginnings`` of blocks.

    With k = 2 a block is shown its first place. With larger blocks a random run of 1 to k - 1 places from the first on.
    """
    runs = max(1, block - 1)
    count = min(round(ratio * wrong / ((1 + runs) / 2)), len(beginnings))
    order = torch.randperm(len(beginnings), generator=generator)[:count]
    length = torch.randint(1, runs + 1, (count,), generator=generator)
    chosen = [beginnings[order] + step for step in range(runs)]
    parts = [places[length > step] for step, places in enumerate(chosen)]
    return torch.cat(parts).sort().values if parts else beginnings[:0]


def reveal(text: Inputs, places: Tensor, block: int) -> Inputs:
    """``text`` with the truth ``block`` steps ahead at ``places``; it goes at least so much further."""
    tokens, features = text.tokens.clone(), text.features.clone()
    tokens[places] = text.tokens[places + block]
    features[places] = text.features[places + block]
    return Inputs(tokens, features, text.lengths)


def summed(net: BlockNet, features: Tensor, truth: Truth, counts: Tensor) -> Tensor:
    """The loss summed over places; ``features`` [place, hidden] are the network's at those that count."""
    target_logits, logits = truth.logits[counts], net.logits(features)
    regression = F.smooth_l1_loss(features, truth.features[counts], reduction="sum") / features.shape[-1]
    soft = F.kl_div(logits.log_softmax(-1), target_logits.log_softmax(-1), reduction="sum", log_target=True)
    hard = F.cross_entropy(logits, target_logits.argmax(-1), reduction="sum")
    return regression + TOKEN_WEIGHT * (SOFT * soft + HARD * hard)


@torch.inference_mode()
def levels(net: BlockNet, store: FeatureStore, numbers: Sequence[int]) -> dict[str, float]:
    """Of one forward from every place of the answers, by level, in the words of :func:`acceptance.figures`."""
    rows = [_ranks(net, dialogue, phase) for dialogue in store.get(numbers) for phase in range(net.block)]
    return acceptance.figures(torch.cat(rows), alone=True)


def _ranks(net: BlockNet, dialogue: DialogueFeatures, phase: int) -> Tensor:
    """At which rank a block's levels had the text's tokens [start, level], for blocks laid at ``phase``."""
    block = net.block
    first = max(0, dialogue.first - 1 - block)
    first += (phase - first) % block
    starts = torch.arange(first, len(dialogue.tokens) - 2 * block, block, device=dialogue.tokens.device)
    outputs = net(dialogue.tokens[None, 1:], dialogue.features[None, :-1, -1], phase)[0]
    places = starts[:, None] + torch.arange(block, device=starts.device)
    return acceptance.ranks_of(net.logits(outputs[places]), dialogue.tokens[places + block + 1], net.draft_ids).cpu()


def make(job: Job) -> None:
    """Train, measure on held-out answers, write ``assets/weights/falcon.safetensors`` and print its card line."""
    inputs = feature.gather(job)
    settings = driver.settings_for(job, inputs.device, feature.Settings)
    model, store = inputs.assets.target.model, inputs.store
    shape = block_shape(model.config, store.taps[-1], len(inputs.draft_ids))
    net = BlockNet(shape, inputs.assets.embedding, inputs.head, inputs.draft_ids).to(inputs.device)
    parallel.keep_cast(net.head)
    start(net, model, store.get(inputs.fitted_on(settings)))
    state = BlockTraining(net, inputs.place, store, inputs.at_hand(ENOUGH), inputs.judged_on, settings)
    feature.run(job, inputs, state, partial(save, net))

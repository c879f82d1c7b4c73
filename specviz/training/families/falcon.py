"""Falcon's recipe: Gao et al. 2024 (arXiv 2412.12639), regression and distillation of the feature k steps ahead, glancing.

The loss of a place is SmoothL1 of its feature plus 0.1 (0.9 KL + 0.1 CE) of its token under the target's own head. How much
is shown to the network falls from 0.4 of what it gets wrong to nothing while the training goes on.

That is its coupled sequential glancing distillation, after glancing transformers (Qian et al., arXiv 2008.07905). Where a block
begins, feature and token together are replaced by the truth k steps ahead, so that the network learns how the later places of
a block hang on the first. Such an input holds its own answer and is left out of the loss. Axis names: ``input``, ``hidden``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specviz.drafters.block_drafter import BlockDrafter
from specviz.drafters.networks.block_net import BlockNet, load, save
from specviz.engine.interfaces import Context, Draft, Round, TargetPass, Verdict
from specviz.engine.sampling import Noise, Warp
from specviz.engine.tree import DraftTree
from specviz.training.common import parallel
from specviz.training.common.card import print_card
from specviz.training.common.data import IGNORED
from specviz.training.common.features import DialogueFeatures, FeatureStore
from specviz.training.common.loop import Progress, checkpoint_of, quantised_file, train
from specviz.training.common.optimizer import Optimizer
from specviz.training.families.falcon_start import block_shape, start
from specviz.training.feature.eagle3 import fitting
from specviz.training.feature.recipes import (
    MEASURED_DIALOGUES,
    FeatureTraining,
    Settings,
    TrainInputs,
    at_hand,
    card_of,
    fitted_on,
    gather,
    learned,
    learning,
    read_all,
    settings_for,
)
from specviz.training.registry import WEIGHTS, Job

TOKEN_WEIGHT = 0.1
SOFT, HARD = 0.9, 0.1
FIRST_RATIO = 0.4
NOISE = 0.2 * 512
"""Width of the uniform noise on the features of a text of one token; in a longer one it is that much weaker."""


@dataclass
class Supervision:
    """A network and how it is taught. ``share`` of the time is gone."""

    net: BlockNet
    place: Tensor
    """[vocab] a token's place in the draft vocabulary, IGNORED where it has none."""
    share: float = 0.0

    def pace(self, share: float) -> None:
        """Take note of how far the training is."""
        self.share = share

    @property
    def ratio(self) -> float:
        """How much is shown of what the network gets wrong."""
        return FIRST_RATIO * (1 - self.share)

    def loss(self, dialogue: DialogueFeatures, generator: torch.Generator, scale: float) -> Tensor:
        """Sum over the counted places of an answer, or of several joined ones, that were not shown, times ``scale``."""
        net, text, truth = self.net, noisy(dialogue, generator), truth_of(self.net, self.place, dialogue)
        phase = int(torch.randint(net.block, (), generator=generator))
        inputs, counts = text, torch.ones_like(truth.places, dtype=torch.bool)
        if self.ratio > 0:
            replaced = glanced(net, text, truth, phase, self.ratio, generator)
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
    """Of one forward from every place of the answers, by level: was the truth drafted first among places whose lower levels
    were right (``first1``, ...), or among five (``five1``, ...); and first whatever the lower levels were (``blind1``, ...).
    ``tau``: tokens a step of one such forward emits, the bonus included."""
    reached, right, near, blind = (torch.zeros(net.block) for _ in range(4))
    starts = 0
    for dialogue in store.get(numbers):
        hits = torch.cat([_hits(net, dialogue, phase) for phase in range(net.block)])  # [start, level, rank]
        alive = torch.ones(len(hits), dtype=torch.bool, device=hits.device)
        starts += len(hits)
        for level in range(net.block):
            hit = hits[:, level]
            reached[level] += int(alive.sum())
            near[level] += int(hit.any(1)[alive].sum())
            blind[level] += int(hit[:, 0].sum())
            alive &= hit[:, 0]
            right[level] += int(alive.sum())
    named = {
        "first": right / reached.clamp_min(1),
        "five": near / reached.clamp_min(1),
        "blind": blind / max(1, starts),
    }
    by_level = {f"{name}{level + 1}": float(rate[level]) for name, rate in named.items() for level in range(net.block)}
    return {"tau": 1 + float(right.sum()) / max(1, starts), **by_level}


def _hits(net: BlockNet, dialogue: DialogueFeatures, phase: int) -> Tensor:
    """Bool [start, level, rank]: which of the five likeliest tokens is the text's, for blocks laid at ``phase``."""
    block = net.block
    first = max(0, dialogue.first - 1 - block)
    first += (phase - first) % block
    starts = torch.arange(first, len(dialogue.tokens) - 2 * block, block, device=dialogue.tokens.device)
    outputs = net(dialogue.tokens[None, 1:], dialogue.features[None, :-1, -1], phase)[0]
    places = starts[:, None] + torch.arange(block, device=starts.device)
    best = net.draft_ids[net.logits(outputs[places]).topk(min(5, len(net.draft_ids))).indices]
    return best == dialogue.tokens[places + block + 1][..., None]


@torch.inference_mode()
def chains(net: BlockNet, store: FeatureStore, numbers: Sequence[int], forwards: int, most: int) -> dict[str, float]:
    """Chain drafting with ``forwards`` drafter forwards a step along the answers, at most ``most`` steps: mean tokens
    emitted a step (``tau``, bonus included) and a forward; ``first1``, ... and ``five1``, ... by depth as above. Steps that
    the end of an answer would cut are left out."""
    depth = forwards * net.block
    reached, right, near = torch.zeros(depth), torch.zeros(depth), torch.zeros(depth)
    steps = emitted = 0
    for dialogue in store.get(numbers):
        along = _Along(net, dialogue)
        while along.root + depth + 1 < len(dialogue.tokens) and steps < most:
            accepted, close = along.step(forwards)
            reached[: accepted + 1] += 1
            right[:accepted] += 1
            near[: accepted + int(close)] += 1
            steps, emitted = steps + 1, emitted + accepted + 1
    named = {"first": right / reached.clamp_min(1), "five": near / reached.clamp_min(1)}
    figures = {
        "tau": emitted / max(1, steps),
        "tau_per_forward": emitted / max(1, forwards * steps),
        "steps": float(steps),
    }
    return figures | {f"{name}{level + 1}": float(rate[level]) for name, rate in named.items() for level in range(depth)}


class _Along:
    """A drafter that goes along one answer; ``root`` is the place of the last committed token."""

    def __init__(self, net: BlockNet, dialogue: DialogueFeatures) -> None:
        self.tap, self.dialogue, self.root = net.config.tap, dialogue, dialogue.first - 1
        self._tokens = dialogue.tokens.tolist()
        self._drafter = BlockDrafter(net)
        self._drafter.begin(self._context(), self._pass(0, self.root))

    def _context(self) -> Context:
        device = self.dialogue.tokens.device
        return Context(
            self._tokens[: self.root + 1], self.dialogue.first, 0, Warp(), Noise(0), device, 1 << 20, record_notes=False
        )

    def _pass(self, start: int, end: int) -> TargetPass | None:
        features = self.dialogue.features[start:end, -1]
        return TargetPass(features, {self.tap: features}) if end > start else None

    def step(self, forwards: int) -> tuple[int, bool]:
        """Draft a chain, commit what was right and the token after it. How many drafts were right, and whether the truth was
        among the five likeliest where the first wrong one stood."""
        drafter, context, root = self._drafter, self._context(), self.root
        chain, support = [self._tokens[root]], drafter.support
        five: list[list[int]] = []
        for _ in range(forwards):
            logits = drafter.blocks(context, chain, range(-1, len(chain) - 1), [len(chain) - 1])
            if logits is None or support is None:
                break
            chain += support[logits[0].argmax(-1)].tolist()
            five += support[logits[0].topk(min(5, len(support))).indices].tolist()
        truth = self._tokens[root + 1 : root + 1 + len(chain)]
        accepted = next(place for place in range(len(chain)) if place + 1 == len(chain) or chain[place + 1] != truth[place])
        path = tuple(range(1, accepted + 1))
        verdict = Verdict("greedy", path, truth[accepted], "target", (), (0, *path))
        scored = self._pass(root, root + accepted + 1)
        assert scored is not None
        tree = DraftTree.of(chain, range(-1, len(chain) - 1), self.dialogue.tokens.device)
        drafter.observe(Round(context, Draft(tree), scored, verdict, truth[: accepted + 1]))
        self.root += accepted + 1
        return accepted, accepted < len(five) and truth[accepted] in five[accepted]


# At twice this rate the linear start is lost before anything better is learned.
PEAK = 0.0015
# With so many dialogues read already, while they were written or by another recipe, the target reads no more.
ENOUGH = 800
FORWARDS, STEPS = 2, 1500
_STACKED = {"layer.up.weight": 2}


def make(job: Job) -> None:
    """Train, measure on held-out answers, write ``assets/weights/falcon.safetensors`` and print its card line."""
    inputs = gather(job)
    settings = settings_for(job, inputs, peak=PEAK)
    net = fresh_net(inputs, settings)
    state = state_of(inputs, Supervision(net, inputs.place), settings)
    print(f"{len(state.training)} dialogues to learn from; {settings}", flush=True)
    progress = train(state, checkpoint_of(job.recipe.name))
    finish(job, inputs, net, settings, progress, learning(state, progress))


def fresh_net(inputs: TrainInputs, settings: Settings) -> BlockNet:
    """A network that starts from the target and linear guesses."""
    model = inputs.assets.target.model
    head = model.get_output_embeddings().weight.detach().float()
    shape = block_shape(model.config, inputs.store.taps[-1], len(inputs.draft_ids))
    net = BlockNet(shape, inputs.assets.embedding, head, inputs.draft_ids).to(inputs.device)
    parallel.keep_cast(net.head)
    start(net, model, inputs.store.get(fitted_on(inputs, settings)))
    return net


def state_of(inputs: TrainInputs, supervision: Supervision, settings: Settings) -> FeatureTraining:
    """All that the training works on; the gates of the recurrence are moved each for itself."""
    net = supervision.net
    stacked = {name: 4 for name, value in net.named_parameters() if name.startswith("recurrence.weight")} | _STACKED
    return FeatureTraining(
        net, inputs.store, at_hand(inputs, ENOUGH), inputs.judged_on, settings, supervision.loss,
        lambda numbers: levels(net, inputs.store, numbers), Optimizer(learned(net), stacked=stacked), supervision.pace,
    )  # fmt: skip


def finish(job: Job, inputs: TrainInputs, net: BlockNet, settings: Settings, progress: Progress, told: Mapping[str, Any]) -> None:
    """Measure what the rounding leaves of the weights on held-out answers, then write them with their card and figures."""
    chosen = inputs.judged_on[:MEASURED_DIALOGUES]
    read_all(inputs.store, chosen, settings.workers)
    path = WEIGHTS / f"{job.recipe.name}.safetensors"
    aside = quantised_file(job.recipe.name)
    save(net, aside, {})
    head = inputs.assets.target.model.get_output_embeddings().weight
    rounded = load(aside, net.embedding, head, net.head.dtype, inputs.device)
    figures = {**levels(rounded, inputs.store, chosen), **_named(chains(rounded, inputs.store, chosen, FORWARDS, STEPS))}
    print("held-out:", "  ".join(f"{name} {value:.4f}" for name, value in figures.items()), flush=True)
    read = f"{sum(inputs.store.known(number) for number in inputs.training)} dialogues read"
    facts = card_of(job, inputs, settings, progress, {**figures, **told}, read)
    path.parent.mkdir(parents=True, exist_ok=True)
    save(net, path, facts)
    print_card(path, facts)


def _named(figures: dict[str, float]) -> dict[str, float]:
    """Beside those of one forward from every place, which have the bare names."""
    return {f"chain_{name}" if name.startswith(("tau", "first", "five")) else name: value for name, value in figures.items()}

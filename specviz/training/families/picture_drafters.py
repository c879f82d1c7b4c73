"""``train vlm_eagle``, ``vlm_hivis``, ``vlm_dream``: the small vision-language model and its own answers in, a drafter out.

*EAGLE with visual rows*: regression of the next feature and 0.1 of the cross-entropy, all rows shown (arXiv 2401.15077).
*HiViS* (2509.23928): words alone; three self-fed steps, each with its learned vector; deeper steps only where a tree would
still be alive; cross-entropy over the target's ten likeliest tokens on top.
*DREAM* (2505.19201): divergence from the target's distribution, regression of the last feature (0.2) and of the middle one.
Axis names: ``start`` (places that draft), ``row``, ``hidden``, ``step``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafters.networks.cross_net import CrossConfig, CrossNet
from specviz.drafters.networks.feature_file import save
from specviz.drafters.networks.feature_net import FeatureNet, attend
from specviz.models.device import choose_device
from specviz.models.hub.vocabulary import tokenizer_hash
from specviz.models.vision import scenes as shipped
from specviz.models.vision.vision_drafts import TARGET as LEARNED_FROM
from specviz.models.vision.vision_drafts import told_apart
from specviz.training import acceptance, driver
from specviz.training.families import feature
from specviz.training.families.feature import FeatureTraining, learned
from specviz.training.families.feature_start import sample, shape_of, start
from specviz.training.families.picture_store import (
    ALL,
    COMPRESSED,
    MIDDLE,
    WORDS,
    PictureDialogueFeatures,
    PictureDialogues,
    PictureStore,
    answered,
)
from specviz.training.families.scenes_batches import Writer
from specviz.training.families.scenes_net import Learner, Shape
from specviz.training.families.unrolling import sampled_starts, unroll
from specviz.training.features import DialogueFeatures
from specviz.training.registry import WEIGHTS, Job

TOKEN_WEIGHT, FEATURE_WEIGHT = 0.1, 0.2
NEAR_WEIGHT = 1.0
NEAR = 10
ALIVE = 5
STEPS = 3
NOISE = 0.1
"""Half the width of the uniform noise on features while training."""


def noisy(features: Tensor, generator: torch.Generator) -> Tensor:
    """Features as they are while drafting: only nearly right."""
    return features + (torch.rand(features.shape, generator=generator).to(features.device) - 0.5) * (2 * NOISE)


def all_rows_loss(net: FeatureNet, dialogue: DialogueFeatures, generator: torch.Generator, scale: float) -> Tensor:
    """EAGLE's. Taps are the input embeddings and the last feature."""
    embedded, features = dialogue.features[:, 0], dialogue.features[:, -1]
    rows = sampled_starts(dialogue.first, len(dialogue.tokens), [1.0], generator, dialogue.tokens.device)
    outputs = unroll(net, dialogue.tokens, noisy(features, generator), rows, embedded)[0]
    return _regression(net, outputs, features[rows[0] + 1])[0].sum() * scale


def _regression(net: FeatureNet, outputs: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
    """The loss [start] of outputs against true features, and the target's logits there."""
    with torch.no_grad():
        truth = F.linear(features, net.head)
    regression = F.smooth_l1_loss(outputs, features, reduction="none").mean(-1)
    return regression + TOKEN_WEIGHT * F.cross_entropy(net.logits(outputs), truth.softmax(-1), reduction="none"), truth


def words_loss(net: FeatureNet, dialogue: DialogueFeatures, generator: torch.Generator, scale: float) -> Tensor:
    """HiViS's: the loss of each step counts where the target's choice was among the five likeliest of every step before."""
    features = dialogue.features[:, -1]
    rows = sampled_starts(dialogue.first, len(dialogue.tokens), [1.0] * STEPS, generator, dialogue.tokens.device)
    outputs = unroll(net, dialogue.tokens, noisy(features, generator), rows)
    total, alive = torch.zeros((), device=features.device), torch.ones(len(rows[0]), device=features.device)
    for step, (chosen, output) in enumerate(zip(rows, outputs, strict=True)):
        alive = alive[torch.searchsorted(rows[step - 1], chosen)] if step else alive
        losses, truth = _regression(net, output, features[chosen + 1 + step])
        ours = net.logits(output)
        near = truth.topk(NEAR, dim=-1).indices
        losses = losses + NEAR_WEIGHT * F.cross_entropy(ours.gather(1, near), truth.gather(1, near).softmax(-1), reduction="none")
        total = total + (losses * alive).sum()
        alive = alive * (ours.topk(ALIVE, dim=-1).indices == truth.argmax(-1, keepdim=True)).any(-1)
    return total * scale


def cross_loss(net: CrossNet, dialogue: DialogueFeatures, generator: torch.Generator, scale: float) -> Tensor:
    """DREAM's. Taps are the input embeddings, the middle feature and the last one."""
    picture = cast(PictureDialogueFeatures, dialogue)
    embedded, between, features = (dialogue.features[:, tap] for tap in range(3))
    outputs, inside = net.whole(embedded, noisy(features, generator), picture.positions)
    rows = slice(dialogue.first - 1, len(dialogue.tokens) - 1)
    with torch.no_grad():
        distribution = F.linear(features[rows], net.head).log_softmax(-1)
    loss = F.kl_div(net.logits(outputs[rows]).log_softmax(-1), distribution, reduction="sum", log_target=True)
    loss = loss + FEATURE_WEIGHT * F.smooth_l1_loss(outputs[rows], features[rows], reduction="none").mean(-1).sum()
    loss = loss + F.smooth_l1_loss(inside[rows], between[rows], reduction="none").mean(-1).sum()
    return loss * scale


def unroll_cross(net: CrossNet, picture: PictureDialogueFeatures, starts: Tensor, depth: int) -> list[Tensor]:
    """Outputs [start, hidden] of each step of drafting from rows ``starts``, ascending, along the true text.

    Step 0 is the root's row: it reads thoughts up to the row before. Step j's row reads those and the outputs of steps
    0 to j - 1 in place of the target's thoughts; the embeddings of the rows between are true.
    """
    embedded, features, positions = picture.features[:, 0], picture.features[:, -1], picture.positions
    net.reach(int(positions[-1]) + 2)
    rows = torch.arange(len(embedded), device=embedded.device)
    later = rows[None] > rows[:, None]
    entered = net.enter(embedded)
    first = net.within(net.first, entered, positions, *net.keys_values(net.first, entered, positions), later)
    keys, values = (torch.cat(pair) for pair in zip(net.nothing(), net.thoughts(features[:-1]), strict=True))
    columns = torch.arange(len(keys), device=embedded.device)
    middle = net.across(first, keys, values, columns[None] > rows[:, None])
    committed = net.keys_values(net.last, middle, positions)
    queries = net.last.self_attn.q_proj(middle).view(len(rows), net.config.heads, -1)
    hidden = net.last.finish(middle, attend(net._turn(queries, positions), *committed, later))
    outputs = [net.norm(hidden)[starts]]
    thought: list[tuple[Tensor, Tensor]] = []
    drafted: list[tuple[Tensor, Tensor]] = []
    for step in range(1, depth):
        thought.append(net.thoughts(outputs[-1]))
        x, where = first[starts + step], positions[starts + step]
        x = net.reading.finish(x, attend(net._queries(x), keys, values, columns[None] > starts[:, None], thought))
        drafted.append(net.keys_values(net.last, x, where))
        queries = net._turn(net.last.self_attn.q_proj(x).view(len(x), net.config.heads, -1), where)
        x = net.last.finish(x, attend(queries, *committed, rows[None] > starts[:, None], drafted))
        outputs.append(net.norm(x))
    return outputs


def draft_logits(net: FeatureNet | CrossNet, picture: PictureDialogueFeatures, starts: Tensor, depth: int) -> list[Tensor]:
    """Logits [start, vocab] of each step of drafting along the truth; ``starts`` as of :func:`unroll`."""
    if isinstance(net, CrossNet):
        return [net.logits(output) for output in unroll_cross(net, picture, starts + 1, depth)]
    embedded = picture.features[:, 0] if picture.features.shape[1] > 1 else None
    outputs = unroll(net, picture.tokens, picture.features[:, -1], [starts] * depth, embedded)
    return [net.logits(output) for output in outputs]


@torch.inference_mode()
def acceptance_figures(net: FeatureNet | CrossNet, dialogues: Sequence[DialogueFeatures], depth: int) -> dict[str, float]:
    """Chain drafting from every place of greedy answers."""
    rows = [torch.zeros(0, depth, dtype=torch.long)]
    for dialogue in dialogues:
        inside = torch.arange(max(0, dialogue.first - 2), len(dialogue.tokens) - 1 - depth, device=dialogue.tokens.device)
        if len(inside):
            logits = draft_logits(net, cast(PictureDialogueFeatures, dialogue), inside, depth)
            ranks = [acceptance.ranks_of(one, dialogue.tokens[inside + 2 + step]) for step, one in enumerate(logits)]
            rows.append(torch.stack(ranks, 1).cpu())
    return acceptance.figures(torch.cat(rows))


TARGET = WEIGHTS / "scenes_vlm.safetensors"
DEPTH = 5
KEEP = 0.75
FITTED = 60
MEASURED = 80


@dataclass(frozen=True)
class Kind:
    """Which ``view`` of a prompt one drafter gets, which hidden states it reads, and its network and loss."""

    view: str
    taps: Callable[[int], tuple[int, ...]]
    network: Callable[[Learner, Any, list[int]], Any]
    loss: Callable[..., Tensor]


@dataclass(frozen=True)
class Settings(feature.Settings):
    """Small networks on short answers: many answers an update, and a higher rate."""

    peak: float = 0.004
    decay: float = 0.02
    every: float = 1.0
    batch: int = 12
    measured: int = 30


def make(job: Job) -> None:
    """Train, measure on held-out pictures, write the weights and print their card's line."""
    target = told_apart(TARGET)  # now: the file may be another by the time this is done
    learner, tokenizer, spoken = target_and_answers(job)
    kind = KINDS[job.recipe.name]
    layers = int(learner.model.config.text_config.num_hidden_layers)
    store: Any = PictureStore(learner, Writer(tokenizer), spoken, kind.taps(layers), kind.view, KEEP)
    settings = driver.settings_for(job, store.device, Settings)
    training, held_out = spoken.split()
    net = kind.network(learner, store, training[:: max(1, len(training) // FITTED)])
    state = FeatureTraining(
        net, store, training, held_out, settings, partial(kind.loss, net),
        lambda numbers: acceptance_figures(net, store.get(numbers), DEPTH),
    )  # fmt: skip
    weights = sum(value.numel() for value in learned(net).values())
    print(f"{weights / 1e6:.2f} M weights, {len(training)} answers to learn from; {settings}", flush=True)
    driver.train(state, driver.checkpoint_of(job.recipe.name))
    figures = acceptance_figures(net, store.get(held_out[:MEASURED]), DEPTH)
    line = f"{len(training)} answers of scenes-vlm about its own scenes, {sum(map(store.has, training))} of them read"
    more = {"tokenizer_hash": tokenizer_hash(tokenizer), LEARNED_FROM: target}
    driver.finish(job, state, figures, line, partial(save, net), **more)


def target_and_answers(job: Job) -> tuple[Learner, Any, PictureDialogues]:
    """The target that ships, and its own answers. Raises ModelUnavailable when there is no such target yet."""
    model: Any
    model, tokenizer = shipped.load(TARGET)
    learner = Learner.around(model.to(choose_device(job.device)), Shape())
    return learner, tokenizer, answered(learner, tokenizer, TARGET, driver.say)


def _shared(learner: Learner) -> tuple[Tensor, Tensor]:
    model = learner.model
    return model.get_input_embeddings().weight.detach().float(), model.get_output_embeddings().weight.detach().float()


def _from_last_layer(steps: int) -> Callable[[Learner, Any, list[int]], FeatureNet]:
    """A narrow network that starts from the target's last layer and a linear guess, with this many step vectors."""

    def build(learner: Learner, store: Any, numbers: list[int]) -> FeatureNet:
        layers = int(learner.model.config.text_config.num_hidden_layers)
        config = shape_of(learner.model.config, (layers,), False)
        config = type(config)(**{**vars(config), "steps": steps})
        net = FeatureNet(config, *_shared(learner), None).to(store.device)
        start(net, learner.model.model.text_model, sample(store, numbers, net.embedding, slice(-1, None)))
        return net

    return build


def _crossed(learner: Learner, store: Any, numbers: list[int]) -> CrossNet:
    """Decoder layers that start silent, a cross-attention that starts shut."""
    layers = int(learner.model.config.text_config.num_hidden_layers)
    config = CrossConfig(**{**vars(shape_of(learner.model.config, (0, layers), False)), "keep": KEEP})
    torch.manual_seed(0)
    net = CrossNet(config, *_shared(learner)).to(store.device)
    with torch.no_grad():
        for name, value in net.named_parameters():
            if value.ndim == 2:
                silent = name.startswith(("first.", "last.")) and ("o_proj" in name or "down_proj" in name)
                value.normal_(std=0.0 if silent else value.shape[1] ** -0.5)
        net.norm.weight.copy_(learner.model.model.text_model.norm.weight)
    return net


KINDS = {
    "vlm_eagle": Kind(ALL, lambda layers: (0, layers), _from_last_layer(0), all_rows_loss),
    "vlm_hivis": Kind(WORDS, lambda layers: (layers,), _from_last_layer(STEPS), words_loss),
    "vlm_dream": Kind(COMPRESSED, lambda layers: (0, MIDDLE, layers), _crossed, cross_loss),
}

"""``train vlm_eagle``, ``vlm_hivis``, ``vlm_dream``: the small vision-language model and its own answers in, a drafter out.

``vlm_dream_plain`` is DREAM's taught without its middle loss, a control that is not shipped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from specviz.drafters.networks.cross_net import CrossConfig, CrossNet
from specviz.drafters.networks.feature_file import save
from specviz.drafters.networks.feature_net import FeatureNet
from specviz.models.device import choose_device
from specviz.models.hub.vocabulary import tokenizer_hash
from specviz.models.vision import scenes as shipped
from specviz.models.vision.vision_drafts import PLAIN, plain_file, told_apart
from specviz.models.vision.vision_drafts import TARGET as LEARNED_FROM
from specviz.training.common.card import card, print_card
from specviz.training.common.loop import checkpoint_of, train
from specviz.training.common.parallel import sharing
from specviz.training.feature.feature_start import Sample, shape_of, start
from specviz.training.feature.recipes import FeatureTraining, Settings, learned
from specviz.training.registry import WEIGHTS, Job
from specviz.training.vision import picture_drafters as losses
from specviz.training.vision.picture_dialogues import PictureDialogues, answered
from specviz.training.vision.picture_store import ALL, COMPRESSED, MIDDLE, WORDS, PictureStore
from specviz.training.vision.scene_batches import Writer
from specviz.training.vision.scenes_model import Learner, Shape

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
    network: Callable[[Learner, PictureStore, list[int]], Any]
    loss: Callable[..., Tensor]


def make(job: Job) -> None:
    """Train, measure on held-out pictures, write the weights and print their card's line."""
    target = told_apart(TARGET)  # now: the file may be another by the time this is done
    learner, tokenizer, spoken = target_and_answers(job)
    settings = settings_for(job, learner)
    kind = KINDS[job.recipe.name]
    layers = int(learner.model.config.text_config.num_hidden_layers)
    store = PictureStore(learner, Writer(tokenizer), spoken, kind.taps(layers), kind.view, KEEP)
    training, held_out = spoken.split()
    net = kind.network(learner, store, training[:: max(1, len(training) // FITTED)])
    state = FeatureTraining(
        net, store, training, held_out, settings, partial(kind.loss, net),
        lambda numbers: losses.acceptance_figures(net, store.get(numbers), DEPTH),
    )  # fmt: skip
    weights = sum(value.numel() for value in learned(net).values())
    print(f"{weights / 1e6:.2f} M weights, {len(training)} answers to learn from; {settings}", flush=True)
    progress = train(state, checkpoint_of(job.recipe.name))
    figures = losses.acceptance_figures(net, store.get(held_out[:MEASURED]), DEPTH)
    read = sum(map(store.has, training))
    facts = card(
        job.recipe.name, settings, f"{len(training)} answers of scenes-vlm about its own scenes, {read} of them read",
        progress.spent(store.device.type), figures, tokenizer_hash=tokenizer_hash(tokenizer), **{LEARNED_FROM: target},
    )  # fmt: skip
    path = plain_file() if job.recipe.name == PLAIN else WEIGHTS / f"{job.recipe.name}.safetensors"
    save(net, path, facts)
    print_card(path, facts)


def target_and_answers(job: Job) -> tuple[Learner, Any, PictureDialogues]:
    """The target that ships, and its own answers. Raises ModelUnavailable when there is no such target yet."""
    device = choose_device(job.device)
    model, tokenizer = shipped.load(TARGET)
    learner = Learner.around(model.to(device), Shape())
    return learner, tokenizer, answered(learner, tokenizer, TARGET, _say)


def _say(line: str) -> None:
    print(time.strftime("%H:%M:%S"), line, flush=True)


def settings_for(job: Job, learner: Learner) -> Settings:
    """Small networks on short answers: many answers an update, and a higher rate."""
    common = {"minutes": job.minutes, "resume": job.resume, "every": 1.0, "measured": 30, "peak": 0.004, "decay": 0.02}
    if learner.model.device.type == "cuda":
        return Settings(batch=32, workers=1, **common)
    return Settings(batch=12, workers=sharing(), **common)


def _shared(learner: Learner) -> tuple[Tensor, Tensor]:
    model = learner.model
    return model.get_input_embeddings().weight.detach().float(), model.get_output_embeddings().weight.detach().float()


def _from_last_layer(steps: int) -> Callable[[Learner, PictureStore, list[int]], FeatureNet]:
    """A narrow network that starts from the target's last layer and a linear guess, with this many step vectors."""

    def build(learner: Learner, store: PictureStore, numbers: list[int]) -> FeatureNet:
        layers = int(learner.model.config.text_config.num_hidden_layers)
        config = shape_of(learner.model.config, (layers,), False)
        config = type(config)(**{**vars(config), "steps": steps})
        net = FeatureNet(config, *_shared(learner), None).to(store.device)
        start(net, learner.model.model.text_model, _sample(store, numbers, net.embedding))
        return net

    return build


def _sample(store: PictureStore, numbers: list[int], embedding: Tensor) -> Sample:
    """Answer places to fit the linear guess on."""
    rows = []
    for dialogue in store.get(numbers):
        places = torch.arange(max(0, dialogue.first - 2), len(dialogue.tokens) - 1, device=dialogue.tokens.device)
        thought = dialogue.features[:, -1]
        rows.append((thought[places], embedding[dialogue.tokens[places + 1]], thought[places + 1]))
    return Sample(*(torch.cat(parts) for parts in zip(*rows, strict=True)))


def _crossed(learner: Learner, store: PictureStore, numbers: list[int]) -> CrossNet:
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
    "vlm_eagle": Kind(ALL, lambda layers: (0, layers), _from_last_layer(0), losses.all_rows_loss),
    "vlm_hivis": Kind(WORDS, lambda layers: (layers,), _from_last_layer(losses.STEPS), losses.words_loss),
    "vlm_dream": Kind(COMPRESSED, lambda layers: (0, MIDDLE, layers), _crossed, losses.cross_loss),
    PLAIN: Kind(COMPRESSED, lambda layers: (0, MIDDLE, layers), _crossed, partial(losses.cross_loss, middle=0.0)),
}

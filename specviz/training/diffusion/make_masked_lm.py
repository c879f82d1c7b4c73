"""``train masked_lm``: the small draft model's weights, taught to look both ways and to fill in masks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import torch

from specviz.drafters.networks.masked_lm import MaskedLM, load, save
from specviz.drafters.networks.small_lm import SmallLM
from specviz.drafters.networks.small_lm import load as load_small
from specviz.models.device import choose_dtype
from specviz.models.drafters.drafts import FILE as SMALL
from specviz.training.common import data
from specviz.training.common.card import card, dialogues_line, file_digest, print_card
from specviz.training.common.loop import Progress, checkpoint_of, quantised_file, train
from specviz.training.common.parallel import cores
from specviz.training.common.target_assets import TargetAssets, target_assets
from specviz.training.diffusion import masking
from specviz.training.diffusion.block_agreement import Agreement, block_agreement, first_overlap
from specviz.training.diffusion.masked_training import MaskedTraining, Settings
from specviz.training.diffusion.masking import Masked
from specviz.training.feature.recipes import MARKS
from specviz.training.registry import WEIGHTS, Job

WINDOW = 384
SHOWN = (12, 16)
"""Dialogues and places of the figures that are shown while training."""
MEASURED = (120, 4000)
"""Held-out greedy dialogues, and steps at most."""
PLACES = 32
SAMPLED = (12, 9)
"""Held-out dialogues sampled at temperature 1, and the stride of the blocks in them."""
EARLY = 2000
"""The first dialogues that are learned from: at every milestone these have been."""


def from_autoregressive(start: SmallLM, window: int = WINDOW) -> MaskedLM:
    """The masked model that begins as ``start``: the same layers and projections, the mean embedding as the mask."""
    model = MaskedLM(replace(start.config, window=window), start.embedding, start.draft_ids).to(start.embedding.device)
    known = {name: value.detach().clone().float() for name, value in start.state_dict().items()}
    model.load_state_dict({**known, "blank": start.embedding.float().mean(0, keepdim=True)})
    return model.requires_grad_(True)


def prepare(model: MaskedLM, dialogues: data.Dialogues, markers: data.Markers, settings: Settings) -> MaskedTraining:
    """What trains ``model`` whole on the standard objective."""
    training, held_out = data.split(dialogues)
    # As the rows begin, which are drawn from the same seed.
    early = np.random.default_rng([settings.seed, 0]).permutation(np.asarray(training))[:EARLY].tolist()

    def figures() -> dict[str, float]:
        found = milestone_figures(model, dialogues, held_out, markers)
        known = milestone_figures(model, dialogues, early, markers)["tau"]
        return {"gap": known - found["tau"], **found}

    return MaskedTraining(
        model, settings, lambda start: _examples(dialogues, training, markers, settings, start, model.config.window), figures
    )


def _examples(
    dialogues: data.Dialogues,
    training: Sequence[int],
    markers: data.Markers,
    settings: Settings,
    start: int,
    window: int,
) -> Iterator[list[Masked]]:
    """Packed rows with hidden tokens, in parts; after a resumption other rows rather than hours of skipping."""
    generator = np.random.default_rng([settings.seed, start])
    stream = data.rows(dialogues, training, markers, window - 1, generator)
    while True:
        masked = masking.standard(list(islice(stream, settings.batch)), generator)
        cut = range(0, settings.batch, settings.part)
        yield [Masked(*(part[at : at + settings.part] for part in (masked.ids, masked.blank, masked.weight))) for at in cut]


def milestone_figures(
    model: MaskedLM, dialogues: data.Dialogues, held_out: Sequence[int], markers: data.Markers
) -> dict[str, float]:
    """Figures while training: blocks along a few held-out greedy answers."""
    greedy = data.greedy_only(dialogues, held_out)[: SHOWN[0]]
    agreement = block_agreement(model, dialogues, greedy, markers, SHOWN[1], 1000)
    return {
        "tau": agreement.tau,
        "first": agreement.by_place[0],
        "second_alone": agreement.alone[1],
        "longest": agreement.longest,
    }


def make(job: Job) -> None:
    """Train, measure what is shipped on held-out answers, write ``assets/weights/masked_lm.safetensors``."""
    files, name = data.find(job.data), job.recipe.name
    assets = target_assets(job.device)
    dialogues = data.read_all(files)
    embedding = assets.embedding.to(assets.target.device)
    start = load_small(SMALL, embedding, torch.float32, embedding.device)
    model = from_autoregressive(start)
    share = asked_share(dialogues, start.draft_ids)
    settings = replace(settings_for(assets, job), marks=tuple(round(share * mark) for mark in MARKS))
    state = prepare(model, dialogues, assets.markers, settings)
    print(f"{settings}", flush=True)
    progress = train(state, checkpoint_of(name))
    path, aside = WEIGHTS / f"{name}.safetensors", quantised_file(name)
    save(model, aside, {})
    figures = measured(load(aside, embedding, torch.float32, embedding.device), dialogues, assets)
    figures["curve"] = curve(progress, dialogues, share)
    spent = progress.spent(embedding.device.type, "hidden tokens")
    start_line = f"{SMALL.name} sha256 {file_digest(SMALL)}"
    facts = card(
        name, settings, dialogues_line(files), spent, figures, start=start_line, tokenizer_hash=assets.target.tokenizer_hash
    )  # fmt: skip
    save(model, path, facts)
    print_card(path, facts)


def asked_share(dialogues: data.Dialogues, draft_ids: torch.Tensor) -> float:
    """Of the answer tokens that are read, those that are asked for on average: hidden ones that the draft vocabulary has."""
    answers = np.concatenate([dialogues.answer(number) for number in data.split(dialogues)[0]])
    return masking.MEAN * float(np.isin(answers, draft_ids.cpu().numpy()).mean())


def curve(progress: Progress, dialogues: data.Dialogues, share: float) -> list[dict[str, float]]:
    """Milestones by answer tokens read, of which a ``share`` was asked for: in the first pass, where it is not broken off, all
    of them are distinct."""
    once = sum(len(dialogues.answer(number)) for number in data.split(dialogues)[0])
    read = [entry["hidden"] / share for entry in progress.history]
    return [
        {"tokens": tokens, "distinct": min(tokens, once), "tau": entry["tau"], "gap": entry["gap"]}
        for tokens, entry in zip(read, progress.history, strict=True)
    ]


def settings_for(assets: TargetAssets, job: Job) -> Settings:
    """A GPU takes wider batches; a processor one part a core at a time, in bfloat16 where it can."""
    device = assets.target.device
    half = choose_dtype("auto", device) == torch.bfloat16
    common = {"minutes": job.minutes, "resume": job.resume, "half": half}
    if device.type == "cuda":
        return Settings(batch=64, part=64, **common)
    torch.set_num_threads(1)
    return Settings(workers=cores(), **common)


def measured(model: MaskedLM, dialogues: data.Dialogues, assets: TargetAssets) -> dict[str, object]:
    """Blocks along held-out greedy answers of the kinds that are reported, what learned ones bring beyond that, and the first
    place's probability at temperature 1."""
    training, held_out = data.split(dialogues)
    sampled = data.sampled_only(dialogues, held_out)[: SAMPLED[0]]
    greedy = data.greedy_only(dialogues, held_out)[: MEASURED[0]]

    def blocks(numbers: Sequence[int]) -> Agreement:
        return block_agreement(model, dialogues, numbers, assets.markers, PLACES, MEASURED[1])

    agreement = blocks(greedy)
    kinds = {f"tau, {name}": round(blocks(numbers).tau, 3) for name, numbers in data.by_kind(dialogues, greedy).items()}
    gap = blocks(data.greedy_only(dialogues, training)[: MEASURED[0]]).tau - agreement.tau
    target = assets.target.model

    def logits(ids: torch.Tensor) -> torch.Tensor:
        return target(ids[None]).logits[0]

    overlap = first_overlap(model, logits, dialogues, sampled, assets.markers, PLACES, SAMPLED[1])
    return {**agreement.figures(), **kinds, "gap": round(gap, 3), "first_at_temperature_1": round(overlap, 3)}

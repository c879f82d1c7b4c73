"""``train gto``: the trained EAGLE-3 drafter in, a low-rank change to it with its card out, and how a control compares."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from specviz.drafters.networks.weights import read_weights, write_weights
from specviz.models.drafters.heads import load_heads
from specviz.models.drafters.lora_heads import CHANGES, control_file, digest, twin
from specviz.targets.text import TextTarget
from specviz.training.common import data, loop
from specviz.training.common.card import card, dialogues_line, print_card
from specviz.training.common.features import store_for
from specviz.training.common.parallel import cores
from specviz.training.common.target_assets import TargetAssets, target_assets
from specviz.training.feature import gto_training
from specviz.training.feature.acceptance_eval import greedy_only
from specviz.training.feature.gto import Arena, LowRank
from specviz.training.feature.gto_training import GtoTraining, Settings
from specviz.training.feature.recipes import read_all
from specviz.training.registry import WEIGHTS, Job

MEASURED = 40
START = "eagle3"


def make(job: Job) -> None:
    """Train, run the control, measure all three on held-out answers, write ``assets/weights/gto.safetensors``."""
    file = data.find(job.data)
    assets = target_assets(job.device)
    device = assets.target.device
    torch.set_num_threads(1 if device.type == "cpu" else torch.get_num_threads())  # cores are shared out by dialogues
    settings = settings_for(device, job)
    state, held_out = prepare(assets, data.read(file), settings)
    print(f"{len(state.training)} dialogues to learn from, {len(held_out)} to measure on; {settings}", flush=True)
    read_all(state.store, held_out, settings.workers)
    name = job.recipe.name
    progress = loop.train(state, loop.checkpoint_of(name))
    path, learned = WEIGHTS / f"{name}.safetensors", state.optimizer.averaged()
    runs = {
        "start": gto_training.unlearned(state.change),
        "control": rounded(control_file(), control_of(state)),
        "gto": rounded(loop.quantised_file(name), learned),
    }
    figures = gto_training.measured(state, runs, held_out, settings.groups.size, lambda line: print(line, flush=True))
    facts = card(
        name, settings, dialogues_line(file), progress.spent(device.type, "prefixes"), figures,
        **{CHANGES: base_of(), "tokenizer_hash": assets.target.tokenizer_hash},
    )  # fmt: skip
    write_weights(path, learned, facts)
    print_card(path, facts)


def settings_for(device: torch.device, job: Job) -> Settings:
    """A GPU takes more dialogues an update; a processor one a core at a time."""
    common = {"minutes": job.minutes, "resume": job.resume}
    return Settings(batch=16, workers=1, **common) if device.type == "cuda" else Settings(workers=cores(), **common)


def prepare(assets: TargetAssets, dialogues: data.Dialogues, settings: Settings) -> tuple[GtoTraining, list[int]]:
    """The rewarded training, and the held-out dialogues with greedy answers that everything is measured on."""
    loaded = assets.target
    target = TextTarget(loaded.model, loaded.name, sorted(loaded.eos_ids), "eager")
    shipped = load_heads(START, None, loaded, target)
    net, before = twin(shipped).float(), twin(shipped).float()
    training, held_out = data.split(dialogues)
    store = store_for(loaded.model, loaded.name, dialogues, assets.markers)
    ids = torch.arange(target.vocab_size, device=target.device) if net.draft_ids is None else net.draft_ids
    arena = Arena(net, before, target, data.places_in(ids, target.vocab_size))
    change = LowRank(net, settings.rank, settings.seed)
    return GtoTraining(arena, change, store, training, settings), greedy_only(store, held_out)[:MEASURED]


def control_of(state: GtoTraining) -> dict[str, Tensor]:
    """The factors that as many updates by cross-entropy alone lead to, from the same start."""
    control = state.control()
    gto_training.control_run(control, state.rates, loop.show)
    return control.optimizer.averaged()


def rounded(path: Path, factors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Write factors, and read what the rounding left of them: that is what is measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_weights(path, factors, {CHANGES: base_of()})
    device = next(iter(factors.values())).device
    return {name: value.to(device) for name, value in read_weights(path)[0].items()}


def base_of() -> str:
    """The file that is changed."""
    return f"{START}.safetensors {digest(WEIGHTS / f'{START}.safetensors')}"

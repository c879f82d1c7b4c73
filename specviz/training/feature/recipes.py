"""From ``train NAME`` to a bench that trains and a file that ships: what the recipes of feature drafters share."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from specviz.drafters.networks.feature_file import save
from specviz.drafters.networks.feature_net import FeatureNet
from specviz.drafters.networks.weights import read_weights
from specviz.models.hub.cache_dir import cache_folder
from specviz.training.common import data, trainer
from specviz.training.common.commit import commit
from specviz.training.common.features import FeatureStore, store_for
from specviz.training.common.optimizer import Optimizer
from specviz.training.common.target_assets import Material, material
from specviz.training.common.trainer import cores
from specviz.training.feature.acceptance_eval import by_kind, foresight, greedy_only
from specviz.training.feature.feature_start import sample, shape_of, start
from specviz.training.feature.feature_training import Bench, Loss, Settings, alike, learned, train, visited
from specviz.training.registry import WEIGHTS, Job

SUPPORT = 8192
FITTED_DIALOGUES = 96
MEASURED_DIALOGUES = 60
DEPTH = 5


@dataclass(frozen=True)
class Stuff:
    """The frozen target, the data and its split, the features, and the draft vocabulary's ids [support]."""

    material: Material
    file: Path
    store: FeatureStore
    training: list[int]
    held_out: list[int]
    draft_ids: Tensor

    @property
    def device(self) -> torch.device:
        """Where the target is, and so where training is."""
        return self.material.target.device


def gather(job: Job) -> Stuff:
    """Load the target and the data. On a processor each core works on its own, so torch is kept to one thread."""
    file = data.find(job.data)
    found = material(job.device)
    if found.target.device.type == "cpu":
        torch.set_num_threads(1)
    dialogues = data.read(file)
    training, held_out = data.split(dialogues)
    store = store_for(found.target.model, found.target.name, dialogues, found.markers)
    vocab = found.embedding.shape[0]
    ids, _ = data.draft_vocabulary(dialogues, training, min(SUPPORT, vocab), vocab, [found.markers.end])
    return Stuff(found, file, store, training, held_out, torch.from_numpy(ids).to(found.target.device))


def settings_for(job: Job, stuff: Stuff, **own: float) -> Settings:
    """A GPU takes one dialogue after the other, many to an update; a processor one a core at a time."""
    common = {"minutes": job.minutes, "resume": job.resume, **own}
    if stuff.device.type == "cuda":
        return Settings(batch=32, workers=1, **common)
    return Settings(workers=cores(), **common)


def fresh_net(stuff: Stuff, columns: slice, wide: bool, settings: Settings) -> FeatureNet:
    """A network that starts from the target; its norms, projections and layer are learned, the rest is the target's."""
    model = stuff.material.target.model
    taps = stuff.store.taps[columns]
    head = model.get_output_embeddings().weight.detach().float()
    net = FeatureNet(shape_of(model.config, taps, wide), stuff.material.embedding, head, stuff.draft_ids)
    net = net.to(stuff.device)
    generator = np.random.default_rng(settings.seed)
    chosen = [int(number) for number in generator.permutation(np.asarray(stuff.training))[:FITTED_DIALOGUES]]
    read_all(stuff.store, chosen, settings.workers)
    start(net, model, sample(stuff.store, chosen, stuff.material.embedding, columns))
    return net


def read_all(store: FeatureStore, numbers: list[int], workers: int) -> None:
    """Let the target read these dialogues now, on all cores."""
    missing = [number for number in numbers if not store.has(number)]
    if store.keeps and missing:
        groups = [missing[place : place + 4] for place in range(0, len(missing), 4)]
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(store.get, groups))


def at_hand(stuff: Stuff, enough: int) -> list[int]:
    """The dialogues to learn from that the target has read already, if there are so many; else all."""
    read = [number for number in stuff.training if stuff.store.has(number)]
    return read if len(read) >= enough else stuff.training


def checkpoint_of(job: Job) -> Path:
    """Where a training that was stopped goes on from."""
    return cache_folder() / "training" / f"{job.recipe.name}.safetensors"


def at_rest_of(name: str) -> Path:
    """Where rounded weights lie while they are measured: what ships stays whole until the figures are there."""
    path = cache_folder() / "training" / f"{name}_at_rest.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def show(entry: Mapping[str, float]) -> None:
    """One line of the log."""
    print(time.strftime("%H:%M:%S"), "  ".join(f"{name} {value:.4g}" for name, value in entry.items()), flush=True)


def run(job: Job, stuff: Stuff, settings: Settings, columns: slice, wide: bool, loss_of: Callable[[FeatureNet], Loss]) -> None:
    """The whole recipe: start, train, measure, write. ``columns`` are the drafter's taps among the store's."""
    net = fresh_net(stuff, columns, wide, settings)
    before = shipped(job, net) if settings.resume and not checkpoint_of(job).is_file() else ""
    bench = Bench(
        net, stuff.store, stuff.training, greedy_only(stuff.store, stuff.held_out),
        Optimizer(learned(net), rough=trainer.products(stuff.device)), loss_of(net),
        measure=lambda numbers: foresight(net, stuff.store, columns, numbers, DEPTH),
    )  # fmt: skip
    print(f"{len(bench.training)} dialogues to learn from, {len(stuff.held_out)} kept out; {settings}", flush=True)
    progress = train(bench, settings, checkpoint_of(job), show, before)
    finish(job, stuff, bench, columns, settings, progress)


def shipped(job: Job, net: FeatureNet) -> str:
    """Where there is no checkpoint, go on from the weights that ship, and return what was spent on those.

    Their eight-bit rounding is small beside an update; the optimiser's memory starts anew, and so do the minutes. The draft
    vocabulary may be another one: it picks rows of the target's head, which are not learned.
    """
    path = WEIGHTS / f"{job.recipe.name}.safetensors"
    if not path.is_file():
        return ""
    tensors, card = read_weights(path)
    tensors.pop("draft_ids", None)
    net.load_state_dict(tensors)
    print(f"Going on from {path.name}: {card.get('spent', '')}", flush=True)
    return card.get("spent", "")


def finish(job: Job, stuff: Stuff, bench: Bench, columns: slice, settings: Settings, progress: trainer.Progress) -> None:
    """Measure on held-out answers, write the weights with their card, and print the card's line."""
    assert isinstance(bench.net, FeatureNet)
    chosen = greedy_only(stuff.store, stuff.held_out)[:MEASURED_DIALOGUES]
    read_all(stuff.store, chosen, settings.workers)
    found = foresight(bench.net, stuff.store, columns, chosen, DEPTH)
    for kind, numbers in by_kind(stuff.store, chosen).items():
        found[f"tau, {kind}"] = foresight(bench.net, stuff.store, columns, numbers, DEPTH)["tau"]
    seen = visited(bench.training, settings, progress)
    learnt = alike(bench, seen)[:MEASURED_DIALOGUES]
    found["gap"] = foresight(bench.net, stuff.store, columns, learnt, DEPTH)["tau"] - found["tau"]
    print("held-out:", "  ".join(f"{name} {value:.4f}" for name, value in found.items()), flush=True)
    card = {
        "recipe": f"python -m specviz train {job.recipe.name} ({json.dumps(asdict(settings))})",
        "data": f"{stuff.file.name} sha256 {file_digest(stuff.file)}, one in {data.HELD_OUT_EVERY} kept out; {len(seen)} "
        f"dialogues of {sum(len(stuff.store.dialogues.answer(number)) for number in seen)} answer tokens learned from",
        "licence": "Apache-2.0, as the target's",
        "spent": progress.spent(stuff.device.type),
        "metrics": json.dumps({name: round(value, 4) for name, value in found.items()}),
        "commit": commit(),
        "tokenizer_hash": stuff.material.target.tokenizer_hash,
    }
    path = WEIGHTS / f"{job.recipe.name}.safetensors"
    save(bench.net, path, card)
    line = "; ".join(f"{name}: {value}" for name, value in card.items())
    print(f"- `{path.name}` ({path.stat().st_size / 1e6:.1f} MB): {line}", flush=True)


def file_digest(file: Path) -> str:
    """The beginning of a file's SHA-256."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]

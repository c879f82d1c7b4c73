"""``train falcon`` and ``train falcon_plain`` (no glancing): target and dialogues in, weights with their card out."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np

from specviz.drafters.networks.block_net import BlockNet, load, save
from specviz.models.drafters.falcon_ablation import plain_file
from specviz.models.drafters.lora_heads import digest
from specviz.training.common import data, trainer
from specviz.training.common.commit import commit
from specviz.training.common.optimizer import Optimizer
from specviz.training.falcon.acceptance_eval import chains, levels
from specviz.training.falcon.block_start import block_shape, start
from specviz.training.falcon.falcon import Teaching
from specviz.training.feature import recipes as feature_job
from specviz.training.feature.acceptance_eval import greedy_only
from specviz.training.feature.feature_training import Bench, Settings, learned, places_in, train
from specviz.training.feature.recipes import Stuff, at_rest_of
from specviz.training.registry import WEIGHTS, Job

PLAIN = "falcon_plain"
# At twice this rate the linear start is lost before anything better is learned.
PEAK = 0.0015
# With so many dialogues read already, while they were written or by another recipe, the target reads no more.
ENOUGH = 800
FORWARDS, STEPS = 2, 1500
_STACKED = {"layer.up.weight": 2}


def make(job: Job) -> None:
    """Train, measure on held-out answers, write ``assets/weights/falcon.safetensors`` and print its card line.

    The control without glancing stays on this machine, where the benchmark finds it.
    """
    stuff = feature_job.gather(job)
    settings = feature_job.settings_for(job, stuff, peak=PEAK)
    net = fresh_net(stuff, settings)
    teaching = Teaching(net, places_in(stuff.draft_ids, net.config.vocab_size), glancing=job.recipe.name != PLAIN)
    bench = bench_of(stuff, teaching)
    print(f"{len(bench.training)} dialogues to learn from; {settings}", flush=True)
    progress = train(bench, settings, feature_job.checkpoint_of(job), feature_job.show)
    finish(job, stuff, net, settings, progress)


def fresh_net(stuff: Stuff, settings: Settings) -> BlockNet:
    """A network that starts from the target and linear guesses."""
    model = stuff.material.target.model
    head = model.get_output_embeddings().weight.detach().float()
    shape = block_shape(model.config, stuff.store.taps[-1], len(stuff.draft_ids))
    net = BlockNet(shape, stuff.material.embedding, head, stuff.draft_ids).to(stuff.device)
    generator = np.random.default_rng(settings.seed)
    chosen = [int(number) for number in generator.permutation(np.asarray(stuff.training))[: feature_job.FITTED_DIALOGUES]]
    feature_job.read_all(stuff.store, chosen, settings.workers)
    start(net, model, stuff.store.get(chosen))
    return net


def bench_of(stuff: Stuff, teaching: Teaching) -> Bench:
    """All that the training works on; the gates of the recurrence are moved each for itself."""
    net = teaching.net
    stacked = {name: 4 for name, value in net.named_parameters() if name.startswith("recurrence.weight")} | _STACKED
    return Bench(
        net, stuff.store, feature_job.at_hand(stuff, ENOUGH), greedy_only(stuff.store, stuff.held_out),
        Optimizer(learned(net), stacked=stacked), teaching.loss,
        measure=lambda numbers: levels(net, stuff.store, numbers), pace=teaching.pace,
    )  # fmt: skip


def finish(job: Job, stuff: Stuff, net: BlockNet, settings: Settings, progress: trainer.Progress) -> None:
    """Measure what the rounding leaves of the weights on held-out answers, then write them with their card and figures."""
    chosen = greedy_only(stuff.store, stuff.held_out)[: feature_job.MEASURED_DIALOGUES]
    feature_job.read_all(stuff.store, chosen, settings.workers)
    path = plain_file() if job.recipe.name == PLAIN else WEIGHTS / f"{job.recipe.name}.safetensors"
    aside = at_rest_of(job.recipe.name)
    save(net, aside, {})
    head = stuff.material.target.model.get_output_embeddings().weight
    rounded = load(aside, net.embedding, head, net.head.dtype, stuff.device)
    found = {**levels(rounded, stuff.store, chosen), **_named(chains(rounded, stuff.store, chosen, FORWARDS, STEPS))}
    print("held-out:", "  ".join(f"{name} {value:.4f}" for name, value in found.items()), flush=True)
    card = card_of(job, stuff, settings, progress, found)
    path.parent.mkdir(parents=True, exist_ok=True)
    save(net, path, card)
    print(card_line(path, card), flush=True)


def _named(found: dict[str, float]) -> dict[str, float]:
    return {f"chain_{name}" if name.startswith(("first", "five")) else name: value for name, value in found.items()}


def card_of(job: Job, stuff: Stuff, settings: Settings, progress: trainer.Progress, found: dict[str, float]) -> dict[str, str]:
    """The model card that travels inside the file."""
    read = sum(stuff.store.known(number) for number in stuff.training)
    return {
        "recipe": f"python -m specviz train {job.recipe.name} ({json.dumps(asdict(settings))})",
        "data": f"{stuff.file.name} sha256 {digest(stuff.file)}, one in {data.HELD_OUT_EVERY} kept out; {read} dialogues read",
        "licence": "Apache-2.0, as the target's",
        "spent": f"{progress.seconds / 60:.0f} minutes on {stuff.device.type}, {progress.updates} updates, "
        f"{progress.tokens} answer tokens",
        "metrics": json.dumps({name: round(value, 4) for name, value in found.items()}),
        "commit": commit(),
        "tokenizer_hash": stuff.material.target.tokenizer_hash,
    }


def card_line(path: Path, card: dict[str, str]) -> str:
    """The line for ``assets/weights/README.md``."""
    parts = "; ".join(f"{name}: {value}" for name, value in card.items())
    return f"- `{path.name}` ({path.stat().st_size / 1e6:.1f} MB): {parts}"

"""``train eagle3``: target and dialogues in, weights with their card out."""

from __future__ import annotations

from functools import partial

from specviz.training import eagle3, feature_job
from specviz.training.feature_training import Bench, learned, places_in, train, use_average
from specviz.training.foresight import foresight, greedy_only
from specviz.training.optimizer import Optimizer
from specviz.training.registry import Job


def make(job: Job) -> None:
    """Train, measure on held-out answers, write ``assets/weights/eagle3.safetensors`` and print its card line."""
    stuff = feature_job.gather(job)
    settings = feature_job.settings_for(job, stuff)
    net = feature_job.fresh_net(stuff, eagle3.TAPS, True, settings)
    place = places_in(stuff.draft_ids, net.config.vocab_size)
    bench = Bench(
        net, stuff.store, stuff.training, greedy_only(stuff.store, stuff.held_out), Optimizer(learned(net)),
        loss=partial(eagle3.loss, net, place),
        measure=lambda numbers: foresight(net, stuff.store, eagle3.TAPS, numbers, feature_job.DEPTH),
    )  # fmt: skip
    print(f"{len(bench.training)} dialogues to learn from, {len(stuff.held_out)} kept out; {settings}", flush=True)
    progress = train(bench, settings, feature_job.checkpoint_of(job), feature_job.show)
    use_average(bench)
    feature_job.finish(job, stuff, bench, eagle3.TAPS, settings, progress)

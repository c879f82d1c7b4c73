"""``train eagle3``: target and dialogues in, weights with their card out."""

from __future__ import annotations

from functools import partial

from specviz.drafters.networks.feature_net import FeatureNet
from specviz.training.feature import eagle3
from specviz.training.feature import recipes as feature_job
from specviz.training.feature.feature_training import Loss, places_in
from specviz.training.registry import Job


def make(job: Job) -> None:
    """Train, measure on held-out answers, write ``assets/weights/eagle3.safetensors`` and print its card line."""
    stuff = feature_job.gather(job)
    place = places_in(stuff.draft_ids, stuff.material.embedding.shape[0])

    def loss(net: FeatureNet) -> Loss:
        return partial(eagle3.loss, net, place)

    feature_job.run(job, stuff, feature_job.settings_for(job, stuff), eagle3.TAPS, True, loss)

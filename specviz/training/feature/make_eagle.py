"""``train eagle``: target and dialogues in, weights with their card out."""

from __future__ import annotations

from functools import partial

from specviz.training.feature import eagle
from specviz.training.feature import recipes as feature_job
from specviz.training.registry import Job


def make(job: Job) -> None:
    """Train, measure on held-out answers, write ``assets/weights/eagle.safetensors`` and print its card line."""
    stuff = feature_job.gather(job)
    # Learning from a dialogue costs a fifth of having the target read it.
    settings = feature_job.settings_for(job, stuff)
    feature_job.run(job, stuff, settings, eagle.TAPS, False, lambda net: partial(eagle.loss, net))

"""``train falcon``: target and dialogues in, weights with their card out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specviz.drafters.networks.block_net import BlockNet, load, save
from specviz.training.common import parallel
from specviz.training.common.card import print_card
from specviz.training.common.loop import Progress, checkpoint_of, quantised_file, train
from specviz.training.common.optimizer import Optimizer
from specviz.training.falcon.acceptance_eval import chains, levels
from specviz.training.falcon.block_start import block_shape, start
from specviz.training.falcon.falcon import Supervision
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

"""The training loop of all recipes: settings, updates by the clock, milestones, early stopping, checkpoints, cards.

A family is a :class:`TrainState` with its own network, data and loss; :func:`train` does the rest, and :func:`ship` writes the
file of weights.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from specviz.drafting.networks.weights import read_weights, write_weights
from specviz.errors import BadInput, ModelUnavailable
from specviz.models.hub.cache_dir import cache_folder
from specviz.training import parallel
from specviz.training.optimizer import LowRank, Optimizer
from specviz.training.registry import WEIGHTS
from specviz.training.registry import Job as Job

Report = Callable[[Mapping[str, float]], None]
Example = TypeVar("Example")
Figures = Mapping[str, Any]
Save = Callable[[Path, dict[str, str]], None]
"""Writes a file of weights with its card."""
LICENCE = "Apache-2.0, like the target's"
"""The licence of weights learned from the target's own dialogues."""
SAVE_SECONDS = 180.0
"""Wall-clock seconds between checkpoints, unless a milestone writes one earlier."""


@dataclass(frozen=True)
class Schedule:
    """A recipe's settings; ``recipes.toml`` gives the values that differ from these defaults.

    ``minutes`` is the total training time, without measuring and saving; on a CPU it is processor time per core.
    The learning rate warms up for ``warm`` updates to its ``peak`` and falls at the end; ``decay`` is the weight decay.

    A milestone every ``every`` minutes measures the averaged weights on ``measured`` held-out examples. Training ends after
    ``patience`` milestones without a longer acceptance length ``tau`` (0: never).

    An update reads ``batch`` examples (``later`` in a second stage), ``part`` of them per pass (0: all, or as many as a GPU's
    memory holds). ``workers`` threads share the passes, each with torch on one thread. ``average`` is the decay factor of
    the averaged weights.
    """

    minutes: float = 60.0
    peak: float = 0.004
    decay: float = 0.0
    warm: int = 40
    every: float = 2.0
    measured: int = 24
    patience: int = 0
    batch: int = 1
    later: int = 0
    part: int = 1
    workers: int = 1
    average: float = 0.99
    resume: bool = False


def settings_for(job: Job, device: torch.device) -> Schedule:
    """The recipe's settings on this device.

    By default, a CPU's cores share an update, with torch itself on one thread; a recipe may set another number of workers. A GPU
    uses the recipe's ``cuda`` settings and measures more often.
    """
    chosen: dict[str, Any] = {"minutes": job.minutes, "resume": job.resume, **job.recipe.settings}
    if device.type == "cpu":
        chosen = {"workers": 0, **chosen}
        chosen["workers"] = chosen["workers"] or parallel.sharing()
    else:
        every = chosen.get("every", Schedule.every)
        chosen |= {"workers": 1, "every": min(every, job.minutes / 10), **job.recipe.cuda}
    return Schedule(**chosen)


@dataclass
class Progress:
    """Progress of a training run. ``seconds`` is the training time alone, over all resumptions; ``entered`` is the update at
    which ``stage`` began."""

    updates: int = 0
    seconds: float = 0.0
    tokens: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    stage: str = ""
    entered: int = 0


class Step(NamedTuple):
    """A batch's ``loss``, its number of ``tokens``, and its ``gradients`` by parameter."""

    loss: float
    tokens: int
    gradients: Mapping[str, Tensor]


class TrainState:
    """The parameters in training and their checkpoint; a family's subclass adds the data, the loss and the figures."""

    unit = "answer tokens"
    """The unit of ``Progress.tokens``."""
    folding: nn.Module | None = None
    """A network that caches values derived from its weights; they become invalid when the weights change."""
    prefix = ""
    """The prefix of a parameter's name that the file of weights omits."""
    second: tuple[str, float] = ("", 1.0)
    """The second stage, and the share of the time after which it begins."""
    marks: Sequence[int] = ()
    """Numbers of tokens at which an extra milestone is measured."""
    stream: Iterator[Any]
    """The batches of the updates to come, each for ``learn_from``."""
    learn_from: Callable[[Any], Step]
    """Loss and gradients of a batch."""

    def __init__(
        self, settings: Schedule, learned: nn.Module | LowRank | Mapping[str, Tensor],
        weights: Mapping[str, Tensor] | None = None, buffers: Mapping[str, Tensor] | None = None, **optimizer: Any,
    ) -> None:  # fmt: skip
        """``learned`` is a set of parameters, a network, or a low-rank change. ``weights`` are the network's tensors for the
        checkpoint, by default those that the optimizer updates; ``buffers`` are further tensors that change in place."""
        self.settings, self.decay, self.part = settings, settings.decay, settings.part
        self.change = learned if isinstance(learned, LowRank) else None
        if isinstance(learned, nn.Module):
            learned = {name: value for name, value in learned.named_parameters() if value.requires_grad}
        self.progress, self.best = Progress(), dict[str, Tensor]()
        self._weights, self._buffers = weights, dict(buffers or {})
        self.move(learned.matrices if isinstance(learned, LowRank) else learned, **optimizer)

    def move(self, leaves: Mapping[str, Tensor], **optimizer: Any) -> None:
        """Give these leaves a new optimizer, at the start of training or of a stage."""
        self.leaves = dict(leaves)
        moved = (
            {name: self.shaped(name, value.data) for name, value in leaves.items()}
            if self.change is None
            else self.change.factors
        )
        self.device = next(iter(moved.values())).device
        options = {"fast_dtype": parallel.products(self.device), "average": self.settings.average, **optimizer}
        self.optimizer = Optimizer(moved, **options)

    def shaped(self, name: str, value: Tensor) -> Tensor:
        """A parameter or gradient in the optimizer's shape: convolutions as matrices [out, in * place]."""
        return value if value.ndim < 3 else value.flatten(1)

    def begin(self) -> None:
        """Start the data at the update given by ``progress``; called once, after any checkpoint is read."""

    def step(self, share: float) -> Step:
        """Loss and gradients of the next batch; ``share`` is the fraction of the training time that has passed."""
        return self.learn_from(next(self.stream))

    def start_second_stage(self) -> None:
        """Prepare the second stage: by default it starts from the averaged weights."""
        self.use(self.optimizer.averaged())

    def enter(self, stage: str) -> None:
        """Begin another stage; a subclass creates its optimizer."""
        self.progress.stage, self.progress.entered = stage, self.progress.updates

    def rate(self, share: float) -> float:
        """The learning rate of the next update."""
        return rate(self.settings.peak, share, self.optimizer.updates, self.settings.warm)

    def settle(self) -> None:
        """Update the network's derived values after a change of the optimizer's parameters."""
        if self.change is not None:
            self.change.put()
        if self.folding is not None:
            self.folding.eval()

    def measure(self) -> Mapping[str, float]:
        """A milestone's figures on held-out data, with the averaged weights in the network."""
        return {}

    def spent(self) -> str:
        """The card's entry on training time and amount of data."""
        done = self.progress
        return f"{done.seconds / 60:.0f} minutes on {self.device.type}, {done.updates} updates, {done.tokens} {self.unit}"

    def figures(self) -> Figures:
        """The card's figures for the weights as stored, by default a milestone's."""
        return self.measure()

    def learn(self, examples: Sequence[Example], loss: Callable[[Sequence[Example]], Tensor], count: int) -> Step:
        """Sum loss and gradients over ``examples``; ``loss`` receives those of one pass, and ``count`` becomes ``Step.tokens``.

        If a GPU's memory is too small for a pass, halves the passes from then on. Raises ModelUnavailable if not even a single
        example fits.
        """
        while True:
            part = min(self.part or len(examples), len(examples))
            parts = [examples[place : place + part] for place in range(0, len(examples), part)]
            try:
                summed, value = parallel.gradients(parts, loss, list(self.leaves.values()), self.settings.workers)
                break
            except torch.OutOfMemoryError as problem:
                if part == 1:
                    raise ModelUnavailable(
                        "The GPU's memory is too small for this training, even with one example per pass: free some of it, or "
                        "train with --device cpu."
                    ) from problem
                self.part = part // 2
            torch.cuda.empty_cache()
            print(f"The GPU's memory is too small for {part} examples per pass: using {self.part} from now on.", flush=True)
        gradients = dict(zip(self.leaves, summed, strict=True))
        if self.change is not None:
            return Step(value, count, self.change.gradients(gradients))
        return Step(value, count, {name: self.shaped(name, gradient) for name, gradient in gradients.items()})

    @property
    def in_second_stage(self) -> bool:
        """Whether the second stage has begun."""
        return self.progress.stage == self.second[0]

    def update(self, share: float, rate: float | None = None) -> Step:
        """Make one update at ``rate``, by default the schedule's learning rate."""
        stage, begins = self.second
        if share >= begins and not self.in_second_stage:
            self.start_second_stage()
            self.enter(stage)
        step = self.step(share)
        self.apply(step, self.rate(share) if rate is None else rate)
        self.progress.updates += 1
        self.progress.tokens += step.tokens
        return step

    def apply(self, step: Step, rate: float) -> None:
        """Update the parameters."""
        self.optimizer.step(step.gradients, rate, self.decay, self.settings.workers)
        self.settle()

    def use(self, weights: Mapping[str, Tensor]) -> None:
        """Put these weights into the network."""
        with torch.no_grad():
            for name, value in self.optimizer.parameters.items():
                value.copy_(weights[name].view(value.shape))
        self.settle()

    @contextmanager
    def using(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        """Put these weights into the network for the ``with`` block, then restore its own."""
        own = {name: value.detach().clone() for name, value in self.optimizer.parameters.items()}
        self.use(weights)
        try:
            yield
        finally:
            self.use(own)

    def save(self, path: Path, card: dict[str, str]) -> None:
        """Write the optimizer's parameters, for recipes that ship nothing else."""
        write_weights(path, self.optimizer.parameters, card)

    def out_of_patience(self) -> bool:
        """Whether the last ``patience`` milestones brought no improvement."""
        patience = self.settings.patience
        values = [entry["tau"] for entry in self.progress.history if "tau" in entry]
        return 0 < patience < len(values) and max(values[-patience:]) <= max(values[:-patience])

    def tensors(self) -> dict[str, Tensor]:
        """The checkpoint's tensors: weights, optimizer state, best average, buffers."""
        weights = self.optimizer.parameters if self._weights is None else self._weights
        tensors = {f"weight.{name}": value for name, value in weights.items()} | self.optimizer.state
        tensors |= {f"best.{name}": value for name, value in self.best.items()}
        return tensors | {f"kept.{name}": value for name, value in self._buffers.items()}

    def write(self, checkpoint: Path) -> None:
        """Write a checkpoint atomically: if interrupted, the previous one stays intact."""
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        fresh = checkpoint.with_suffix(".new")
        tensors = {name: value.detach().cpu().contiguous() for name, value in self.tensors().items()}
        save_file(tensors, fresh, metadata={"progress": json.dumps(asdict(self.progress))})
        os.replace(fresh, checkpoint)

    @torch.no_grad()
    def read(self, checkpoint: Path) -> None:
        """Restore a checkpoint. Raises BadInput if its tensors do not fit this recipe."""
        self.progress = progress_in(checkpoint)
        if self.progress.stage:
            entered = self.progress.entered
            self.enter(self.progress.stage)
            self.progress.entered = entered
        if self.settings.patience and any("tau" in entry for entry in self.progress.history):
            self.best = {name: torch.empty_like(value) for name, value in self.optimizer.parameters.items()}
        own = self.tensors()
        with safe_open(checkpoint, framework="pt") as file:
            strange = [
                name
                for name, value in own.items()
                if name not in file.keys() or tuple(file.get_slice(name).get_shape()) != value.shape
            ]
            if strange:
                raise BadInput(
                    f"The checkpoint {checkpoint} belongs to another version of this recipe ({strange[0]} does not fit): "
                    "delete it, or train without --resume."
                )
            for name, value in own.items():
                value.copy_(file.get_tensor(name))
        self.optimizer.updates = self.progress.updates - self.progress.entered
        self.settle()


def train(state: TrainState, checkpoint: Path, report: Report | None = None) -> Progress:
    """Train until the minutes are spent or patience ends, with measurements and checkpoints.

    Leaves the averaged weights in the network: the latest, or, with ``patience``, those of the best milestone.
    """
    settings, report = state.settings, report or show
    state.progress = Progress()
    if settings.resume and checkpoint.is_file():
        state.read(checkpoint)
        print(f"resumed after {state.progress.seconds / 60:.1f} minutes, {state.progress.updates} updates", flush=True)
    elif settings.resume:
        print(f"There is no checkpoint {checkpoint.name} to resume from: starting from scratch.", flush=True)
    state.begin()
    progress, limit, cores = state.progress, 60 * settings.minutes, max(settings.workers, torch.get_num_threads())
    # Processor time on a CPU: on a shared machine, a wall-clock schedule would end before anything was learned.
    now = (lambda: time.process_time() / cores) if state.device.type == "cpu" else time.monotonic
    due, saved = progress.seconds + 60 * settings.every, time.monotonic()
    losses: list[float] = []
    while (share := min(1.0, progress.seconds / limit)) < 1 and not state.out_of_patience():
        tokens, since = progress.tokens, now()
        losses.append(state.update(share).loss)
        progress.seconds += now() - since
        marked = any(tokens < mark <= progress.tokens for mark in state.marks)
        if progress.seconds >= min(due, limit) or marked:
            _milestone(state, checkpoint, sum(losses) / len(losses), report)
            losses, due, saved = [], progress.seconds + 60 * settings.every, time.monotonic()
        elif time.monotonic() - saved > SAVE_SECONDS:
            state.write(checkpoint)
            saved = time.monotonic()
    state.use(state.best or state.optimizer.averaged())
    return progress


def _milestone(state: TrainState, checkpoint: Path, loss: float, report: Report) -> None:
    """Measure the averaged weights, record the figures, write a checkpoint."""
    progress = state.progress
    with state.using(state.optimizer.averaged()):
        figures = dict(state.measure())
    if "held_out" in figures:
        figures["gap"] = figures["held_out"] - loss
    values = [past["tau"] for past in progress.history if "tau" in past]
    if state.settings.patience and figures.get("tau", -1.0) >= max(values, default=0.0):
        state.best = {name: value.clone() for name, value in state.optimizer.averaged().items()}
    entry = {"updates": progress.updates, "minutes": progress.seconds / 60, "tokens": progress.tokens, "loss": loss}
    progress.history.append({**entry, **figures})
    state.write(checkpoint)
    report(progress.history[-1])


def rate(peak: float, share: float, updates: int, warm: int = 40) -> float:
    """The learning rate after ``share`` of the time: a short warm-up, then constant, then a linear fall to 2 %."""
    fall = min(1.0, max(0.02, (1 - share) / 0.45))
    return peak * fall * min(1.0, (updates + 1) / warm)


def show(entry: Mapping[str, float]) -> None:
    """Print figures as a line of the log."""
    say("  ".join(f"{name} {value:.4g}" for name, value in entry.items()))


def say(line: str) -> None:
    """Print a line of the log with the time."""
    print(time.strftime("%H:%M:%S"), line, flush=True)


def checkpoint_of(name: str) -> Path:
    """The checkpoint path of the training run ``name``."""
    return cache_folder() / "training" / f"{name}.safetensors"


def progress_in(checkpoint: Path) -> Progress:
    """Read the progress stored in a checkpoint."""
    with safe_open(checkpoint, framework="pt") as file:
        return Progress(**json.loads((file.metadata() or {})["progress"]))


def weights_of(job: Job) -> Path:
    """The path of the recipe's file of weights."""
    return WEIGHTS / f"{job.recipe.writes or job.recipe.name}.safetensors"


def run(job: Job, state: TrainState, data: str, save: Save | None = None, licence: str = LICENCE, **more: str) -> None:
    """Train, measure the weights as rounded for storage, and write the recipe's file; ``data`` describes the training data."""
    count = sum(value.numel() for value in state.optimizer.parameters.values())
    print(f"training {count / 1e6:.2f} M parameters on {data}; {state.settings}", flush=True)
    train(state, checkpoint_of(job.recipe.name))
    save, path = save or state.save, checkpoint_of(f"{job.recipe.name}_at_rest")
    path.parent.mkdir(parents=True, exist_ok=True)
    save(path, {})
    rounded = {state.prefix + name: value for name, value in read_weights(path)[0].items()}
    path.unlink()
    # Weights that do not ship stay as they are; the unrounded ones are restored after the figures, for the final file.
    with state.using({**state.optimizer.parameters, **rounded}):
        figures = state.figures()
    ship(job, asdict(state.settings), data, state.spent(), figures, save, licence, **more)


def ship(
    job: Job, settings: Mapping[str, Any], data: str, spent: str, figures: Figures, save: Save, licence: str = LICENCE,
    **more: str,
) -> None:  # fmt: skip
    """Write the recipe's file with its card, figures rounded to four decimals, and print the card for
    ``assets/weights/README.md``."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False).stdout.strip()
    metrics = json.dumps(json.loads(json.dumps(figures), parse_float=lambda number: round(float(number), 4)))
    print("held-out:", metrics, flush=True)
    card = {
        "recipe": f"python -m specviz train {job.recipe.name} ({json.dumps(settings)})", "data": data,
        "licence": licence, "spent": spent, "metrics": metrics, "commit": commit or "unknown", **more,
    }  # fmt: skip
    path = weights_of(job)
    path.parent.mkdir(parents=True, exist_ok=True)
    save(path, card)
    parts = "; ".join(f"{name}: {value}" for name, value in card.items())
    print(f"- `{path.name}` ({path.stat().st_size / 1e6:.1f} MB): {parts}", flush=True)

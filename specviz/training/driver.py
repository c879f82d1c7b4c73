"""The training loop of all recipes: settings, time limits, milestones, early stopping, checkpoints and model cards.

A family subclasses :class:`TrainState` with a network, data and a loss. :func:`train` trains, :func:`ship` writes the weights.
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
Metrics = Mapping[str, Any]
Save = Callable[[Path, dict[str, str]], None]
"""Function that writes a weights file, from a path and a card."""
LICENCE = "Apache-2.0, like the target's"
"""Licence of weights trained on dialogues of the target."""
SAVE_SECONDS = 180.0
"""Maximum wall-clock seconds between checkpoints."""


@dataclass(frozen=True)
class Schedule:
    """Training settings. A recipe in ``recipes.toml`` states the values that differ from these defaults.

    ``minutes``: training time, without measuring and saving; on a CPU, processor time per core. ``peak``: maximum learning rate,
    reached after ``warm`` updates; falls at the end. ``decay``: weight decay. ``every``: minutes between milestones, which
    measure the averaged weights on ``measured`` held-out examples. ``patience``: number of milestones without a longer acceptance
    length ``tau`` that ends training; 0: none.

    ``batch``: examples per update; ``later``: in the second stage. ``part``: examples per pass; 0: all, or as many as fit into
    the GPU's memory. ``workers``: threads that share the passes; torch runs single-threaded in each. ``average``: decay factor of
    the averaged weights. ``resume``: whether to continue from a checkpoint.
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
    """Return the settings of the recipe for ``device``.

    On a CPU, all cores share an update by default. On a GPU, the recipe's ``cuda`` settings apply, and milestones are at most a
    tenth of the training time apart.
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
    """Progress of a training run, over all resumptions. ``seconds``: training time. ``entered``: first update of ``stage``."""

    updates: int = 0
    seconds: float = 0.0
    tokens: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    stage: str = ""
    entered: int = 0


class Step(NamedTuple):
    """Loss, number of tokens, and gradients by parameter name, of one batch."""

    loss: float
    tokens: int
    gradients: Mapping[str, Tensor]


class TrainState:
    """Parameters in training and their checkpoint. A family's subclass adds data, loss and metrics."""

    unit = "answer tokens"
    """Unit of ``Progress.tokens``."""
    folding: nn.Module | None = None
    """Network with cached values that must be recomputed when the weights change."""
    prefix = ""
    """Prefix of parameter names that the weights file omits."""
    second: tuple[str, float] = ("", 1.0)
    """Name of the second stage, and the share of the training time after which this stage begins."""
    marks: Sequence[int] = ()
    """Numbers of tokens at which to add a milestone."""
    stream: Iterator[Any]
    """Batches for :attr:`learn_from`."""
    sources: Mapping[str, str] = {}
    """Digests, by name, of the data and weights that training reads and checkpoints omit."""
    learn_from: Callable[[Any], Step]
    """Function that returns loss and gradients of a batch."""

    def __init__(
        self, settings: Schedule, learned: nn.Module | LowRank | Mapping[str, Tensor],
        weights: Mapping[str, Tensor] | None = None, buffers: Mapping[str, Tensor] | None = None, **optimizer: Any,
    ) -> None:  # fmt: skip
        """``learned``: what to train. ``weights``: tensors for the checkpoint; None: the trained parameters. ``buffers``: tensors
        for the checkpoint that training changes in place. ``optimizer``: options for :class:`Optimizer`."""
        self.settings, self.decay, self.part = settings, settings.decay, settings.part
        self.change = learned if isinstance(learned, LowRank) else None
        if isinstance(learned, nn.Module):
            learned = {name: value for name, value in learned.named_parameters() if value.requires_grad}
        self.progress, self.best = Progress(), dict[str, Tensor]()
        self._weights, self._buffers = weights, dict(buffers or {})
        self.move(learned.leaves if isinstance(learned, LowRank) else learned, **optimizer)

    def move(self, leaves: Mapping[str, Tensor], **optimizer: Any) -> None:
        """Create an optimizer for ``leaves``, at the start of training or of a stage."""
        self.leaves = dict(leaves)
        moved = self.change.factors if self.change else {name: self.shaped(name, value.data) for name, value in leaves.items()}
        self.device = next(iter(moved.values())).device
        options = {"fast_dtype": parallel.products(self.device), "average": self.settings.average, **optimizer}
        self.optimizer = Optimizer(moved, **options)

    def shaped(self, name: str, value: Tensor) -> Tensor:
        """Return a parameter or gradient in the optimizer's shape: convolutions become matrices [out, in * place]."""
        return value if value.ndim < 3 else value.flatten(1)

    def begin(self) -> None:
        """Set up the data, starting at update ``progress.updates``. Called once, after a checkpoint has been read."""

    def step(self, share: float) -> Step:
        """Return loss and gradients of the next batch. ``share``: fraction of the training time that has passed."""
        return self.learn_from(next(self.stream))

    def start_second_stage(self) -> None:
        """Prepare the second stage. By default, the averaged weights replace the current ones."""
        self.use(self.optimizer.averaged())

    def enter(self, stage: str) -> None:
        """Begin a stage. A subclass also creates the optimizer of the stage."""
        self.progress.stage, self.progress.entered = stage, self.progress.updates

    def rate(self, share: float) -> float:
        """Return the learning rate of the next update."""
        return rate(self.settings.peak, share, self.optimizer.updates, self.settings.warm)

    def settle(self) -> None:
        """Recompute values that depend on the parameters. Called after every change of the parameters."""
        if self.change:
            self.change.put()
        if self.folding:
            self.folding.eval()

    def measure(self) -> Mapping[str, float]:
        """Return metrics on held-out data for a milestone. The network holds the averaged weights at this time."""
        return {}

    def spent(self) -> str:
        """Return the card's entry on training time and amount of data."""
        done = self.progress
        return f"{done.seconds / 60:.0f} minutes on {self.device.type}, {done.updates} updates, {done.tokens} {self.unit}"

    def metrics(self) -> Metrics:
        """Return the metrics for the card. The network holds the weights as stored at this time."""
        return self.measure()

    def learn(self, examples: Sequence[Example], loss: Callable[[Sequence[Example]], Tensor], count: int) -> Step:
        """Return loss and gradients summed over ``examples``. ``loss``: function that returns the loss of one pass. ``count``:
        number of tokens.

        If a pass exceeds the GPU's memory, passes are halved from then on. Raises ModelUnavailable if a single example does not
        fit.
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
                        "The GPU has too little memory for this training, even with one example per pass: free some memory, or "
                        "train with --device cpu."
                    ) from problem
                self.part = part // 2
            torch.cuda.empty_cache()
            print(f"The GPU has too little memory for {part} examples per pass: using {self.part} from now on.", flush=True)
        gradients = dict(zip(self.leaves, summed, strict=True))
        if self.change:
            return Step(value, count, self.change.gradients(gradients))
        return Step(value, count, {name: self.shaped(name, gradient) for name, gradient in gradients.items()})

    @property
    def in_second_stage(self) -> bool:
        return self.progress.stage == self.second[0]

    def update(self, share: float, rate: float | None = None) -> Step:
        """Make one update. ``rate``: learning rate; None: by the schedule."""
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
        """Update the parameters with the gradients of ``step``."""
        self.optimizer.step(step.gradients, rate, self.decay, self.settings.workers)
        self.settle()

    def use(self, weights: Mapping[str, Tensor]) -> None:
        """Set the trained parameters of the network to ``weights``."""
        with torch.no_grad():
            for name, value in self.optimizer.parameters.items():
                value.copy_(weights[name].view(value.shape))
        self.settle()

    @contextmanager
    def using(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        """Set the trained parameters to ``weights`` during the ``with`` block, then restore them."""
        own = {name: value.detach().clone() for name, value in self.optimizer.parameters.items()}
        self.use(weights)
        try:
            yield
        finally:
            self.use(own)

    def save(self, path: Path, card: dict[str, str]) -> None:
        """Write the trained parameters to a weights file."""
        write_weights(path, self.optimizer.parameters, card)

    def out_of_patience(self) -> bool:
        """Whether the acceptance length has not increased in the last ``patience`` milestones."""
        patience = self.settings.patience
        values = [entry["tau"] for entry in self.progress.history if "tau" in entry]
        return 0 < patience < len(values) and max(values[-patience:]) <= max(values[:-patience])

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint: weights, optimizer state, best averaged weights, buffers."""
        weights = self.optimizer.parameters if self._weights is None else self._weights
        tensors = {f"weight.{name}": value for name, value in weights.items()} | self.optimizer.state
        tensors |= {f"best.{name}": value for name, value in self.best.items()}
        return tensors | {f"kept.{name}": value for name, value in self._buffers.items()}

    def write(self, checkpoint: Path) -> None:
        """Write a checkpoint atomically, with the digests of its sources."""
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        fresh = checkpoint.with_suffix(".new")
        tensors = {name: value.detach().cpu().contiguous() for name, value in self.tensors().items()}
        progress, sources = json.dumps(asdict(self.progress)), json.dumps(self.sources)
        save_file(tensors, fresh, metadata={"progress": progress, "sources": sources})
        os.replace(fresh, checkpoint)

    @torch.no_grad()
    def read(self, checkpoint: Path) -> None:
        """Restore a checkpoint. Raises BadInput if its tensors or sources are not this recipe's.

        A checkpoint of an earlier version names no sources and is accepted, with a note.
        """
        self.progress, first = progress_in(checkpoint), self.optimizer
        if self.progress.stage:
            entered = self.progress.entered
            self.enter(self.progress.stage)
            self.progress.entered = entered
        if self.settings.patience and any("tau" in entry for entry in self.progress.history):
            self.best = {name: torch.empty_like(value) for name, value in self.optimizer.parameters.items()}
        own = self.tensors()
        with safe_open(checkpoint, framework="pt") as file:
            past = json.loads(file.metadata().get("sources", "{}"))
            changed = sorted(past.items() - self.sources.items())
            strange = [f"{name} was {value!r}, now {self.sources.get(name)!r}" for name, value in changed]
            strange += [
                f"{name} does not fit"
                for name, value in own.items()
                if name not in file.keys() or tuple(file.get_slice(name).get_shape()) != value.shape
            ]
            if strange:
                raise BadInput(
                    f"The checkpoint {checkpoint} is from another version of this recipe, its data or its base weights "
                    f"({strange[0]}): restore that version, delete the file, or train without --resume."
                )
            if self.sources and not past:
                print("The checkpoint does not name its data and base weights: make sure that they are the same.", flush=True)
            for name, value in own.items():
                value.copy_(file.get_tensor(name))
        # A stage that keeps the optimizer goes on counting its updates.
        self.optimizer.updates = self.progress.updates - self.progress.entered * (self.optimizer is not first)
        self.settle()


def train(state: TrainState, checkpoint: Path, report: Report | None = None) -> Progress:
    """Train until the time is up or ``patience`` ends training, with milestones and checkpoints.

    The network then holds averaged weights: those of the best milestone if there is a ``patience``, else the last ones.
    """
    settings, report = state.settings, report or show
    state.progress = Progress()
    if settings.resume and checkpoint.is_file():
        state.read(checkpoint)
        print(f"resumed after {state.progress.seconds / 60:.1f} minutes, {state.progress.updates} updates", flush=True)
    elif settings.resume:
        print(f"There is no checkpoint {checkpoint.name}: training from scratch.", flush=True)
    state.begin()
    progress, limit, cores = state.progress, 60 * settings.minutes, max(settings.workers, torch.get_num_threads())
    # Processor time on a CPU: on a shared machine, wall time would end training too early.
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
    """Measure the averaged weights, add the metrics to the history, and write a checkpoint."""
    progress = state.progress
    with state.using(state.optimizer.averaged()):
        metrics = dict(state.measure())
    if "held_out" in metrics:
        metrics["gap"] = metrics["held_out"] - loss
    values = [past["tau"] for past in progress.history if "tau" in past]
    if state.settings.patience and metrics.get("tau", -1.0) >= max(values, default=0.0):
        state.best = {name: value.clone() for name, value in state.optimizer.averaged().items()}
    entry = {"updates": progress.updates, "minutes": progress.seconds / 60, "tokens": progress.tokens, "loss": loss}
    progress.history.append({**entry, **metrics})
    state.write(checkpoint)
    report(progress.history[-1])


def rate(peak: float, share: float, updates: int, warm: int = 40) -> float:
    """Return the learning rate after ``share`` of the time: linear warm-up, constant, then a linear fall to 2 % of ``peak``."""
    fall = min(1.0, max(0.02, (1 - share) / 0.45))
    return peak * fall * min(1.0, (updates + 1) / warm)


def show(entry: Mapping[str, float]) -> None:
    """Log metrics."""
    say("  ".join(f"{name} {value:.4g}" for name, value in entry.items()))


def say(line: str) -> None:
    """Log a line with the time of day."""
    print(time.strftime("%H:%M:%S"), line, flush=True)


def checkpoint_of(name: str) -> Path:
    """Return the path of the checkpoint ``name``."""
    return cache_folder() / "training" / f"{name}.safetensors"


def progress_in(checkpoint: Path) -> Progress:
    """Return the progress stored in a checkpoint."""
    with safe_open(checkpoint, framework="pt") as file:
        return Progress(**json.loads((file.metadata() or {})["progress"]))


def weights_of(job: Job) -> Path:
    """Return the path of the weights file that the recipe writes."""
    return WEIGHTS / f"{job.recipe.writes or job.recipe.name}.safetensors"


def run(job: Job, state: TrainState, data: str, save: Save | None = None, licence: str = LICENCE, **more: str) -> None:
    """Train, measure the weights as rounded for storage, and write the weights file.

    ``data``: description of the training data. ``save``: function that writes the file; None: ``state.save``. ``more``: further
    entries of the card. A checkpoint with other ``data`` or ``more`` is refused, unless the state's own ``sources`` replace them.
    """
    count = sum(value.numel() for value in state.optimizer.parameters.values())
    print(f"training {count / 1e6:.2f} M parameters on {data}; {state.settings}", flush=True)
    state.sources = {"data": data, **more, **state.sources}
    train(state, checkpoint_of(job.recipe.name))
    save, path = save or state.save, checkpoint_of(f"{job.recipe.name}_at_rest")
    path.parent.mkdir(parents=True, exist_ok=True)
    save(path, {})
    rounded = {state.prefix + name: value for name, value in read_weights(path)[0].items()}
    path.unlink()
    # Parameters that are not in the file keep their values. Afterwards all parameters are unrounded again, for the final file.
    with state.using({**state.optimizer.parameters, **rounded}):
        metrics = state.metrics()
    ship(job, asdict(state.settings), data, state.spent(), metrics, save, licence, **more)


def ship(
    job: Job, settings: Mapping[str, Any], data: str, spent: str, metrics: Metrics, save: Save, licence: str = LICENCE,
    **more: str,
) -> None:  # fmt: skip
    """Write the weights file with a card, and print the card for ``assets/weights/README.md``.

    ``spent``: training time and amount of data. ``more``: further entries of the card.
    """
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False).stdout.strip()
    rounded = json.dumps(json.loads(json.dumps(metrics), parse_float=lambda number: round(float(number), 4)))
    print("held-out:", rounded, flush=True)
    card = {
        "recipe": f"python -m specviz train {job.recipe.name} ({json.dumps(settings)})", "data": data,
        "licence": licence, "spent": spent, "metrics": rounded, "commit": commit or "unknown", **more,
    }  # fmt: skip
    path = weights_of(job)
    path.parent.mkdir(parents=True, exist_ok=True)
    save(path, card)
    parts = "; ".join(f"{name}: {value}" for name, value in card.items())
    print(f"- `{path.name}` ({path.stat().st_size / 1e6:.1f} MB): {parts}", flush=True)

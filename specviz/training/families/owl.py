"""OWL's recipe: Lee et al. 2025 (arXiv 2510.07535), on windows of at most 64 tokens.

First the probe, the paper's [SPEC], learns alone: one embedding that makes the frozen target predict the token after the next.
Then the recurrence learns to draft along the true tokens, by the cross-entropy to the target's distribution, summed over steps.
Some windows omit the probe's state, so that the same network can draft without it.
Axis names: ``window``, ``token`` (of a window), ``place`` (a token to draft from), ``start`` (window and place).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor
from transformers import DynamicCache

from specviz.drafting.networks.recurrent_net import RecurrentConfig, RecurrentNet, unit
from specviz.engine.cache import CACHE_ARGUMENT
from specviz.errors import BadInput
from specviz.training import acceptance, driver
from specviz.training.data import Dialogues, Markers
from specviz.training.driver import Job, Schedule, Step
from specviz.training.families.feature import DialogueTraining, TrainInputs, fit, gather, run
from specviz.training.features import DialogueFeatures

LENGTH = 64
EARLIEST = 8
"""The first place to draft from: at earlier ones, a window that begins inside a text has too little context."""
SHARES = (1.0, 0.6, 0.45, 0.35, 0.3, 0.25)
"""Fraction of the starts that continue to each step. Their loss is divided by it, so that a step counts as if all did."""
DEPTH_WEIGHT = 0.85
ANSWERED = 16
"""The minimum number of answer tokens in a window."""
AT_START = 0.2
"""Probability that a dialogue's first window is its beginning, if that reaches into the answer."""
WITHOUT = 0.2
"""Fraction of the windows trained without the probe's state."""


class WindowFeatures(NamedTuple):
    """The target's features of some windows: ``tokens`` [window, token], their last hidden states ``own`` [window, token,
    hidden], and those of a probe after each of ``places`` [place], ``behind`` [window, place, hidden]."""

    tokens: Tensor
    own: Tensor
    behind: Tensor
    places: Tensor


class Windows:
    """Windows of LENGTH tokens that reach into an answer, from the ``chosen`` dialogues that are long enough.

    Apart from short remainders and overlaps, every token is read once before any is read again. ``reads`` uint8 [text token]
    counts the reads of each token, over all dialogues concatenated, each after the prefix.
    """

    def __init__(self, dialogues: Dialogues, markers: Markers, chosen: Sequence[int]) -> None:
        """Start with no reads. Raises BadInput if no dialogue is long enough."""
        self._dialogues, self._prefix = dialogues, np.asarray(markers.prefix, dtype=np.int64)
        self._chosen = [number for number in chosen if self._offsets(number)]
        if not self._chosen:
            raise BadInput(f"No dialogue has {LENGTH} tokens with {ANSWERED} of them in the answer: train on longer ones.")
        self.reads = torch.zeros(len(dialogues.tokens) + len(dialogues) * len(self._prefix), dtype=torch.uint8)

    def reads_of(self, number: int) -> np.ndarray:
        """The number of reads of each token of this dialogue, uint8 [token]; a view of ``reads``."""
        first, beyond = (int(self._dialogues.starts[at]) + at * len(self._prefix) for at in (number, number + 1))
        return self.reads.numpy()[first:beyond]

    @property
    def distinct(self) -> int:
        """The number of distinct tokens read."""
        return int(torch.count_nonzero(self.reads))

    def visited(self) -> list[int]:
        """The dialogues with at least one window taken."""
        return [number for number in self._chosen if self.reads_of(number).any()]

    def stream(self, generator: np.random.Generator) -> Iterator[np.ndarray]:
        """Yield windows int64 [token] without end, each counted in ``reads`` when taken.

        Every dialogue supplies one window before any supplies another, also when training is resumed. The window is the one
        with the most unread tokens. Dialogues whose windows are all more than half read are skipped; once all are, a new pass
        begins.
        """
        times = 1
        while True:
            found, visited = False, set(self.visited())
            unseen = [number for number in self._chosen if number not in visited]
            for number in generator.permutation(np.asarray(unseen or self._chosen)).tolist():
                reads, offsets = self.reads_of(number), self._offsets(number)
                unread = sliding_window_view(reads[offsets.start :] < times, LENGTH).sum(1)  # [offset]
                if unread.max() < LENGTH / 2:
                    continue
                offset = offsets[int(generator.choice(np.flatnonzero(unread == unread.max())))]
                if not reads.any() and 0 in offsets and generator.random() < AT_START:
                    offset = 0
                reads[offset : offset + LENGTH] += 1
                found = True
                yield np.concatenate((self._prefix, self._dialogues.of(number)))[offset : offset + LENGTH]
            times += not found

    def _offsets(self, number: int) -> range:
        """The offsets at which a window of this dialogue can begin."""
        answer = len(self._prefix) + int(self._dialogues.prompt[number])
        length = len(self._prefix) + len(self._dialogues.of(number))
        return range(max(0, answer + ANSWERED - LENGTH), length - LENGTH + 1)


def random_places(count: int, generator: np.random.Generator, length: int = LENGTH) -> Tensor:
    """Random places to draft from, int64 [place], ascending. Drafting from place i begins with token i + 2."""
    room = np.arange(EARLIEST, length - 2)
    return torch.from_numpy(np.sort(generator.permutation(room)[:count]))


def read(model: Any, net: RecurrentNet, tokens: Tensor, places: Tensor) -> WindowFeatures:
    """Run a pass over the windows ``tokens`` [window, token], then one over a probe after each place, which sees only its text.

    Gradients reach the probe alone.
    """
    (count, length), cache, device = tokens.shape, DynamicCache(), tokens.device
    with torch.no_grad():
        own = model.base_model(input_ids=tokens, **{CACHE_ARGUMENT: cache}, use_cache=True).last_hidden_state
    text = torch.arange(length, device=device) <= places[:, None]
    mask = torch.cat((text, torch.eye(len(places), dtype=torch.bool, device=device)), dim=1)
    behind = model.base_model(
        inputs_embeds=net.probe.to(own.dtype).expand(count, len(places), -1), **{CACHE_ARGUMENT: cache},
        attention_mask=mask[None, None], position_ids=(places + 1)[None].expand(count, -1), use_cache=True,
    ).last_hidden_state  # fmt: skip
    return WindowFeatures(tokens, own, behind, places)


def probe_loss(model: Any, net: RecurrentNet, tokens: Tensor, places: Tensor) -> Tensor:
    """The cross-entropy (nats) between two predictions of token i + 2: the target's, after token i + 1, and the probe's, after
    token i."""
    _, own, behind, _ = read(model, net, tokens, places)
    with torch.no_grad():
        distribution = F.linear(own[:, places + 1].float(), net.head.float()).softmax(-1)
    logits = F.linear(behind, net.head.to(behind.dtype))
    return F.cross_entropy(logits.flatten(0, 1).float(), distribution.flatten(0, 1))


def loss(net: RecurrentNet, windows: WindowFeatures, generator: torch.Generator) -> Tensor:
    """The cross-entropy (nats) per start to the target's distribution, a weighted sum over steps that read the true tokens."""
    count, length = windows.tokens.shape
    device = windows.tokens.device
    window = torch.arange(count, device=device).repeat_interleave(len(windows.places))
    place = windows.places.repeat(count)
    with_probe = (torch.rand(count, generator=generator) >= WITHOUT).to(device)
    behind = windows.behind * with_probe[:, None, None]
    features = torch.cat((windows.own[:, windows.places], behind), dim=-1).flatten(0, 1).float()
    order = torch.rand(len(place), generator=generator).to(device)
    with torch.no_grad():
        distribution = F.linear(windows.own.to(net.head.dtype), net.head)
    rows = torch.arange(len(place), device=device)
    total, state = torch.zeros((), device=device), None
    for step, share in enumerate(SHARES):
        stay = (order[rows] < share) & (place[rows] + step + 2 < length)
        if not bool(stay.any()):
            break
        rows = rows[stay]
        tokens = windows.tokens[window[rows], place[rows] + step + 1]
        if state is None:
            state = net.begin(features[rows], tokens)
        else:
            state = net.go_on((state[0][stay], state[1][stay]), tokens)
        target_distribution = distribution[window[rows], place[rows] + step + 1].float().softmax(-1)
        cross_entropy = F.cross_entropy(net.logits(state[0]).float(), target_distribution, reduction="sum")
        total = total + cross_entropy * (DEPTH_WEIGHT**step / share)
    return total / len(place)


def acceptance_figures(model: Any, net: RecurrentNet, dialogues: Sequence[DialogueFeatures], depth: int) -> dict[str, float]:
    """Acceptance of chains from every place of greedy answers with the probe; ``tau_without_probe`` is τ without it."""

    def draft(probe: float, dialogue: DialogueFeatures, places: Tensor) -> Iterator[Tensor]:
        window, state = read(model, net, dialogue.tokens[None], places), None
        features = torch.cat((window.own[0, places], window.behind[0] * probe), dim=-1).to(net.enter.weight.dtype)
        for step in range(1, depth + 1):
            tokens = dialogue.tokens[places + step]
            state = net.begin(features, tokens) if state is None else net.go_on(state, tokens)
            yield net.logits(state[0])

    with_probe, without = (
        acceptance.figures(acceptance.chain_ranks(dialogues, depth, partial(draft, probe), net.draft_ids)) for probe in (1.0, 0.0)
    )
    return {**with_probe, "tau_without_probe": without["tau"]}


_NOISE = 0.02
"""Standard deviation of the weights that are not fitted, large enough for training to start from."""


@torch.no_grad()
def linear_start(net: RecurrentNet, norm: Tensor, batches: Sequence[WindowFeatures]) -> None:
    """Fit every matrix of ``net`` to ``batches`` of windows; ``norm`` [hidden] is the weight of the target's final norm."""
    for linear in (net.enter, net.word, net.first, net.later, net.leave):
        linear.weight.normal_(std=_NOISE)
    net.norm.copy_(0.7 * norm)  # a prediction should be less confident than the target
    parts = []
    for batch in batches:  # by start: features, the next two tokens, and the target's hidden states there
        inside = batch.places[batch.places + 2 < batch.tokens.shape[1]]
        features = torch.cat((batch.own[:, inside], batch.behind[:, : len(inside)]), dim=-1)
        ahead = [rows[:, inside + step] for step in (1, 2) for rows in (batch.tokens, batch.own)]
        parts.append([rows.flatten(0, 1) for rows in (features, *ahead)])
    features, tokens, thought, further, beyond = (torch.cat(column) for column in zip(*parts, strict=True))
    thought, beyond, config = thought.float(), beyond.float(), net.config
    safe, both = norm.where(norm.abs() > 1e-3, torch.ones_like(norm)), 2 * config.hidden
    rank = min(config.width // 2, config.entry, config.word)
    words = F.rms_norm(F.embedding(tokens, net.embedding), (config.hidden,), eps=config.eps)
    inputs = torch.cat((unit(features.float(), config), words), dim=-1)
    guess_map = fit(inputs, thought).to(thought)
    guess = inputs @ guess_map
    main = torch.linalg.svd(guess - guess.mean(0), full_matrices=False).Vh[:rank].T
    inward = guess_map @ main
    net.enter.weight[:rank], net.word.weight[:rank] = inward[:both].T, inward[both:].T
    _set_candidate(net.first.weight, torch.cat((torch.eye(rank, config.entry), torch.eye(rank, config.word)), dim=1))
    outward = main / safe[:, None]  # the norm after it multiplies by its weight again
    net.leave.weight[:, :rank], net.leave.weight[:, rank : 2 * rank] = outward, -outward
    state = net.begin(features.float(), tokens)
    step = fit(torch.cat((state[0], net.embedded(further)), dim=-1), beyond @ main)
    _set_candidate(net.later.weight, step.T)


def _set_candidate(gates: Tensor, candidate: Tensor) -> None:
    """Set the cell's candidate gate to the map [rank, in], once with each sign. The other gates stay half open."""
    rank, start = len(candidate), 3 * (len(gates) // 4)
    gates[start : start + rank] += candidate.to(gates)
    gates[start + rank : start + 2 * rank] -= candidate.to(gates)


DEPTH = 5
FITTED = 240
"""Windows for fitting the linear start."""
PROBED, PROBE_PLACES = 8, 16
"""Windows per update of the probe, and places per window."""
PROBE_PEAK = 0.3
"""The probe's initial learning rate, in units of the embedding's spread."""
DRAFTING = "drafting"
"""The second stage."""
FRESH, KEPT, PLACES = 1 / 4, 100, 28
"""The fraction of new windows in an update; the size of the replay buffer, in updates; and the places to draft from per
window."""


class OwlTraining(DialogueTraining):
    """Training of the probe, then of the recurrence, each with its own optimizer."""

    unit = "tokens read"
    second = (DRAFTING, 0.15)

    def __init__(self, inputs: TrainInputs, settings: Schedule) -> None:
        """Create a network whose probe is the draft vocabulary's mean embedding. It is measured on held-out answers."""
        torch.manual_seed(0)
        self.inputs, self.model = inputs, inputs.assets.target.model.requires_grad_(False)
        embedding, layers = inputs.assets.embedding, int(self.model.config.get_text_config().num_hidden_layers)
        config = RecurrentConfig(embedding.shape[0], embedding.shape[1], layers)
        self.net = RecurrentNet(config, embedding, inputs.head, inputs.draft_ids).to(inputs.device)
        with torch.no_grad():
            self.net.probe.copy_(embedding[inputs.draft_ids].mean(0))
        self.dialogues, self.held_out = inputs.store.dialogues, inputs.evaluation_set
        self.windows = Windows(self.dialogues, inputs.assets.markers, inputs.training)
        buffers = {"reads": self.windows.reads}
        super().__init__(settings, {"probe": self.net.probe}, weights=self.net.state_dict(), buffers=buffers)
        self.decay, self.fresh = 0.0, int(FRESH * settings.batch)  # the probe's weights do not decay
        self.known: deque[WindowFeatures] = deque()

    def begin(self) -> None:
        """Start the stream of windows; resumed training continues with unread ones."""
        self.generator = np.random.default_rng([0, self.progress.updates])
        self.stream = self.windows.stream(self.generator)

    def enter(self, stage: str) -> None:
        """Begin the stage with a new optimizer over all parameters except the probe."""
        super().enter(stage)
        learned = {name: value for name, value in self.net.named_parameters() if name != "probe"}
        self.move(learned, stacked={"first.weight": 4, "later.weight": 4})
        self.decay = self.settings.decay

    def step(self, share: float) -> Step:
        """Loss and gradients of the probe or, in the second stage, of the network."""
        if self.in_second_stage:
            return self._draft()
        tokens = self._windows(PROBED)
        places = random_places(PROBE_PLACES, self.generator).to(tokens.device)
        return self.learn([tokens], lambda part: probe_loss(self.model, self.net, part[0], places), tokens.numel())

    def rate(self, share: float) -> float:
        """The learning rate: a linear decay for the probe, the driver's schedule for the network."""
        probing = self.second[1]
        if not self.in_second_stage:
            return PROBE_PEAK * float(self.inputs.assets.embedding.std()) * (1 - 0.9 * share / probing)
        return driver.rate(self.settings.peak, (share - probing) / (1 - probing), self.optimizer.updates, self.settings.warm)

    def measure(self) -> dict[str, float]:
        """A milestone's figures; empty before the second stage."""
        return super().measure() if self.in_second_stage else {}

    def visited(self) -> list[int]:
        return self.windows.visited()

    def distinct(self) -> int:
        """The number of distinct tokens read, as the windows of a dialogue overlap by up to a half."""
        return self.windows.distinct

    def measured(self, numbers: Sequence[int]) -> dict[str, float]:
        """Acceptance of chains along these greedy answers."""
        store, prefix, nothing = self.inputs.store, len(self.inputs.assets.markers.prefix), torch.zeros(0)
        texts = [
            DialogueFeatures(torch.from_numpy(store.ids(number)).to(self.device), nothing, prefix + self.dialogues.prompt[number])
            for number in numbers
        ]
        return acceptance_figures(self.model, self.net, texts, DEPTH)

    def start_second_stage(self) -> None:
        """Freeze the averaged probe and fit the network's linear start."""
        super().start_second_stage()
        for _ in range(FITTED // self.fresh):
            self.known.append(self._read())
            self.progress.tokens += self.known[-1].tokens.numel()
        linear_start(self.net, self.model.base_model.norm.weight.float(), self.known)

    def _draft(self) -> Step:
        batch = [self._read()]
        while len(batch) * FRESH < 1 and self.known:
            batch.append(self.known[int(self.generator.integers(len(self.known)))])
        self.known.append(batch[0])
        while len(self.known) * FRESH > KEPT:
            self.known.popleft()
        generator = torch.Generator().manual_seed(int(self.generator.integers(1 << 40)))
        return self.learn(batch, lambda part: loss(self.net, part[0], generator) / len(batch), batch[0].tokens.numel())

    def _windows(self, count: int) -> Tensor:
        return torch.from_numpy(np.stack(list(islice(self.stream, count)))).to(self.inputs.device)

    @torch.no_grad()
    def _read(self) -> WindowFeatures:
        """Features of new windows, in bfloat16."""
        tokens = self._windows(self.fresh)
        places = random_places(PLACES, self.generator).to(tokens.device)
        seen = read(self.model, self.net, tokens, places)
        return seen._replace(own=seen.own.bfloat16(), behind=seen.behind.bfloat16())


def make(job: Job) -> None:
    """Train, measure on held-out answers, write ``assets/weights/owl.safetensors`` and print its card."""
    inputs = gather(job)
    state = OwlTraining(inputs, driver.settings_for(job, inputs.device))
    run(job, inputs, state, state.net.save, f"windows of {LENGTH} tokens")

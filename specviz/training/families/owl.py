"""``train owl`` (Lee et al., arXiv 2510.07535), on windows of 64 tokens.

The first stage trains the probe, the paper's [SPEC] token: an embedding with which the frozen target predicts the token after the
next. The second stage trains the recurrence to draft along the true tokens, by the cross-entropy to the target's distribution.
Some windows omit the probe's hidden state, so that the network can also draft without a probe.
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
"""First place to draft from: before that, a window from the middle of a text has too little context."""
SHARES = (1.0, 0.6, 0.45, 0.35, 0.3, 0.25)
"""Share of the starts that continue to each step; the loss is divided by the share."""
DEPTH_WEIGHT = 0.85
ANSWERED = 16
"""Minimum number of answer tokens in a window."""
AT_START = 0.2
"""Probability that the first window of a dialogue is its beginning, if the beginning reaches into the answer."""
WITHOUT = 0.2
"""Share of the windows trained without the probe's hidden state."""


class WindowFeatures(NamedTuple):
    """The target's features of windows ``tokens`` [window, token].

    ``own`` [window, token, hidden]: last hidden states of the tokens. ``behind`` [window, place, hidden]: last hidden states of
    a probe after each of ``places`` [place].
    """

    tokens: Tensor
    own: Tensor
    behind: Tensor
    places: Tensor


class Windows:
    """Windows of LENGTH tokens that reach into an answer, from the ``chosen`` dialogues that are long enough.

    A new pass over the data begins only when most tokens have been read. ``reads``: number of reads of each token, uint8 [token],
    over all dialogues concatenated, each after the prefix.
    """

    def __init__(self, dialogues: Dialogues, markers: Markers, chosen: Sequence[int]) -> None:
        """Raises BadInput if no dialogue is long enough."""
        self._dialogues, self._prefix = dialogues, np.asarray(markers.prefix, dtype=np.int64)
        self._chosen = [number for number in chosen if self._offsets(number)]
        if not self._chosen:
            raise BadInput(f"No dialogue has {LENGTH} tokens, {ANSWERED} of them in the answer: train on longer dialogues.")
        self.reads = torch.zeros(len(dialogues.tokens) + len(dialogues) * len(self._prefix), dtype=torch.uint8)

    def reads_of(self, number: int) -> np.ndarray:
        """Return the number of reads of each token of a dialogue, uint8 [token]: a view of ``reads``."""
        first, beyond = (int(self._dialogues.starts[at]) + at * len(self._prefix) for at in (number, number + 1))
        return self.reads.numpy()[first:beyond]

    @property
    def distinct(self) -> int:
        """Number of distinct tokens read."""
        return int(torch.count_nonzero(self.reads))

    def visited(self) -> list[int]:
        """Return the dialogues with at least one window read."""
        return [number for number in self._chosen if self.reads_of(number).any()]

    def stream(self, generator: np.random.Generator) -> Iterator[np.ndarray]:
        """Yield endless windows int64 [token], and count each in ``reads``.

        In the first round, every dialogue gives one window, even across resumptions. The window with the most unread tokens is
        chosen. Dialogues without a half-unread window are skipped, and when all are skipped, a new pass begins.
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
        """Return the offsets at which windows of a dialogue can begin."""
        answer = len(self._prefix) + int(self._dialogues.prompt[number])
        length = len(self._prefix) + len(self._dialogues.of(number))
        return range(max(0, answer + ANSWERED - LENGTH), length - LENGTH + 1)


def random_places(count: int, generator: np.random.Generator, length: int = LENGTH) -> Tensor:
    """Return ``count`` random places to draft from, int64 [place], ascending. The first draft token from place i is i + 2."""
    room = np.arange(EARLIEST, length - 2)
    return torch.from_numpy(np.sort(generator.permutation(room)[:count]))


def read(model: Any, net: RecurrentNet, tokens: Tensor, places: Tensor) -> WindowFeatures:
    """Return the features of the windows ``tokens`` [window, token], from a pass over the tokens and a pass over the probes.

    The probe after a place attends to the tokens up to the place. Only probes get gradients.
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
    """Return the cross-entropy in nats of the probe's prediction after token i to the target's prediction after token i + 1."""
    _, own, behind, _ = read(model, net, tokens, places)
    with torch.no_grad():
        distribution = F.linear(own[:, places + 1].float(), net.head.float()).softmax(-1)
    logits = F.linear(behind, net.head.to(behind.dtype))
    return F.cross_entropy(logits.flatten(0, 1).float(), distribution.flatten(0, 1))


def loss(net: RecurrentNet, windows: WindowFeatures, generator: torch.Generator) -> Tensor:
    """Return the cross-entropy to the target's distribution in nats per start, a weighted sum over steps along the true
    tokens."""
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


def acceptance_metrics(model: Any, net: RecurrentNet, dialogues: Sequence[DialogueFeatures], depth: int) -> dict[str, float]:
    """Return the acceptance of chains from every place of greedy answers, and ``tau_without_probe``."""

    def draft(probe: float, dialogue: DialogueFeatures, places: Tensor) -> Iterator[Tensor]:
        window, state = read(model, net, dialogue.tokens[None], places), None
        features = torch.cat((window.own[0, places], window.behind[0] * probe), dim=-1).to(net.enter.weight.dtype)
        for step in range(1, depth + 1):
            tokens = dialogue.tokens[places + step]
            state = net.begin(features, tokens) if state is None else net.go_on(state, tokens)
            yield net.logits(state[0])

    with_probe, without = (
        acceptance.metrics(acceptance.chain_ranks(dialogues, depth, partial(draft, probe), net.draft_ids)) for probe in (1.0, 0.0)
    )
    return {**with_probe, "tau_without_probe": without["tau"]}


_NOISE = 0.02
"""Standard deviation of the initial weights that are not fitted."""


@torch.no_grad()
def linear_start(net: RecurrentNet, norm: Tensor, batches: Sequence[WindowFeatures]) -> None:
    """Initialise ``net`` by linear fits to ``batches`` of windows. ``norm`` [hidden]: weight of the target's final norm."""
    for linear in (net.enter, net.word, net.first, net.later, net.leave):
        linear.weight.normal_(std=_NOISE)
    net.norm.copy_(0.7 * norm)  # a prediction should be less confident than the target
    parts = []
    for batch in batches:  # [start]: features, and the next two tokens with hidden states
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
    outward = main / safe[:, None]  # the final norm multiplies by the weight
    net.leave.weight[:, :rank], net.leave.weight[:, rank : 2 * rank] = outward, -outward
    state = net.begin(features.float(), tokens)
    step = fit(torch.cat((state[0], net.embedded(further)), dim=-1), beyond @ main)
    _set_candidate(net.later.weight, step.T)


def _set_candidate(gates: Tensor, candidate: Tensor) -> None:
    """Add the map ``candidate`` [rank, in] to the cell's candidate gate, once with each sign."""
    rank, start = len(candidate), 3 * (len(gates) // 4)
    gates[start : start + rank] += candidate.to(gates)
    gates[start + rank : start + 2 * rank] -= candidate.to(gates)


DEPTH = 5
FITTED = 240
"""Number of windows for the linear fits."""
PROBED, PROBE_PLACES = 8, 16
"""Windows per update of the probe, and places per window."""
PROBE_PEAK = 0.3
"""Initial learning rate of the probe, in standard deviations of the embedding."""
DRAFTING = "drafting"
"""Name of the second stage."""
FRESH, KEPT, PLACES = 1 / 4, 100, 28
"""Share of new windows in an update, size of the replay buffer in updates, and places to draft from per window."""


class OwlTraining(DialogueTraining):
    """Training of the probe, then of the recurrence."""

    unit = "tokens read"
    second = (DRAFTING, 0.15)

    def __init__(self, inputs: TrainInputs, settings: Schedule) -> None:
        """Create a network with the mean embedding of the draft vocabulary as the probe."""
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
        self.decay, self.fresh = 0.0, int(FRESH * settings.batch)  # no weight decay for the probe
        self.known: deque[WindowFeatures] = deque()

    def begin(self) -> None:
        """Start a stream of windows. A resumed run continues with unread windows."""
        self.generator = np.random.default_rng([0, self.progress.updates])
        self.stream = self.windows.stream(self.generator)

    def enter(self, stage: str) -> None:
        """Begin the stage with an optimizer over all parameters but the probe."""
        super().enter(stage)
        learned = {name: value for name, value in self.net.named_parameters() if name != "probe"}
        self.move(learned, stacked={"first.weight": 4, "later.weight": 4})
        self.decay = self.settings.decay

    def step(self, share: float) -> Step:
        """Return loss and gradients for the probe or, in the second stage, for the network."""
        if self.in_second_stage:
            return self._draft()
        tokens = self._windows(PROBED)
        places = random_places(PROBE_PLACES, self.generator).to(tokens.device)
        return self.learn([tokens], lambda part: probe_loss(self.model, self.net, part[0], places), tokens.numel())

    def rate(self, share: float) -> float:
        """Return the learning rate: linear decay for the probe, the driver's schedule for the network."""
        probing = self.second[1]
        if not self.in_second_stage:
            return PROBE_PEAK * float(self.inputs.assets.embedding.std()) * (1 - 0.9 * share / probing)
        return driver.rate(self.settings.peak, (share - probing) / (1 - probing), self.optimizer.updates, self.settings.warm)

    def measure(self) -> dict[str, float]:
        """Return a milestone's metrics; none before the second stage."""
        return super().measure() if self.in_second_stage else {}

    def visited(self) -> list[int]:
        return self.windows.visited()

    def distinct(self) -> int:
        return self.windows.distinct

    def measured(self, numbers: Sequence[int]) -> dict[str, float]:
        """Return the acceptance of chains along the greedy answers ``numbers``."""
        store, prefix, nothing = self.inputs.store, len(self.inputs.assets.markers.prefix), torch.zeros(0)
        texts = [
            DialogueFeatures(torch.from_numpy(store.ids(number)).to(self.device), nothing, prefix + self.dialogues.prompt[number])
            for number in numbers
        ]
        return acceptance_metrics(self.model, self.net, texts, DEPTH)

    def start_second_stage(self) -> None:
        """Freeze the averaged probe and initialise the network by linear fits."""
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
        """Return the features of new windows, in bfloat16."""
        tokens = self._windows(self.fresh)
        places = random_places(PLACES, self.generator).to(tokens.device)
        seen = read(self.model, self.net, tokens, places)
        return seen._replace(own=seen.own.bfloat16(), behind=seen.behind.bfloat16())


def make(job: Job) -> None:
    """Train, measure on held-out answers, and write ``assets/weights/owl.safetensors``."""
    inputs = gather(job)
    state = OwlTraining(inputs, driver.settings_for(job, inputs.device))
    run(job, inputs, state, state.net.save, f"windows of {LENGTH} tokens")

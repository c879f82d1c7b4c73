"""OWL's recipe: Lee et al. 2025 (arXiv 2510.07535), on windows of at most 64 tokens.

First the probe, the paper's [SPEC], learns alone: one embedding that makes the frozen target foresee the token after the
next. Then the recurrence learns to draft, cross-entropy to the target's distribution summed over self-fed steps. In some windows
the probe's state is left out, so that the same network can draft without it.
Axis names: ``window``, ``token`` (of a window), ``place`` (where something is drafted), ``start`` (window and place).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor
from transformers import DynamicCache

from specviz.drafters.networks.recurrent_net import RecurrentNet
from specviz.engine.cache import CACHE_ARGUMENT
from specviz.errors import BadInput
from specviz.training.common.data import Dialogues, Markers

LENGTH = 64
EARLIEST = 8
"""No place before this one is drafted from: a window that begins inside a text has told too little there."""
SHARES = (1.0, 0.6, 0.45, 0.35, 0.3, 0.25)
"""Shares of the starts that go on to each step; those that do weigh more, so that a step counts as if all did."""
DEPTH_WEIGHT = 0.85
ANSWERED = 16
"""So many tokens of a window are the answer's, at least."""
AT_START = 0.2
"""Share of the dialogues whose first window is their beginning, where that reaches into the answer."""
WITHOUT = 0.2
"""Share of the windows in which the probe's state is left out."""


@dataclass(frozen=True)
class WindowFeatures:
    """What the target thinks of some windows: ``tokens`` [window, token], its last hidden states ``own`` [window, token,
    hidden], and the probe's ``behind`` [window, place, hidden] at ``places`` [place]."""

    tokens: Tensor
    own: Tensor
    behind: Tensor
    places: Tensor


class Windows:
    """Windows of LENGTH tokens that reach into an answer, from the ``chosen`` dialogues that are long enough: all that windows
    can hold once before any of it twice, but for what is left in pieces and for overlaps.

    ``reads`` uint8 [text token] counts how often each was read, all dialogues end to end, each behind the prefix.
    """

    def __init__(self, dialogues: Dialogues, markers: Markers, chosen: Sequence[int]) -> None:
        """Nothing has been read. Raises BadInput where no dialogue is long enough."""
        self._dialogues, self._prefix = dialogues, np.asarray(markers.prefix, dtype=np.int64)
        self._chosen = [number for number in chosen if self._offsets(number)]
        if not self._chosen:
            raise BadInput(f"No dialogue has {LENGTH} tokens, {ANSWERED} of them of an answer: train on longer ones.")
        self.reads = torch.zeros(len(dialogues.tokens) + len(dialogues) * len(self._prefix), dtype=torch.uint8)

    def reads_of(self, number: int) -> np.ndarray:
        """uint8 [token]: how often each token of this dialogue was read; a view of ``reads``."""
        first, beyond = (int(self._dialogues.starts[at]) + at * len(self._prefix) for at in (number, number + 1))
        return self.reads.numpy()[first:beyond]

    @property
    def distinct(self) -> int:
        """How many different tokens were read."""
        return int(torch.count_nonzero(self.reads))

    def visited(self) -> list[int]:
        """The dialogues that a window was taken from."""
        return [number for number in self._chosen if self.reads_of(number).any()]

    def stream(self, generator: np.random.Generator) -> Iterator[np.ndarray]:
        """Endless windows int64 [token], each counted in ``reads`` when it is taken: of every dialogue one before another of any,
        also where a training goes on, and from where the most is unread. A dialogue without a window of which half is unread
        is passed over, until none has one."""
        times = 1
        while True:
            found = False
            unseen = [number for number in self._chosen if not self.reads_of(number).any()]
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
        """Where in this dialogue a window can begin."""
        answer = len(self._prefix) + int(self._dialogues.prompt[number])
        length = len(self._prefix) + len(self._dialogues.of(number))
        return range(max(0, answer + ANSWERED - LENGTH), length - LENGTH + 1)


def some_places(count: int, generator: np.random.Generator, length: int = LENGTH) -> Tensor:
    """int64 [place]: where to draft from, ascending. Place i reads the states at token i and token i + 1."""
    room = np.arange(EARLIEST, length - 2)
    return torch.from_numpy(np.sort(generator.permutation(room)[:count]))


@torch.no_grad()
def read(model: Any, net: RecurrentNet, tokens: Tensor, places: Tensor) -> WindowFeatures:
    """One pass over the windows ``tokens`` [window, token] with a probe at each place, seen by nobody but itself."""
    count, length = tokens.shape
    embedded = F.embedding(tokens, model.get_input_embeddings().weight)
    probes = net.probe.to(embedded).expand(count, len(places), -1)
    index = torch.arange(length, device=tokens.device)
    hidden_states = model.base_model(
        inputs_embeds=torch.cat((embedded, probes), dim=1),
        attention_mask=_attention_mask(length, places)[None, None],
        position_ids=torch.cat((index, places + 1))[None].expand(count, -1),
        use_cache=False,
    ).last_hidden_state
    return WindowFeatures(tokens, hidden_states[:, :length], hidden_states[:, length:], places)


def _attention_mask(length: int, places: Tensor) -> Tensor:
    """Bool [token + place, token + place]: text is causal, a probe sees the text up to its place and itself."""
    index = torch.arange(length, device=places.device)
    mask = torch.zeros(length + len(places), length + len(places), dtype=torch.bool, device=places.device)
    mask[:length, :length] = index[None] <= index[:, None]
    mask[length:, :length] = index[None] <= places[:, None]
    mask[length:, length:].fill_diagonal_(True)
    return mask


def probe_loss(model: Any, net: RecurrentNet, tokens: Tensor, places: Tensor) -> Tensor:
    """How badly the probe behind token i foresees token i + 2: cross-entropy (nats) to the target's distribution of it once token
    i + 1 is known. Gradients reach the probe alone."""
    count, length = tokens.shape
    cache = DynamicCache()
    with torch.no_grad():
        own = model.base_model(input_ids=tokens, **{CACHE_ARGUMENT: cache}, use_cache=True).last_hidden_state
        distribution = F.linear(own[:, places + 1].float(), net.head.float()).softmax(-1)
    probes = net.probe.to(own.dtype).expand(count, len(places), -1)
    behind = model.base_model(
        inputs_embeds=probes,
        **{CACHE_ARGUMENT: cache},
        attention_mask=_attention_mask(length, places)[length:][None, None],
        position_ids=(places + 1)[None].expand(count, -1),
        use_cache=True,
    ).last_hidden_state
    logits = F.linear(behind, net.head.to(behind.dtype))
    return F.cross_entropy(logits.flatten(0, 1).float(), distribution.flatten(0, 1))


def loss(net: RecurrentNet, windows: WindowFeatures, generator: torch.Generator) -> Tensor:
    """Weighted mean over steps of the cross-entropy (nats) to the target's distribution, each step fed the text's true token."""
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


@torch.no_grad()
def acceptance_figures(model: Any, net: RecurrentNet, texts: Sequence[tuple[Tensor, int]], depth: int) -> dict[str, float]:
    """Chain drafting from every place of greedy answers, each ``(text, index of the answer's first token)``, with the probe
    and without: ``tau`` with the bonus token, and how often a draft was right by depth, given the shallower ones."""
    right = torch.zeros(2, depth)
    starts = 0
    for text, first in texts:
        places = torch.arange(max(1, first - 2), len(text) - 1 - depth, device=text.device)
        if not len(places):
            continue
        window = read(model, net, text[None], places)
        starts += len(places)
        for way in (0, 1):
            features = torch.cat((window.own[0, places], window.behind[0] * (1 - way)), dim=-1).to(net.enter.weight.dtype)
            alive, state = torch.ones(len(places), dtype=torch.bool, device=text.device), None
            for step in range(depth):
                tokens = text[places + step + 1]
                state = net.begin(features, tokens) if state is None else net.go_on(state, tokens)
                alive &= net.draft_ids[net.logits(state[0]).argmax(-1)] == text[places + step + 2]
                right[way, step] += int(alive.sum())
    reached = torch.cat((torch.full((2, 1), float(starts)), right[:, :-1]), dim=1).clamp_min(1)
    figures = {f"first{step + 1}": float(right[0, step] / reached[0, step]) for step in range(depth)}
    tau = 1 + right.sum(1) / max(1, starts)
    return {"tau": float(tau[0]), "tau_without_probe": float(tau[1]), **figures}

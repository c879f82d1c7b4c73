"""Evaluable drafters: the overlap of their hypothetical chains, from any position, with the target's distributions.

The quantities of HedgeSpec (arXiv 2510.20064) for two kinds of drafters. A language model's distribution at a position does not
depend on the chain's start. Prompt lookup's chain from a start is a sequence of point masses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from specviz.drafting.memory.prompt_copy import PromptCopy
from specviz.drafting.runtimes.language_model import LanguageModelDrafter, TaughtModel
from specviz.engine.interfaces import Context, TargetPass
from specviz.engine.to_device import to_device
from specviz.methods.hedgespec.counterfactual import Share

Judged = Callable[[int, int], Share]
"""Function from a chain's start and a token's position to that chain's share with the target's distribution there."""
NOTHING: Share = (0.0, 0.0)


@dataclass(frozen=True)
class Hindsight:
    """Evaluation of one round in two parts: numbers on the device (``asked``, float64 or None), and a function of those numbers
    on the host (``judged``). The split lets all drafters share one copy to the host."""

    asked: Tensor | None
    judged: Callable[[Sequence[float]], Judged]


class JudgedModel(LanguageModelDrafter):
    """Language-model drafter, evaluated along a text in one forward over the new tokens."""

    def __init__(self, open_model: Callable[[int], TaughtModel], context_length: int, ahead: int) -> None:
        super().__init__(open_model, context_length)
        self._ahead = ahead
        self._hindsight_calls = 0
        self._shares: dict[int, Share] = {}

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        super().begin(context, prefill)
        self._shares, self._hindsight_calls = {}, 0

    @torch.inference_mode()
    def hindsight(self, context: Context, emitted: Sequence[int], distributions: Tensor | None) -> Hindsight:
        first = len(context.ids)
        for place in [place for place in self._shares if place < first - self._ahead]:
            del self._shares[place]
        text = [*context.ids, *emitted[:-1]]
        asked = None
        if len(text) < self._context_length:
            rows = context.warp.probabilities(self._along(text, first - 1))
            asked = self._compared(rows, emitted, distributions)

        def judged(numbers: Sequence[float]) -> Judged:
            shared, ratio = numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]
            self._shares.update(zip(range(first, first + len(shared)), zip(shared, ratio, strict=True), strict=True))
            return lambda start, place: self._shares.get(place, NOTHING)

        return Hindsight(asked, judged)

    def _along(self, text: list[int], start: int) -> Tensor:
        """Return logits [token, support] after each token from ``start`` on; the cache then holds all of ``text``."""
        model = cast("TaughtModel", self._model)
        drafting = self._calls
        if len(self._fed) < start:  # some rounds were not evaluated
            self._feed(text[:start])
        if len(self._fed) + self._unseen > start:
            model.rewind(start)
        rows = model.extend_all(text[start:])
        self._fed, self._agreed, self._unseen = text, len(text), 0
        self._hindsight_calls += 1 + self._calls - drafting
        self._calls = drafting
        return rows

    def hindsight_calls(self) -> int:
        """Return the number of hindsight forwards since the last call."""
        count, self._hindsight_calls = self._hindsight_calls, 0
        return count

    def _compared(self, rows: Tensor, emitted: Sequence[int], distributions: Tensor | None) -> Tensor:
        """Return the shared mass of both distributions and the realised ratio at each token, float64 [2, emitted]."""
        assert self._model is not None
        support = self._model.support
        if support is None:
            support = torch.arange(rows.shape[-1], device=rows.device)
        written = to_device(list(emitted), rows.device)
        if distributions is None:
            return (support[rows.argmax(-1)] == written).double().expand(2, -1)
        shared = torch.minimum(distributions[:, support], rows).sum(-1)
        inside = support[None] == written[:, None]
        draft_p = (rows * inside).sum(-1)
        target_p = distributions.gather(-1, written[:, None])[:, 0]
        ratio = (draft_p / target_p.clamp_min(1e-30)).clamp_max(1.0)
        return torch.stack((shared.clamp_max(1.0), ratio)).double()


class JudgedCopy(PromptCopy):
    """Prompt lookup that also keeps its hypothetical copies from the last few positions."""

    def __init__(self, longest: int, shortest: int, ahead: int) -> None:
        super().__init__(longest, shortest, ahead, latest=True, partial=True)
        self._hindsight_calls = 0
        self._chains: dict[int, list[int]] = {}
        self._shares: dict[tuple[int, int], Share] = {}

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        super().begin(context, prefill)
        self._chains, self._shares, self._hindsight_calls = {}, {}, 0

    def hindsight(self, context: Context, emitted: Sequence[int], distributions: Tensor | None) -> Hindsight:
        first = len(context.ids)
        self._chains = {start: chain for start, chain in self._chains.items() if start > first - self.length}
        self._shares = {pair: share for pair, share in self._shares.items() if pair[0] in self._chains}
        text = [*context.ids, *emitted]
        guesses: dict[tuple[int, int], int] = {}
        for place in range(first, first + len(emitted)):
            self._index(text[:place])
            known = replace(context, ids=text[:place], max_depth=context.max_depth - (place - first))
            self._chains[place] = list(self.continuation(known)[0])
            self._hindsight_calls += 1
            for start, chain in self._chains.items():
                if place - start < len(chain):
                    guesses[start, place] = chain[place - start]
        asked = None
        if distributions is not None and guesses:
            vocab = distributions.shape[1]
            wanted = [(place - first) * vocab + guess for (_, place), guess in guesses.items()]
            asked = distributions.flatten().index_select(0, to_device(wanted, distributions.device)).double()

        def judged(numbers: Sequence[float]) -> Judged:
            right = {pair: float(guess == text[pair[1]]) for pair, guess in guesses.items()}
            shared = numbers or list(right.values())
            self._shares.update({pair: (share, right[pair]) for pair, share in zip(guesses, shared, strict=True)})
            return lambda start, place: self._shares.get((start, place), NOTHING)

        return Hindsight(asked, judged)

    def hindsight_calls(self) -> int:
        """Return the number of hindsight look-ups since the last call."""
        count, self._hindsight_calls = self._hindsight_calls, 0
        return count

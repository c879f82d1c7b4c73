"""Controller of several drafters that selects one in each round, by their counterfactual performance so far.

HedgeSpec, "Not-a-Bandit" (arXiv 2510.20064), with a correction: the target's distributions along the verified text evaluate every
drafter, even those that did not draft, so the choice has full information. A bandit chooser receives only the drafting arm's
reward. For a chain drafted from ``start``, let g be the overlap of the drafter's distribution with the target's: one minus their
total variation distance. Let a be the ratio min(1, q/p) at the emitted token. Along a text from the target's distribution,
``1 + sum over k of a_1 ... a_(k-1) g_k`` is an unbiased estimate of the tokens that a round would emit. With g in place of a, as
published, it is biased unless the target is greedy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from specviz.drafting.memory.prompt_copy import PromptCopy
from specviz.drafting.runtimes.language_model import LanguageModelDrafter, TaughtModel
from specviz.engine.interfaces import Context, Draft, Drafter, Round, TargetPass, TreeBuilder
from specviz.engine.sampling import EXTRA
from specviz.engine.to_device import to_device
from specviz.methods.hedgespec import Chooser
from specviz.trace.notes.models import DrafterSelectionNote, Waiting
from specviz.trace.schema import Note

Share = tuple[float, float]
"""g and a of one drafted token: the shared mass and the realised ratio."""
NOTHING: Share = (0.0, 0.0)
Judged = Callable[[int, int], Share]
"""Function of a chain's start and a token's position in this round; returns that chain's share with the target's distribution
there."""


def expected_length(shares: Sequence[Share]) -> float:
    """Return the expected number of tokens of a round with this chain, bonus included, over its random draws and drafts."""
    length, reached = 1.0, 1.0
    for shared, realised in shares:
        length += reached * shared
        reached *= realised
    return length


class DelayQueue:
    """Hypothetical chains whose losses are not known yet: evaluating a chain of ``ahead`` tokens requires as many target
    distributions.

    Short rounds would censor a chain's later tokens; waiting for them makes all losses comparable. A ``loss`` lies in [0, 1]:
    for "length", 0 if every draft is accepted; for "acceptance", the probability that the first draft is rejected.
    """

    def __init__(self, ahead: int, loss: str = "length") -> None:
        self.loss = loss
        self.ahead = 1 if loss == "acceptance" else ahead
        self._chains: dict[int, list[list[Share]]] = {}
        """By start: [token, arm]."""

    def clear(self) -> None:
        """Drop all chains, for a new text."""
        self._chains.clear()

    @property
    def waiting(self) -> list[tuple[int, int]]:
        """Start of every chain, and the number of known distributions along it."""
        return [(start, len(chain)) for start, chain in self._chains.items()]

    def add(self, place: int, judged: Sequence[Judged]) -> list[list[float]]:
        """Add the token emitted at ``place``, which extends all chains and starts one; ``judged`` are the arms. Return the losses
        by arm of every chain that is complete."""
        self._chains[place] = []
        for start, chain in self._chains.items():
            chain.append([judge(start, place) for judge in judged])
        complete = [start for start, chain in self._chains.items() if len(chain) >= self.ahead]
        return [[self._loss(shares) for shares in zip(*self._chains.pop(start), strict=True)] for start in complete]

    def _loss(self, shares: Sequence[Share]) -> float:
        if self.loss == "acceptance":
            return 1.0 - shares[0][0]
        return 1.0 - expected_length(shares) / (len(shares) + 1)


@dataclass(frozen=True)
class Hindsight:
    """Evaluation of one round in two parts: numbers on the device (``asked``, float64 or None), and a function of those numbers
    on the host (``judged``). The split lets all drafters share one copy to the host. ``calls`` counts forwards and look-ups."""

    asked: Tensor | None
    judged: Callable[[Sequence[float]], Judged]
    calls: int = 0


class EvaluableDrafter(Drafter, Protocol):
    """A drafter that can be evaluated along a text that it did not draft."""

    def hindsight(self, context: Context, emitted: Sequence[int], distributions: Tensor | None) -> Hindsight:
        """Evaluate the tokens ``emitted`` after ``context.ids``. ``distributions`` [emitted, vocab] are the target's warped
        distributions, None if greedy. Covers hypothetical chains from every start less than one chain length back."""


class JudgedModel(LanguageModelDrafter):
    """Language-model drafter, evaluated along a text in one forward over the new tokens: its distribution at a position does not
    depend on the chain's start."""

    @torch.inference_mode()
    def hindsight(self, context: Context, emitted: Sequence[int], distributions: Tensor | None) -> Hindsight:
        first, text = len(context.ids), [*context.ids, *emitted[:-1]]
        asked, calls = None, 0
        if len(text) < self._context_length:
            rows, calls = self._along(text, first - 1)
            if distributions is None:  # point masses, which the host compares
                best, support = rows.argmax(-1), self.support
                asked = (best if support is None else support[best]).double()
            else:
                asked = self._compared(context.warp.probabilities(rows), emitted, distributions)

        def judged(numbers: Sequence[float]) -> Judged:
            if distributions is None:
                shares = [(float(best == token),) * 2 for best, token in zip(numbers, emitted, strict=False)]
            else:
                shares = list(zip(numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :], strict=True))
            return lambda start, place: shares[place - first] if shares else NOTHING

        return Hindsight(asked, judged, calls)

    def _along(self, text: list[int], start: int) -> tuple[Tensor, int]:
        """Return logits [token, support] after each token from ``start`` on, and the number of forwards; the cache then holds all
        of ``text``."""
        model, drafting = cast("TaughtModel", self._model), self._calls
        if len(self._fed) < start:  # some rounds were not evaluated
            self._feed(text[:start])
        if len(self._fed) + self._unseen > start:
            model.rewind(start)
        rows = model.extend_all(text[start:])
        self._fed, self._agreed, self._chain, self._counted = text, len(text), None, 0
        calls, self._calls = 1 + self._calls - drafting, drafting
        return rows, calls

    def _compared(self, rows: Tensor, emitted: Sequence[int], distributions: Tensor) -> Tensor:
        """Return the shared mass of both distributions and the realised ratio at each token, float64 [2, emitted]."""
        support = self.support
        if support is None:
            support = torch.arange(rows.shape[-1], device=rows.device)
        written = to_device(list(emitted), rows.device)
        shared = torch.minimum(distributions[:, support], rows).sum(-1)
        draft_p = (rows * (support[None] == written[:, None])).sum(-1)
        target_p = distributions.gather(-1, written[:, None])[:, 0]
        ratio = (draft_p / target_p.clamp_min(1e-30)).clamp_max(1.0)
        return torch.stack((shared.clamp_max(1.0), ratio)).double()


class JudgedCopy(PromptCopy):
    """Prompt lookup that also keeps its hypothetical copies from the last few positions, sequences of point masses."""

    def __init__(self, longest: int, shortest: int, ahead: int) -> None:
        super().__init__(longest, shortest, ahead, latest=True, partial=True)
        self._chains: dict[int, list[int]] = {}

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        super().begin(context, prefill)
        self._chains = {}

    def hindsight(self, context: Context, emitted: Sequence[int], distributions: Tensor | None) -> Hindsight:
        first, text = len(context.ids), [*context.ids, *emitted]
        self._chains = {start: chain for start, chain in self._chains.items() if start > first - self.length}
        guesses: dict[tuple[int, int], int] = {}
        for place in range(first, first + len(emitted)):
            self._index(text[:place])
            known = replace(context, ids=text[:place], max_depth=context.max_depth - (place - first))
            self._chains[place] = list(self.continuation(known)[0])
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
            shares = dict(zip(guesses, zip(numbers or right.values(), right.values(), strict=True), strict=True))
            return lambda start, place: shares.get((start, place), NOTHING)

        return Hindsight(asked, judged, len(emitted))


@dataclass(frozen=True)
class Arm:
    """A named drafter with its chain builder."""

    name: str
    drafter: EvaluableDrafter
    builder: TreeBuilder[Any]


class DrafterSelector:
    """Controller that drafts chains of at most ``ahead`` tokens with one of ``arms``. ``chooser`` may outlive the run."""

    def __init__(self, arms: Sequence[Arm], chooser: Chooser, ahead: int, loss: str = "length") -> None:
        self.arms, self.chooser, self.ahead = arms, chooser, ahead
        self.queue = DelayQueue(ahead, loss)
        self._playing = 0
        self._hindsight_calls = 0
        self._open_note: tuple[DrafterSelectionNote, Note] | None = None

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self.queue.clear()
        self._hindsight_calls = 0
        for arm in self.arms:
            arm.drafter.begin(context, prefill)

    def draft(self, context: Context) -> Draft:
        probabilities = self.chooser.probabilities()
        coin, cumulative = context.noise.uniform(EXTRA, context.round), accumulate(probabilities)
        last = max(arm for arm, probability in enumerate(probabilities) if probability > 0)  # a rounded sum may be below the coin
        self._playing = next((arm for arm, total in enumerate(cumulative) if coin < total), last)
        arm = self.arms[self._playing]
        draft = arm.builder.build(arm.drafter, context)
        # The previous round was evaluated after its draft had been reported, so those calls are charged to this round, whose
        # arm they helped choose.
        calls, self._hindsight_calls = draft.calls + self._hindsight_calls, 0
        notes = context.notes(lambda: [self._note(probabilities)])
        return replace(draft, calls=calls, notes=(*notes, *draft.notes))

    def _note(self, probabilities: list[float]) -> Note:
        """Return the note, to be completed by :meth:`_complete_note` before the step is recorded."""
        begun = DrafterSelectionNote(
            names=[arm.name for arm in self.arms],
            chances=probabilities,
            drafted=self._playing,
            informed=self.chooser.full_information,
            loss=self.queue.loss,
            ahead=self.queue.ahead,
        )
        self._open_note = begun, begun.to_note()
        return self._open_note[1]

    def observe(self, finished: Round) -> None:
        context, emitted, informed = finished.context, finished.emitted, self.chooser.full_information
        accepted = min(len(finished.verdict.path), len(emitted))
        self.chooser.update_reward(self._playing, accepted / max(len(finished.draft.tree) - 1, self.ahead))
        settled: list[list[float]] = []
        judged: list[Judged] = []
        if informed or context.record_notes:
            with nullcontext() if informed else context.untimed:
                distributions = self._distributions(finished)
                hindsights = [arm.drafter.hindsight(context, emitted, distributions) for arm in self.arms]
                asked = [one.asked.flatten() for one in hindsights if one.asked is not None]
                numbers = iter(torch.cat(asked).tolist() if asked else ())
                for one in hindsights:
                    judged.append(one.judged(list(islice(numbers, 0 if one.asked is None else one.asked.numel()))))
                for place in range(context.position + 1, context.position + 1 + len(emitted)):
                    settled += self.queue.add(place, judged)
            # For a bandit these calls are made for display only.
            self._hindsight_calls = sum(one.calls for one in hindsights) if informed else 0
        for losses in settled:
            self.chooser.learn(losses)
        for arm in self.arms:
            arm.drafter.observe(finished)
        if context.record_notes:
            with context.untimed:
                self._complete_note(finished, judged, len(settled))

    def _distributions(self, finished: Round) -> Tensor | None:
        """Return the target's warped distributions of the emitted tokens, [emitted, vocab]; None if greedy."""
        if finished.context.warp.greedy:
            return None
        nodes = (0, *finished.verdict.path)[: len(finished.emitted)]
        logits = finished.target.logits
        return finished.context.warp.probabilities(logits.index_select(0, to_device(list(nodes), logits.device)))

    def _complete_note(self, finished: Round, judged: Sequence[Judged], settled: int) -> None:
        """Complete the note: every arm's counterfactual chain from this root, and the pending starts."""
        start = finished.context.position + 1
        known = range(start, start + min(len(finished.emitted), self.ahead))
        chains = [[judge(start, place) for place in known] for judge in judged]
        assert self._open_note is not None
        begun, note = self._open_note
        complete = begun.replace(
            tokens=list(finished.emitted),
            ghosts=[[shared for shared, _ in chain] for chain in chains],
            expected=[expected_length(chain) for chain in chains],
            settled=settled,
            waiting=[Waiting(*entry) for entry in self.queue.waiting],
            after=self.chooser.probabilities(),
        )
        cast("dict[str, Any]", note.data).update(complete.to_note().data)

    def close(self) -> None:
        for arm in self.arms:
            arm.drafter.close()

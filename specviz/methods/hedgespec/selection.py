"""Controller that selects one of several drafters in each round, by how well each would have drafted the text so far.

HedgeSpec, "Not-a-Bandit" (arXiv 2510.20064): the target's distributions along the verified text evaluate all drafters, including
those that did not draft. A bandit receives only the reward of the drafter that did.

At a position k of a chain, let g_k be one minus the total variation distance of the drafter's and the target's distribution. Let
a_k be min(1, q/p) at the emitted token. A round would emit ``1 + sum over k of a_1 ... a_(k-1) g_k`` tokens: an unbiased estimate
along a text sampled from the target. The paper has g in place of a, which is biased unless the target is greedy.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from copy import copy
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
"""(g, a) at one position: overlap of both distributions, and acceptance ratio of the emitted token."""
NOTHING: Share = (0.0, 0.0)
Judged = Callable[[int, int], Share]
"""Function from the start of a chain and a position of this round to the :data:`Share` of the chain at the position."""


def expected_length(shares: Sequence[Share]) -> float:
    """Return the estimate of the tokens that a round with this chain would emit, with the bonus token."""
    length, reached = 1.0, 1.0
    for shared, realised in shares:
        length += reached * shared
        reached *= realised
    return length


class DelayQueue:
    """Hypothetical chains that wait for target distributions: the loss of a chain of ``ahead`` tokens needs ``ahead`` of them.

    Without waiting, a short round would cut off the later tokens of a chain, and losses would not be comparable. ``loss``:
    "length" (0 if the whole chain is accepted) or "acceptance" (probability of rejecting the first token); both in [0, 1].
    """

    def __init__(self, ahead: int, loss: str = "length") -> None:
        self.loss = loss
        self.ahead = 1 if loss == "acceptance" else ahead
        self._chains: dict[int, list[list[Share]]] = {}
        """Shares [token, arm] by start position."""

    def clear(self) -> None:
        """Drop all chains."""
        self._chains.clear()

    @property
    def waiting(self) -> list[tuple[int, int]]:
        """(start, number of known target distributions) of every chain."""
        return [(start, len(chain)) for start, chain in self._chains.items()]

    def add(self, place: int, judged: Sequence[Judged]) -> list[list[float]]:
        """Extend all chains by the token emitted at ``place``, and start a chain there. ``judged`` [arm]: evaluations.

        Returns the losses [chain, arm] of the chains that are now complete, and drops these.
        """
        self._chains[place] = []
        for start, chain in self._chains.items():
            chain.append([judge(start, place) for judge in judged])
        complete = [start for start, chain in self._chains.items() if len(chain) >= self.ahead]

        def loss(shares: Sequence[Share]) -> float:
            return 1.0 - (shares[0][0] if self.loss == "acceptance" else expected_length(shares) / (len(shares) + 1))

        return [[loss(shares) for shares in zip(*self._chains.pop(start), strict=True)] for start in complete]


@dataclass(frozen=True)
class Hindsight:
    """Evaluation of one drafter in one round, split so that all drafters share one copy to the host.

    ``asked``: numbers on the device, float64; None if there are none. ``judged``: function from these numbers, on the host, to
    the evaluation. ``calls``: number of forwards and lookups.
    """

    asked: Tensor | None
    judged: Callable[[Sequence[float]], Judged]
    calls: int = 0


class EvaluableDrafter(Drafter, Protocol):
    """Drafter that can be evaluated on a text drafted by others."""

    def hindsight(self, context: Context, emitted: Sequence[int], distributions: Tensor | None) -> Hindsight:
        """Evaluate the drafter at the tokens ``emitted`` after ``context.ids``, for chains from all recent starts.

        ``distributions`` [emitted, vocab]: the target's warped distributions; None if greedy.
        """


class JudgedModel(LanguageModelDrafter):
    """Language-model drafter, evaluated in one forward over the new tokens.

    A language model's distribution does not depend on where a chain starts, so all chains share the evaluation.
    """

    @torch.inference_mode()
    def hindsight(self, context: Context, emitted: Sequence[int], distributions: Tensor | None) -> Hindsight:
        first, text = len(context.ids), [*context.ids, *emitted[:-1]]
        asked = None
        if len(text) < self._context_length:
            rows = self._along(text, first - 1)
            if distributions is None:  # the host compares the most likely tokens
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

        return Hindsight(asked, judged, int(asked is not None))

    def _along(self, text: list[int], start: int) -> Tensor:
        """Make the cache match ``text``; return the logits [token, support] after each token from ``start`` on."""
        same = self._rewind(text[: start + 1])
        self._fed, self._agreed = text, len(text)
        return cast("TaughtModel", self._model).extend_all(text[same:])[start - same :]

    def _compared(self, rows: Tensor, emitted: Sequence[int], distributions: Tensor) -> Tensor:
        """Return g and a at each token, float64 [2, emitted]."""
        support = self.support
        if support is None:
            support = torch.arange(rows.shape[-1], device=rows.device)
        written = to_device(emitted, rows.device)
        shared = torch.minimum(distributions[:, support], rows).sum(-1)
        draft_p = (rows * (support[None] == written[:, None])).sum(-1)
        target_p = distributions.gather(-1, written[:, None])[:, 0]
        ratio = (draft_p / target_p.clamp_min(1e-30)).clamp_max(1.0)
        return torch.stack((shared.clamp_max(1.0), ratio)).double()


class JudgedCopy(PromptCopy):
    """Prompt lookup that also stores the copies it would have drafted at the last few positions. Copies are point masses."""

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
    """A named drafter and the builder of its chains."""

    name: str
    drafter: EvaluableDrafter
    builder: TreeBuilder[Any]


class DrafterSelector:
    """Controller that drafts chains of at most ``ahead`` tokens with one of ``arms``, selected by ``chooser``."""

    def __init__(self, arms: Sequence[Arm], chooser: Chooser, ahead: int, loss: str = "length") -> None:
        self.arms, self.chooser, self.ahead = arms, chooser, ahead
        self.queue = DelayQueue(ahead, loss)
        self._drafters = [arm.drafter for arm in arms]
        self._copies = [] if chooser.full_information else list(map(copy, self._drafters))
        """Drafters that a bandit evaluates for its note: an evaluated arm would catch up with the text outside the timed part."""
        self._playing = 0
        self._hindsight_calls = 0
        self._open_note: tuple[DrafterSelectionNote, Note] | None = None

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self.queue.clear()
        self._hindsight_calls = 0
        for drafter in self._drafters:
            drafter.begin(context, prefill)
        if context.record_notes:
            with context.untimed:
                for drafter in self._copies:
                    drafter.begin(context, prefill)

    def draft(self, context: Context) -> Draft:
        probabilities = self.chooser.probabilities()
        coin = context.noise.uniform(EXTRA, context.round)
        last = max(
            arm for arm, probability in enumerate(probabilities) if probability > 0
        )  # in case rounding leaves the sum below the coin
        self._playing = min(last, bisect([*accumulate(probabilities)], coin))
        arm = self.arms[self._playing]
        draft = arm.builder.build(arm.drafter, context)
        # The evaluation of the previous round helped choose this round's arm, so its calls count here.
        calls, self._hindsight_calls = draft.calls + self._hindsight_calls, 0
        notes = context.notes(lambda: [self._note(probabilities)])
        return replace(draft, calls=calls, notes=(*notes, *draft.notes))

    def _note(self, probabilities: list[float]) -> Note:
        """Return a note that :meth:`_complete_note` completes before the step is recorded."""
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
                judges = self._copies or self._drafters
                hindsights = [drafter.hindsight(context, emitted, distributions) for drafter in judges]
                asked = [one.asked.flatten() for one in hindsights if one.asked is not None]
                numbers = iter(torch.cat(asked).tolist() if asked else ())
                for one in hindsights:
                    judged.append(one.judged(list(islice(numbers, 0 if one.asked is None else one.asked.numel()))))
                for place in range(context.position + 1, context.position + 1 + len(emitted)):
                    settled += self.queue.add(place, judged)
            # A bandit does not use the evaluation, which then only serves the note.
            self._hindsight_calls = sum(one.calls for one in hindsights) if informed else 0
        for losses in settled:
            self.chooser.learn(losses)
        for drafter in self._drafters:
            drafter.observe(finished)
        if context.record_notes:
            with context.untimed:
                self._complete_note(finished, judged, len(settled))

    def _distributions(self, finished: Round) -> Tensor | None:
        """Return the target's warped distributions [emitted, vocab]; None if greedy."""
        if finished.context.warp.greedy:
            return None
        nodes = (0, *finished.verdict.path)[: len(finished.emitted)]
        logits = finished.target.logits
        return finished.context.warp.probabilities(logits.index_select(0, to_device(nodes, logits.device)))

    def _complete_note(self, finished: Round, judged: Sequence[Judged], settled: int) -> None:
        """Add to the note how every arm would have drafted from this root, and the chains that wait."""
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
        for drafter in (*self._drafters, *self._copies):
            drafter.close()

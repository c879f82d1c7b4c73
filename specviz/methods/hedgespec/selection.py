"""Controller of several drafters that selects one in each round, by their counterfactual performance so far.

HedgeSpec, "Not-a-Bandit" (arXiv 2510.20064): the target's distributions along the verified text evaluate every drafter, even
those that did not draft, so the choice has full information. A bandit chooser receives only the drafting arm's reward.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from typing import Any, Generic, Protocol, TypeVar

import torch
from msgspec import to_builtins
from torch import Tensor

from specviz.engine.interfaces import Context, Draft, Drafter, Round, TargetPass, TreeBuilder
from specviz.engine.sampling import EXTRA
from specviz.engine.to_device import to_device
from specviz.methods.hedgespec.counterfactual import DelayQueue, expected_length
from specviz.methods.hedgespec.evaluable import Hindsight, Judged
from specviz.methods.hedgespec.online_learners import Chooser
from specviz.trace.notes.models import DrafterSelectionNote, Waiting
from specviz.trace.schema import Note


class EvaluableDrafter(Drafter, Protocol):
    """A drafter that can be evaluated along a text that it did not draft."""

    def hindsight(self, context: Context, emitted: Sequence[int], distributions: Tensor | None) -> Hindsight:
        """Evaluate the tokens ``emitted`` after ``context.ids``. ``distributions`` [emitted, vocab] are the target's warped
        distributions, None if greedy. Covers hypothetical chains from every start less than one chain length back."""

    def hindsight_calls(self) -> int:
        """Return the number of hindsight forwards and look-ups since the last call."""


Evaluable = TypeVar("Evaluable", bound=EvaluableDrafter)


@dataclass(frozen=True)
class Arm(Generic[Evaluable]):
    """A named drafter with its chain builder."""

    name: str
    drafter: Evaluable
    builder: TreeBuilder[Evaluable]


class DrafterSelector:
    """Controller that drafts chains of at most ``ahead`` tokens with one of ``arms``. ``chooser`` may outlive the run."""

    def __init__(self, arms: Sequence[Arm[Any]], chooser: Chooser, ahead: int, loss: str = "length") -> None:
        self.arms = arms
        self.chooser = chooser
        self.ahead = ahead
        self.queue = DelayQueue(len(arms), ahead, loss)
        self._playing = 0
        self._hindsight_calls = 0
        self._open_note: tuple[DrafterSelectionNote, dict[str, Any]] | None = None

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self.queue.clear()
        self._hindsight_calls = 0
        for arm in self.arms:
            arm.drafter.begin(context, prefill)

    def draft(self, context: Context) -> Draft:
        probabilities = self.chooser.probabilities()
        coin = context.noise.uniform(EXTRA, context.round)
        self._playing = next((arm for arm, sum_ in enumerate(accumulate(probabilities)) if coin < sum_), _last(probabilities))
        arm = self.arms[self._playing]
        draft = arm.builder.build(arm.drafter, context)
        # The previous round was evaluated after its draft had been reported, so those calls are charged to this round, whose
        # arm they helped choose.
        draft, self._hindsight_calls = replace(draft, calls=draft.calls + self._hindsight_calls), 0
        return replace(draft, notes=(*context.notes(lambda: [self._note(probabilities)]), *draft.notes))

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
        data = to_builtins(begun)
        self._open_note = begun, data
        return Note(data.pop("type"), data)

    def observe(self, finished: Round) -> None:
        context, emitted = finished.context, finished.emitted
        node_count = max(1, len(finished.draft.tree) - 1)
        if len(finished.draft.tree) > 1:
            self.chooser.update_reward(self._playing, min(len(finished.verdict.path), len(emitted)) / max(node_count, self.ahead))
        else:
            self.chooser.update_reward(self._playing, 0.0)
        settled: list[list[float]] = []
        judged: list[Judged] = []
        if self.chooser.full_information or context.record_notes:
            with nullcontext() if self.chooser.full_information else context.untimed:
                distributions = self._distributions(finished)
                judged = _told([arm.drafter.hindsight(context, emitted, distributions) for arm in self.arms])
                settled = self._settle(context.position + 1, len(emitted), judged)
            forwards = sum(arm.drafter.hindsight_calls() for arm in self.arms)
            self._hindsight_calls = forwards if self.chooser.full_information else 0  # for a bandit they serve only the display
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

    def _settle(self, first: int, count: int, judged: Sequence[Judged]) -> list[list[float]]:
        """Add the emitted tokens' shares to the queue; return the complete losses."""
        settled: list[list[float]] = []
        for place in range(first, first + count):
            self.queue.open(place)
            self.queue.add([[judge(start, place) for judge in judged] for start in self.queue.starts()])
            settled += self.queue.ready()
        return settled

    def _complete_note(self, finished: Round, judged: Sequence[Judged], settled: int) -> None:
        """Complete the note: every arm's counterfactual chain from this root, and the pending starts."""
        start = finished.context.position + 1
        known = range(start, start + min(len(finished.emitted), self.ahead))
        chains = [[judge(start, place) for place in known] for judge in judged]
        assert self._open_note is not None
        begun, data = self._open_note
        complete_note = begun.replace(
            tokens=list(finished.emitted),
            ghosts=[[shared for shared, _ in chain] for chain in chains],
            expected=[expected_length(chain) for chain in chains],
            settled=settled,
            waiting=[Waiting(*entry) for entry in self.queue.waiting],
            after=self.chooser.probabilities(),
        )
        data.update(complete_note.to_note().data)

    def close(self) -> None:
        for arm in self.arms:
            arm.drafter.close()


def _told(hindsights: Sequence[Hindsight]) -> list[Judged]:
    """Copy all drafters' inputs to the host at once, and return each drafter's evaluation."""
    parts = [one.asked.flatten() for one in hindsights if one.asked is not None]
    numbers = iter(torch.cat(parts).tolist() if parts else ())
    return [one.judged(list(islice(numbers, 0 if one.asked is None else one.asked.numel()))) for one in hindsights]


def _last(probabilities: Sequence[float]) -> int:
    """Return the last arm of positive probability, for a uniform draw above the rounded sum of probabilities."""
    return max(arm for arm, probability in enumerate(probabilities) if probability > 0)

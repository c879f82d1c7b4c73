"""Step embeddings: a learned vector per draft step of a feature drafter, and the measured effect.

HiViS (arXiv 2509.23928). The outputs of a feature drafter drift away from the target's features. A step embedding tells the
drafter how many draft steps separate a feature from the last true one. Axis names: ``step``, ``row``, ``hidden``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specviz.drafting.networks.eagle_head import EagleRuntime
from specviz.drafting.runtimes.feature_drafter import FeatureDrafter
from specviz.drafting.runtimes.feature_levels import FeatureLevels
from specviz.engine.interfaces import Context, Pick, Round, TargetPass
from specviz.engine.to_device import to_device
from specviz.trace.notes.images import StepEmbeddingsNote
from specviz.trace.schema import Note

DEPTHS = 8
"""Number of levels in the statistics."""


class StepwiseDrafter(FeatureDrafter):
    """Feature drafter with step embeddings ``steps`` [step, hidden].

    The first embedding is added to the target's features, the next ones to the drafter's first output, second output, and so on.
    The last embedding serves all deeper steps. ``compare``: after each round, run the drafter along the emitted tokens with and
    without step embeddings, and record which top-1 guesses are right.
    """

    def __init__(self, network: EagleRuntime, steps: Tensor, compare: bool = False) -> None:
        super().__init__(network)
        self._steps = steps
        self._reached, self._kept, self._guess_counts = [0] * DEPTHS, [0] * DEPTHS, [0] * DEPTHS
        self._right = ([0] * DEPTHS, [0] * DEPTHS)
        self._bare = StepwiseDrafter(network, torch.zeros_like(steps)) if compare else None

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        super().begin(context, prefill)
        if self._bare is not None:
            with context.untimed:
                self._bare.begin(context, prefill)

    def _true(self, features: Tensor) -> Tensor:
        return super()._true(features) + self._steps[0]

    def _acquired(self, columns: int) -> FeatureLevels:
        levels = super()._acquired(columns)
        steps = levels.given("steps", self._steps)
        levels.own = lambda outputs, depth: outputs + steps[min(depth, len(steps) - 1)]
        return levels

    def _allows_fixed_shapes(self) -> bool:
        return self._captures and self._bare is None

    def observe(self, finished: Round) -> None:
        if self._bare is not None:
            with finished.context.untimed:
                emitted = finished.emitted[:DEPTHS]
                for right, drafter in zip(self._right, (self, self._bare), strict=True):
                    for depth, guess in enumerate(drafter.guesses(finished.context, emitted)):
                        right[depth] += guess == emitted[depth]
                        self._guess_counts[depth] += drafter is self
        self._count(finished)
        super().observe(finished)
        if self._bare is not None:
            with finished.context.untimed:
                self._bare.observe(finished)

    def _count(self, finished: Round) -> None:
        """Count, per level, the rounds with a drafted child and the rounds with an accepted child."""
        children = finished.draft.tree.shape.children
        for depth, node in enumerate((0, *finished.verdict.path)[:DEPTHS]):
            if children[node]:
                self._reached[depth] += 1
                self._kept[depth] += depth < len(finished.verdict.path)

    @torch.inference_mode()
    def guesses(self, context: Context, emitted: Sequence[int]) -> list[int]:
        """Return the top token at each level, teacher-forced on ``emitted``. Overwrites the draft tree in the cache."""
        output = self._after_root(context)
        if output is None:
            return []
        levels, guesses, device = self._room(context.position + len(emitted)), [], context.device
        for depth, token in enumerate(emitted):
            best = int(self.network.logits(output).argmax())
            guesses.append(best if self.support is None else int(self.support[best]))
            column = self._committed + depth
            place = to_device([context.position + depth], device)
            fed = levels.own(output, depth + 1)
            output = self.network(to_device([token], device), fed, place, levels.cache, column, None)
        return guesses

    def draft_notes(self, picks: Sequence[Pick]) -> tuple[Note, ...]:
        note = StepEmbeddingsNote(self._steps.norm(dim=-1).tolist(), self._reached, self._kept)
        if self._bare is not None:
            note = note.replace(asked=self._guess_counts, with_=self._right[0], without=self._right[1])
        return (*super().draft_notes(picks), note.to_note())

    def close(self) -> None:
        super().close()
        if self._bare is not None:
            self._bare.close()

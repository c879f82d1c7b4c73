"""OWL's drafter: a recurrence from the last token's state alone, run level by level down a tree.

Lee et al., OWL (arXiv 2510.07535). With the root at position P, the network starts from the root's embedding and two states of
the target: those of token P - 1 and of the [SPEC] token after it. A node starts from its parent's final state.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specviz.drafting.levels import Levels
from specviz.drafting.networks.recurrent_net import RecurrentRuntime, State
from specviz.drafting.runtimes.null import NullDrafter
from specviz.engine.interfaces import Context, Pick, Round, TargetPass
from specviz.engine.to_device import to_device
from specviz.methods.owl.spec_token import SpecTokenPass
from specviz.trace.schema import Note


class RecurrentLevels(Levels):
    """One round of a recurrence, level by level: a level depends only on the state of the previous one."""

    def __init__(self, stepper: RecurrentRuntime, last: Tensor, root: Tensor) -> None:
        """``last`` [1, 2 * hidden] are the target's states of the last token, ``root`` [1] is the token after it."""
        self.calls = 0
        self._stepper, self._last, self._root = stepper, last, root
        self._state: State | None = None

    def first(self) -> Tensor:
        """Return raw logits [1, support] after the root."""
        return self._after(self._stepper.begin(self._last, self._root))

    def below(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Return raw logits [row, support] after ``tokens`` [row], whose parents are these rows of the level above."""
        assert self._state is not None
        return self._after(self._stepper.go_on((self._state[0][parents], self._state[1][parents]), tokens))

    def _after(self, state: State) -> Tensor:
        self._state = state
        self.calls += 1
        return self._stepper.logits(state[0])


class RecurrentDrafter(NullDrafter):
    """Recurrent drafter. ``stepper`` is shared between runs; the states belong to one run, and only the last token's are kept.

    Without a [SPEC] token in the session, zeros take the place of its state.
    """

    def __init__(self, stepper: RecurrentRuntime) -> None:
        self.support: Tensor | None = stepper.draft_ids
        self.taps = (stepper.config.tap,)
        self._stepper = stepper
        self._levels: RecurrentLevels | None = None
        self._last: Tensor | None = None

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self._levels = None
        self._last = None if prefill is None else self._read(prefill, -1)

    def observe(self, finished: Round) -> None:
        path = (0, *finished.verdict.path)[: len(finished.emitted)]
        self._last = self._read(finished.target, path[-1])

    def close(self) -> None:
        self._last = self._levels = None

    def calls(self) -> int:
        if self._levels is None:
            return 0
        count, self._levels.calls = self._levels.calls, 0
        return count

    def draft_notes(self, picks: Sequence[Pick]) -> tuple[Note, ...]:
        return ()

    @torch.inference_mode()
    def levels(self, context: Context) -> RecurrentLevels | None:
        """Return this round's levels; None for a prompt of one token, whose state is unknown."""
        self._levels = None
        if self._last is not None:
            self._levels = RecurrentLevels(self._stepper, self._last, to_device([context.ids[-1]], context.device))
        return self._levels

    def _read(self, passed: TargetPass, node: int) -> Tensor:
        """Return the states of ``node`` and of the [SPEC] token below it (zeros without one), [1, 2 * hidden]."""
        (tap,) = self.taps
        own = passed.hidden[tap][node][None]
        behind = passed.behind[tap][node][None] if isinstance(passed, SpecTokenPass) else torch.zeros_like(own)
        return torch.cat((own, behind), dim=-1)

"""DiffuSpec's controller: lattice, causal-consistency search, and an adaptive draft length."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from specviz.drafting.memory.ngram_model import NgramModel
from specviz.engine.interfaces import Context, Draft, Round, TargetPass
from specviz.engine.tree import DraftTree
from specviz.methods.diffuspec.drafter import MaskedBlock
from specviz.methods.diffuspec.lattice import Column, Gauge, LengthRule, Search, columns, distribution, fence, search
from specviz.trace.notes.drafts import DraftLength, LatticeBeams, LatticeColumn, LatticeNote
from specviz.trace.schema import Note

SHOWN = 6
"""Number of top candidates reported per column; those taken by a beam are reported too."""


@dataclass(frozen=True)
class Searching:
    """Search settings. ``mass`` and ``cap`` bound a column, ``width`` is the number of beams, and ``weight`` the drafter's weight
    in a path's score against the n-gram model; at 1 the path is each position's top token."""

    mass: float = 0.8
    cap: int = 15
    width: int = 3
    weight: float = 0.5


class Searched:
    """Controller that drafts the best path of a lattice as a chain of point masses. With ``adaptive`` False, drafts always have
    the maximum length."""

    def __init__(
        self, drafter: MaskedBlock, ngrams: NgramModel, how: Searching, rule: LengthRule, ends: frozenset[int],
        adaptive: bool = True,
    ) -> None:  # fmt: skip
        self.drafter = drafter
        self._ngrams = ngrams
        self._how = how
        self._ends = ends
        self._adaptive = adaptive
        self._rule = rule
        self.gauge = Gauge(rule)
        self._beam_search: Search | None = None
        self._counted = 0

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self.drafter.begin(context, prefill)
        self.gauge = Gauge(self._rule)

    def draft(self, context: Context) -> Draft:
        length = min(self.gauge.length if self._adaptive else self._rule.longest, context.max_depth - 1)
        self._beam_search = None
        if length < 1:
            return Draft(DraftTree.of([context.ids[-1]], [-1], context.device))
        log_q = distribution(self.drafter.block(context, length))
        lattice = columns(log_q, self.drafter.support, self._how.mass, self._how.cap, self._ends)
        before = ([-1, -1, *context.ids[-2:]])[-2:]
        beam_search = search(lattice, self._ngrams, before, self._how.weight, self._how.width, self._ends)
        cut = fence(lattice, self._ends)
        before_end = [length, *([cut - 1] if cut else []), *([len(beam_search.path) - 1] if beam_search.ended else [])]
        self._beam_search, self._counted = beam_search, min(before_end)
        tree = DraftTree.of([context.ids[-1], *beam_search.path], range(-1, len(beam_search.path)), context.device)
        confidence = [None, *(math.exp(token_log_q) for token_log_q in beam_search.log_q)]
        notes = context.notes(lambda: [self._lattice_note(lattice, beam_search, length, cut)])
        return Draft(tree, confidence=confidence, calls=self.drafter.calls(), notes=notes)

    def _lattice_note(self, lattice: list[Column], beam_search: Search, length: int, cut: int | None) -> Note:
        beam_picks = {(at, pick) for at, step in enumerate(beam_search.steps) for pick in step.picks}
        rows = [_column(column, at, beam_picks) for at, column in enumerate(lattice)]
        steps = [
            LatticeBeams(list(step.parents), [rows[at][1][pick] for pick in step.picks], list(step.scores))
            for at, step in enumerate(beam_search.steps)
        ]
        gauge = DraftLength(
            length, self._rule.shortest, self._rule.longest, self.gauge.drafted, self.gauge.accepted, self._adaptive
        )
        return LatticeNote([row for row, _ in rows], steps, cut, gauge, self._how.weight, beam_search.ended).to_note()

    def observe(self, finished: Round) -> None:
        """Update the gauge with the number of tokens drafted before the fence or the path's own end, and the number accepted."""
        if self._beam_search is None:
            return
        accepted = min(len(finished.verdict.path), len(finished.emitted))
        self.gauge = self.gauge.after(self._counted, accepted)

    def close(self) -> None:
        self.drafter.close()


def _column(column: Column, at: int, beam_picks: set[tuple[int, int]]) -> tuple[LatticeColumn, dict[int, int]]:
    """Return a column's report, with its top candidates and those taken by a beam, and the index in it of each."""
    picks = [pick for pick in range(len(column.tokens)) if pick < SHOWN or (at, pick) in beam_picks]
    entry = LatticeColumn(column.tokens[picks].tolist(), np.exp(column.log_q[picks]).tolist(), len(column.tokens))
    return entry, {pick: number for number, pick in enumerate(picks)}

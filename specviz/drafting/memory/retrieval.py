"""Retrieval drafter: suffix trees of this run's text and of the target's outputs in earlier runs.

SuffixDecoding (Oliaro et al., arXiv 2411.04975) calls them the local and the global tree, READER (arXiv 2508.09072) short-term
and long-term memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specviz.drafting.memory.output_store import OutputStore
from specviz.drafting.memory.suffix_guess import Guess, LengthRule, best_guess, matches
from specviz.drafting.memory.suffix_tree import DEPTH, SuffixTree
from specviz.drafting.runtimes.null import NullDrafter
from specviz.engine.interfaces import Context, Round, TargetPass
from specviz.trace.notes.drafts import SuffixNote, SuffixRow, SuffixTrial
from specviz.trace.schema import Note

CONTEXT = "context"
OUTPUTS = "outputs"
SHOWN_ROWS = 12
SHOWN_CHILDREN = 6


@dataclass(frozen=True)
class MemoryGuess:
    """Draft that the memory ``source`` proposes. ``tried``: (match length, draft limit, score) of each length tried."""

    source: str
    guess: Guess
    tried: list[tuple[int, int, float]]

    @property
    def near(self) -> bool:
        """Whether the memory is this run's own text."""
        return self.source == CONTEXT


class Retrieval(NullDrafter):
    """Drafter that retrieves from two memories: this run's text and ``store``, outputs of earlier runs (None: only this run's
    text)."""

    def __init__(self, store: OutputStore | None, rule: LengthRule, threshold: float = 0.0) -> None:
        self.store = store
        self.rule = rule
        self.threshold = threshold
        self._text: list[int] = []
        self._start = 0
        self._tree = SuffixTree()

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self._tree = SuffixTree()
        self._tree.start()
        self._tree.extend(context.ids)
        self._text = list(context.ids)
        self._start = len(self._text)

    def observe(self, finished: Round) -> None:
        self._tree.extend(finished.emitted)
        self._text += finished.emitted

    def close(self) -> None:
        if self.store is not None:
            self.store.add(self._text[self._start :])
        self._start = len(self._text)

    def guesses(self, tail: Sequence[int] = (), all_lengths: bool = False) -> list[MemoryGuess]:
        """Return one guess per memory for the text followed by ``tail``; the guess from this run's text comes first.

        ``all_lengths``: whether to try every match length in this run's text, even those that cannot win.
        """
        text = [*self._text[-DEPTH - 1 :], *tail]
        positions = matches(self._tree, text) if tail else self._tree.present()
        guesses = [MemoryGuess(CONTEXT, *best_guess(positions, DEPTH, self.rule, all_lengths))]
        if self.store is not None:
            guesses.append(MemoryGuess(OUTPUTS, *self.store.ask(lambda tree: best_guess(matches(tree, text), DEPTH, self.rule))))
        return guesses

    def guess(self, context: Context) -> tuple[Guess, tuple[Note, ...]]:
        """Return the better of the two memories' guesses (empty if it scores below the threshold) and notes for the trace."""
        best = _best(self.guesses())
        guess = best.guess if best.guess.score >= self.threshold else Guess()
        return guess, context.notes(lambda: [self._note(self.guesses(all_lengths=True))])

    def _note(self, guesses: Sequence[MemoryGuess]) -> Note:
        best = _best(guesses)
        guess, used = best.guess, best.guess.score >= self.threshold
        return SuffixNote(
            source=best.source if guess.tokens else "none",
            suffix_start=len(self._text) - guess.matched,
            suffix_length=guess.matched,
            occurrences=guess.positions[0].branch.count if guess.positions else 0,
            limit=guess.limit,
            score=guess.score,
            threshold=self.threshold,
            used=bool(guess.tokens) and used,
            scores={memory.source: memory.guess.score for memory in guesses},
            tried=[SuffixTrial(*trial) for trial in sorted(best.tried)],
            rows=_rows(guess) if used else [],
            remembered=0 if self.store is None else self.store.tokens,
        ).to_note()


def _best(guesses: Sequence[MemoryGuess]) -> MemoryGuess:
    """Return the guess with the highest score; this run's text wins ties."""
    return max(guesses, key=lambda memory: memory.guess.score)


def _rows(guess: Guess) -> list[SuffixRow]:
    """Return a row for the match and for each fork at which a draft token was chosen, at most ``SHOWN_ROWS``.

    A row has the most frequent continuations, their counts, and the number of continuations left out.
    """
    rows: list[SuffixRow] = []
    for node in sorted({0, *guess.parents}) if guess.tokens else ():
        following = list(guess.positions[node].following())
        count = guess.positions[node].branch.count
        # Along an edge there is one continuation, so only the match and forks get a row.
        if node and len(following) < 2 and following[0][1] == 1.0:
            continue
        continuations = following[:SHOWN_CHILDREN]
        rows.append(
            SuffixRow(
                node=node,
                count=count,
                tokens=[token for token, _, _ in continuations],
                counts=[below.branch.count for _, _, below in continuations],
                others=len(following) - len(continuations),
            )
        )
        if len(rows) == SHOWN_ROWS:
            break
    return rows

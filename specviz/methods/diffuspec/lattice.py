"""Beam search through a lattice of marginal distributions, and the length of the next lattice.

DiffuSpec (arXiv 2510.02358). A denoising step gives independent marginal distributions for all positions. *Lattice*: the top
tokens of each position that cover a given probability. *Causal-consistency search*: a left-to-right beam search over the lattice,
scored by the marginals and an n-gram model, so that neighbouring tokens fit together. *Adaptive length*: the running mean of
tokens drafted before an end-of-text token, plus a stride after full acceptance; as published, rejections do not shorten drafts.
A searched path is not a sample, so verification treats each token as a point mass.

DEER uses the same drafter. A position attends to the text and to other masks, never to drafted tokens. A distribution therefore
depends only on the text, as rejection sampling requires. Axis names: ``place``, ``candidate``, ``beam``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from specviz.drafting.memory.ngram_model import NgramModel
from specviz.drafting.networks.masked_lm import MaskedLM
from specviz.drafting.runtimes.feature_levels import CapturedLevels, acquire, release
from specviz.drafting.runtimes.null import NullDrafter
from specviz.engine.interfaces import Context, Draft, Pick, Round, TargetPass
from specviz.engine.sampling import Warp
from specviz.engine.to_device import to_device
from specviz.engine.tree import DraftTree
from specviz.trace.notes.drafts import DenoisedNote, DraftLength, LatticeBeams, LatticeColumn, LatticeNote, Offer
from specviz.trace.schema import Note

SHOWN = 6
"""Number of top candidates per column in a note, besides candidates taken by a beam."""
SHOWN_OFFERS = 4
"""Number of top tokens per mask in a note."""
WIDTHS = (64, 128, 256)
"""Padded lengths (tokens and masks) of captured passes below the model's window."""


@dataclass(frozen=True)
class Column:
    """Candidates of one position: ``tokens`` [candidate], most likely first, and ``log_q`` [candidate]."""

    tokens: np.ndarray
    log_q: np.ndarray


@dataclass(frozen=True)
class Step:
    """Beams after one position: parent beam, candidate and cumulative score [beam]."""

    parents: tuple[int, ...]
    picks: tuple[int, ...]
    scores: tuple[float, ...]


@dataclass(frozen=True)
class Search:
    """Result of a search. ``path`` and ``log_q`` [place]: tokens of the best beam and their marginal log-probabilities.

    ``ended``: whether the path ends with an end-of-text token.
    """

    path: tuple[int, ...]
    log_q: tuple[float, ...]
    steps: tuple[Step, ...]
    ended: bool


def columns(log_q: Tensor, support: Tensor, mass: float, cap: int, ends: Tensor) -> list[Column]:
    """Return a column per row of ``log_q`` [place, support]: the fewest top tokens that cover ``mass``, at most ``cap``.

    ``support``: token ids [support]. ``ends``: indices into the support of the end-of-text tokens, which are candidates in every
    column. The lattice ends after the first position with an end-of-text token on top.
    """
    width = min(cap, log_q.shape[-1])
    slots = torch.cat((log_q.topk(width, dim=-1).indices, ends.expand(len(log_q), -1)), 1)
    # A single copy to the host: float64 represents token ids exactly.
    ids, values = torch.stack((support[slots].double(), log_q.gather(1, slots).double())).cpu().numpy()
    lattice: list[Column] = []
    for tokens, shares in zip(ids.astype(np.int64), values, strict=True):
        size = int((np.exp(shares[:width]).cumsum() < mass).sum()) + 1
        best = tokens[: min(size, width)]
        slot_of = [*range(len(best)), *(slot for slot in range(width, len(tokens)) if tokens[slot] not in best)]
        lattice.append(Column(tokens[slot_of], shares[slot_of]))
        if best[0] in tokens[width:]:
            break
    return lattice


def fence(lattice: Sequence[Column], ends: frozenset[int]) -> int | None:
    """Return the number of columns if the top token of the last column ends the text, else None."""
    return len(lattice) if lattice and int(lattice[-1].tokens[0]) in ends else None


def search(
    lattice: Sequence[Column], ngrams: NgramModel, before: Sequence[int], weight: float, width: int, ends: frozenset[int]
) -> Search:
    """Return the best path of a beam search with ``width`` beams, scored by the sum of ``weight`` log q + (1 - ``weight``) log p.

    ``before``: text before the lattice, for the n-gram model's p. The search ends when the best beam takes one of the
    end-of-text tokens ``ends``; other beams that take an end-of-text token are dropped.
    """
    last = np.array([list(before)[-2:]], dtype=np.int64)
    scores, steps, trail = np.zeros(1), list[Step](), list[list[int]]([[]])
    ended = False
    for column in lattice:
        gained = weight * column.log_q[None]
        if weight < 1:
            gained = gained + (1 - weight) * ngrams.log_probability(last, column.tokens)
        total = (scores[:, None] + gained).ravel()
        order = np.argsort(-total, kind="stable")
        parent, pick = np.divmod(order, len(column.tokens))
        ended = column.tokens[pick[0]] in ends
        going = np.array([token not in ends for token in column.tokens[pick]])
        chosen = np.flatnonzero(going | (np.arange(len(order)) == 0))[:width]
        parent, pick = parent[chosen], pick[chosen]
        steps.append(Step(tuple(parent.tolist()), tuple(pick.tolist()), tuple(total[order[chosen]].tolist())))
        trail = [[*trail[beam], take] for beam, take in zip(parent.tolist(), pick.tolist(), strict=True)]
        if ended:
            break
        last = np.stack((last[parent, 1], column.tokens[pick]), 1)
        scores = total[order[chosen]]
    path = list(zip(lattice, trail[0], strict=False))
    tokens = tuple(int(column.tokens[pick]) for column, pick in path)
    return Search(tokens, tuple(float(column.log_q[pick]) for column, pick in path), tuple(steps), ended)


@dataclass
class Gauge:
    """Adaptive draft length, from ``shortest`` to ``longest`` tokens.

    The length is the running mean of tokens ``drafted`` before an end-of-text token. ``stride`` is added if the running mean of
    ``accepted`` tokens is at least as large. ``keep``: weight of the old mean in an update. The paper uses 20, 30 and 10.
    """

    shortest: int
    longest: int
    stride: int
    keep: float = 0.5
    drafted: float = 0.0
    accepted: float = 0.0
    rounds: int = 0

    @property
    def length(self) -> int:
        """Number of masks in the next round; ``longest`` in the first."""
        if not self.rounds:
            return self.longest
        more = self.stride if self.accepted >= self.drafted else 0
        return min(self.longest, max(self.shortest, math.floor(self.drafted) + more))

    def learn(self, drafted: int, accepted: int) -> None:
        """Update the running means after a round."""
        self.drafted = self.keep * self.drafted + (1 - self.keep) * drafted
        self.accepted = self.keep * self.accepted + (1 - self.keep) * accepted
        self.rounds += 1


class Searched:
    """Controller that drafts the best path of a lattice as a chain of point masses.

    ``ends``: end-of-text tokens. ``mass`` and ``cap``: bounds of a column, see :func:`columns`. ``width`` and ``weight``: beams
    and weight of the search, see :func:`search`. ``adaptive``: follow ``gauge``; if False, every draft has the maximum length.
    """

    def __init__(
        self, drafter: MaskedBlock, ngrams: NgramModel, gauge: Gauge, ends: frozenset[int], mass: float = 0.8, cap: int = 15,
        width: int = 3, weight: float = 0.5, adaptive: bool = True,
    ) -> None:  # fmt: skip
        self.drafter, self.gauge = drafter, gauge
        self._ngrams, self._ends, self._adaptive = ngrams, ends, adaptive
        self._mass, self._cap, self._width, self._weight = mass, cap, width, weight
        wanted = to_device(sorted(ends), drafter.support.device)
        self._end_places = torch.isin(drafter.support, wanted).nonzero()[:, 0]
        self._counted: int | None = None

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self.drafter.begin(context, prefill)
        self.gauge = replace(self.gauge, drafted=0.0, accepted=0.0, rounds=0)

    def draft(self, context: Context) -> Draft:
        length = min(self.gauge.length if self._adaptive else self.gauge.longest, context.max_depth - 1)
        self._counted = None
        if length < 1:
            return Draft(DraftTree.of([context.ids[-1]], [-1], context.device))
        logits = self.drafter.block(context, length)
        # Temperature 1 in every run, since the search does not sample.
        log_q = torch.log_softmax(logits if logits.dtype == torch.float64 else logits.float(), -1)
        lattice = columns(log_q, self.drafter.support, self._mass, self._cap, self._end_places)
        before = [-1, -1, *context.ids[-2:]][-2:]
        best = search(lattice, self._ngrams, before, self._weight, self._width, self._ends)
        cut = fence(lattice, self._ends)
        self._counted = min(length, cut - 1 if cut else length, len(best.path) - 1 if best.ended else length)
        tree = DraftTree.of([context.ids[-1], *best.path], range(-1, len(best.path)), context.device)
        confidence = [None, *(math.exp(token_log_q) for token_log_q in best.log_q)]
        notes = context.notes(lambda: [self._lattice_note(lattice, best, length, cut)])
        return Draft(tree, confidence=confidence, calls=self.drafter.calls(), notes=notes)

    def _lattice_note(self, lattice: list[Column], best: Search, length: int, cut: int | None) -> Note:
        beam_picks = {(at, pick) for at, step in enumerate(best.steps) for pick in step.picks}
        rows = [_column(column, at, beam_picks) for at, column in enumerate(lattice)]
        steps = [
            LatticeBeams(list(step.parents), [rows[at][1][pick] for pick in step.picks], list(step.scores))
            for at, step in enumerate(best.steps)
        ]
        gauge = self.gauge
        bounds = DraftLength(length, gauge.shortest, gauge.longest, gauge.drafted, gauge.accepted, self._adaptive)
        return LatticeNote([row for row, _ in rows], steps, cut, bounds, self._weight, best.ended).to_note()

    def observe(self, finished: Round) -> None:
        """Update the gauge with the number of tokens drafted before an end-of-text token, and the number accepted."""
        if self._counted is not None:
            self.gauge.learn(self._counted, min(len(finished.verdict.path), len(finished.emitted)))

    def close(self) -> None:
        self.drafter.close()


def _column(column: Column, at: int, beam_picks: set[tuple[int, int]]) -> tuple[LatticeColumn, dict[int, int]]:
    """Return the note of a column, and a map from reported candidates to their index in the note.

    The note has the top candidates and the candidates that a beam took.
    """
    picks = [pick for pick in range(len(column.tokens)) if pick < SHOWN or (at, pick) in beam_picks]
    entry = LatticeColumn(column.tokens[picks].tolist(), np.exp(column.log_q[picks]).tolist(), len(column.tokens))
    return entry, {pick: number for number, pick in enumerate(picks)}


class MaskLevels(CapturedLevels[tuple[Tensor, int]]):
    """Levels of a chain through a block of masks. One pass gives the logits [place, support] of all levels.

    The state of a level is (logits, level number). ``fixed``: passes have fixed shapes and addresses, for CUDA graphs.
    """

    def __init__(self, model: MaskedLM, fixed: bool) -> None:
        super().__init__(model.draft_ids.device)
        self._model, self.fixed, self._text = model, fixed, list[int]()

    def take(self, text: Sequence[int], places: int) -> None:
        """Set the committed text and the number of masks that follow."""
        window = self._model.config.window
        self._text, self.trail, self.deepest = list(text[-(window - places) :]), [], places
        width = next((width for width in WIDTHS if len(self._text) + places <= width < window), window)
        self._shape = width, places
        if self.fixed:
            self._given_text = self.numbers([*self._text, *[0] * (width - len(self._text)), len(self._text)])

    def first(self) -> Tensor:
        if self.fixed:
            logits = self._model.padded(self._given_text[:-1], self._given_text[-1:], self.deepest)
        else:
            logits = self._model(to_device(self._text, self._device), self.deepest)
        self._here = logits, 0
        return logits[:1]

    def below(self, tokens: Tensor, parents: Tensor) -> Tensor:
        logits, number = self.trail[-1]
        self._here = logits, number + 1
        return logits[number + 1 : number + 2]

    def marginals(self) -> Tensor:
        self.ask()
        return self.trail[0][0]


class MaskedBlock(NullDrafter):
    """Drafter of blocks of up to ``places`` masks. In a chain, the node at depth d has the distribution of mask d.

    ``fixed``: whether passes have fixed shapes and addresses, for CUDA graphs; None: on CUDA only.
    """

    def __init__(self, model: MaskedLM, places: int, fixed: bool | None = None) -> None:
        if not 0 < places < model.config.window:
            raise ValueError(f"a block of {places} masks does not fit into the model's window of {model.config.window} tokens")
        self.model = model
        self.places = places
        self.support: Tensor = model.draft_ids
        self._warp = Warp()
        self._fixed = self.support.device.type == "cuda" if fixed is None else fixed
        self._levels = MaskLevels(model, False)

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self.close()
        if self._fixed:
            self._levels = acquire(self.model, 0, lambda model, _: MaskLevels(model, True))

    def _chain(self, context: Context, places: int) -> MaskLevels:
        self._calls, self._warp = self._calls + 1, context.warp
        self._levels.take(context.ids, places)
        return self._levels

    @torch.inference_mode()
    def block(self, context: Context, places: int) -> Tensor:
        """Return logits [place, support] of ``places`` masks after the committed text, in one forward."""
        return self._chain(context, places).marginals()

    def marginals(self, context: Context) -> Tensor:
        """Return logits [place, support] of as many masks as the run has room for."""
        return self.block(context, min(self.places, context.max_depth - 1))

    @torch.inference_mode()
    def levels(self, context: Context) -> MaskLevels:
        """Return the levels of a chain: one forward gives all levels, whatever tokens are sampled."""
        return self._chain(context, min(self.places, context.max_depth - 1))

    def draft_notes(self, picks: Sequence[Pick]) -> tuple[Note, ...]:
        """Return a note with the top tokens and probabilities of every mask."""
        if not picks:
            return ()
        distributions = self._warp.log_probabilities(self._levels.trail[0][0]).exp()
        best = distributions.topk(min(SHOWN_OFFERS, distributions.shape[-1]), dim=-1)
        ids, shares = self.support[best.indices].tolist(), best.values.tolist()
        places = [Offer(row, share) for row, share in zip(ids, shares, strict=True)]
        return (DenoisedNote(places).to_note(),)

    def close(self) -> None:
        if self._levels.fixed:
            release(self.model, self._levels)
        self._levels = MaskLevels(self.model, False)

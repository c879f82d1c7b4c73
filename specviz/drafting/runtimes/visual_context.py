"""Visual context of a drafter: no image tokens, all of them, or a compressed image.

*Text alone*: image tokens are removed from the drafter's prompt, and the other tokens are renumbered. The target's states at
text tokens still depend on the image (HiViS, arXiv 2509.23928). *All rows*: image tokens stay, embedded as in the target or as
the placeholder token, as in feature drafters adapted from language models.

*Compressed*: outputs of a few learned queries replace the image (ViSpec, arXiv 2509.15235). All outputs but the last take the
image's last positions and enter the first layer without projection. The last output is added to the states after the image.
Positions remain those of the whole prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafting.levels import Levels
from specviz.drafting.networks.eagle_head import EagleRuntime
from specviz.drafting.runtimes.feature_drafter import FeatureDrafter
from specviz.drafting.runtimes.feature_levels import FeatureLevels
from specviz.engine.interfaces import Context, Pick, Round, TargetPass
from specviz.trace.notes.images import VisualTokensNote
from specviz.trace.schema import Note

EMBEDDINGS = 0
"""Index of the hidden state that is the target's input: token embeddings and image embeddings."""


@dataclass(frozen=True)
class Layout:
    """Layout of a prompt in target and drafter.

    ``visual``: indices of image tokens. ``hidden``: indices of tokens removed in the text-only view. ``positions`` [3, 1, token]:
    the target's positions in time, height and width, if it uses three. After the prompt, all three are the index plus ``shift``.
    """

    length: int
    visual: tuple[int, ...]
    hidden: tuple[int, ...]
    positions: Tensor | None = field(default=None, compare=False)
    shift: int = 0

    def axial(self, places: Tensor) -> Tensor:
        """Return [4, row] for tokens at ``places`` [row]: the index, and the target's positions in time, height and width."""
        three = (places + self.shift).expand(3, -1)
        if self.positions is not None:
            known = self.positions[:, 0].to(places.device)
            three = torch.where(places < known.shape[1], known[:, places.clamp(max=known.shape[1] - 1)], three)
        return torch.cat((places[None], three))

    def note(self, kept_places: Sequence[int], unseen: Sequence[int] = ()) -> Note:
        """Return the note on both prefills.

        ``kept_places``: image tokens that the drafter reads. ``unseen``: other tokens hidden from the drafter.
        """
        return VisualTokensNote(
            target=self.length,
            drafter=self.length - len(self.visual) + len(kept_places) - len(unseen),
            visual=spans(self.visual),
            kept=spans(kept_places),
            unseen=spans(unseen),
        ).to_note()


def spans(places: Sequence[int]) -> list[list[int]]:
    """Return the contiguous runs of ascending indices as [first, count]."""
    runs: list[list[int]] = []
    for place in places:
        if runs and sum(runs[-1]) == place:
            runs[-1][1] += 1
        else:
            runs.append([place, 1])
    return runs


def pictured(layout: Layout, embeddings: Tensor, tokens: Tensor, first: int, table: Tensor) -> Tensor:
    """Return embeddings [row, hidden] of the prompt's ``tokens`` [row], which begin at index ``first``.

    Text is looked up in ``table`` [vocab, hidden], image tokens in the target's input ``embeddings`` [token, hidden].
    """
    visual = torch.tensor([place - first for place in layout.visual if 0 <= place - first < len(tokens)], device=tokens.device)
    embedded = F.embedding(tokens, table)
    embedded[visual.long()] = embeddings[visual.long() + first].to(embedded)
    return embedded


class View:
    """View of a run without some tokens of its prompt.

    ``kept_places``: indices of the prompt tokens that remain. Tokens after the prompt all remain.
    """

    def __init__(self, length: int, left_out: Sequence[int]) -> None:
        absent = frozenset(left_out)
        self.kept_places = [place for place in range(length) if place not in absent]
        self._length, self.shift = length, len(absent)
        self._places = torch.tensor(self.kept_places)

    def context(self, context: Context) -> Context:
        """Return the context without the removed tokens."""
        ids = [context.ids[place] for place in self.kept_places] + list(context.ids[self._length :])
        return replace(context, ids=ids, prompt_length=len(self.kept_places))

    def prefill(self, prefill: TargetPass) -> TargetPass:
        """Return the prefill, which excludes the prompt's last token, without the removed tokens' hidden states."""
        rows = [place for place in self.kept_places if place < self._length - 1]
        return TargetPass(prefill.logits, {tap: states[rows] for tap, states in prefill.hidden.items()})

    def places(self, places: Tensor) -> Tensor:
        """Map indices [row] in the view to indices in the whole text."""
        kept_places = self._places = self._places.to(places.device)
        inside = kept_places[places.clamp(max=len(kept_places) - 1)]
        return torch.where(places < len(kept_places), inside, places + self.shift)


class TextAlone:
    """Wrapper that runs ``drafter`` on the text without the prompt's image."""

    def __init__(self, drafter: Any, layout: Layout) -> None:
        self._drafter = drafter
        self._layout = layout
        self._view = View(layout.length, layout.hidden)

    @property
    def support(self) -> Tensor | None:
        return self._drafter.support

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self._drafter.begin(self._view.context(context), None if prefill is None else self._view.prefill(prefill))

    def observe(self, finished: Round) -> None:
        self._drafter.observe(replace(finished, context=self._view.context(finished.context)))

    def close(self) -> None:
        self._drafter.close()

    def calls(self) -> int:
        return self._drafter.calls()

    def levels(self, context: Context) -> Levels | None:
        """Return the wrapped drafter's levels."""
        return self._drafter.levels(self._view.context(context))

    @property
    def placed(self) -> Callable[[Mapping[int, tuple[int, int]]], None] | None:
        """The wrapped drafter's method ``placed``, if it has one."""
        return getattr(self._drafter, "placed", None)

    def draft_notes(self, picks: Sequence[Pick]) -> tuple[Note, ...]:
        markers = [place for place in self._layout.hidden if place not in frozenset(self._layout.visual)]
        return (*self._drafter.draft_notes(picks), self._layout.note((), markers))


class AllRows(FeatureDrafter):
    """Feature drafter over the whole prompt.

    The network determines whether image tokens use the image embeddings, and whether they use the target's three positions.
    """

    def __init__(self, network: EagleRuntime, layout: Layout) -> None:
        super().__init__(network)
        self._layout = layout
        self._embeddings: Tensor | None = None

    @property
    def reads(self) -> tuple[int, ...]:
        """The target's hidden states that the drafter reads: the network's taps, and the target's input for image embeddings."""
        return tuple(sorted({*self.taps, EMBEDDINGS})) if self.network.config.how.pictured else self.taps

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        if prefill is not None and self.network.config.how.pictured:
            self._embeddings = prefill.hidden[EMBEDDINGS]
        super().begin(context, prefill)
        self._embeddings = None  # only text follows the prompt

    def _visual_inputs(self, tokens: Tensor, first: int) -> dict[str, Tensor]:
        if self._embeddings is None:
            return {}
        embedded = pictured(self._layout, self._embeddings, tokens, first, self.network.embedding)
        if not self.network.config.how.direct:
            return {"embedded": embedded}
        here = torch.arange(first, first + len(tokens), device=tokens.device)
        return {"embedded": embedded, "direct": torch.isin(here, torch.tensor(self._layout.visual, device=tokens.device))}

    def _allows_fixed_shapes(self) -> bool:
        return self._captures and not self.network.config.how.sections

    def _places(self, places: Tensor) -> Tensor:
        return self._layout.axial(places) if self.network.config.how.sections else places

    def draft_notes(self, picks: Sequence[Pick]) -> tuple[Note, ...]:
        return (*super().draft_notes(picks), self._layout.note(self._layout.visual))


class _Rows(FeatureDrafter):
    """Drafter on the shortened prompt. ``stands``: indices of the query outputs in it. ``end``: first index after them."""

    def __init__(self, network: EagleRuntime, view: View, stands: Sequence[int], end: int) -> None:
        super().__init__(network)
        self._view, self._stands, self._end = view, tuple(stands), end
        self._answers: Tensor | None = None
        self._behind: Tensor | None = None

    def set_picture(self, picture: Tensor | None) -> None:
        """Set the image embeddings [visual, hidden], or None for no image."""
        self._answers = self._behind = None
        if picture is not None:
            self._answers = self.network.compressed(picture)
            self._behind = self.network.behind(self._answers[-1])

    def _places(self, places: Tensor) -> Tensor:
        return self._view.places(places + 1) - 1

    def _visual_inputs(self, tokens: Tensor, first: int) -> dict[str, Tensor]:
        if self._answers is None or self._behind is None:
            return {}
        here = torch.arange(first, first + len(tokens), device=tokens.device)
        embedded, direct = F.embedding(tokens, self.network.embedding), torch.zeros_like(here, dtype=torch.bool)
        for answer, place in zip(self._answers, self._stands, strict=False):
            if first <= place < first + len(tokens):
                embedded[place - first], direct[place - first] = answer, True
        return {"embedded": embedded, "direct": direct, "behind": torch.where((here >= self._end)[:, None], self._behind, 0)}

    def _acquired(self, columns: int) -> FeatureLevels:
        levels = super()._acquired(columns)
        if self._behind is not None:
            levels.beside = {"behind": self._behind}
        return levels


class CompressedPicture(TextAlone):
    """Drafter that uses a published head's learned queries on a prompt with an image."""

    def __init__(self, network: EagleRuntime, layout: Layout) -> None:
        kept = layout.visual[len(layout.visual) - network.config.queries + 1 :] if network.config.queries > 1 else ()
        left_out = layout.visual[: len(layout.visual) - len(kept)]
        self._seen, self._kept = layout, kept
        view = View(layout.length, left_out)
        place_of = {place: index for index, place in enumerate(view.kept_places)}
        end = sum(place <= layout.visual[-1] for place in view.kept_places) if layout.visual else 0
        self._rows = _Rows(network, view, [place_of[place] for place in kept], end)
        super().__init__(self._rows, replace(layout, hidden=left_out))

    @property
    def reads(self) -> tuple[int, ...]:
        """The target's hidden states that the drafter reads: the network's taps, and the target's input."""
        return tuple(sorted({*self._rows.taps, EMBEDDINGS}))

    @torch.inference_mode()
    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        visual = list(self._seen.visual)
        self._rows.set_picture(None if prefill is None or not visual else prefill.hidden[EMBEDDINGS][visual])
        super().begin(context, prefill)

    def draft_notes(self, picks: Sequence[Pick]) -> tuple[Note, ...]:
        return (*self._rows.draft_notes(picks), self._seen.note(self._kept))


def with_picture(network: EagleRuntime, layout: Layout) -> AllRows | CompressedPicture:
    """Return the drafter of ``network`` for a prompt with an image."""
    if network.config.queries:
        return CompressedPicture(network, layout)
    return AllRows(network, layout)

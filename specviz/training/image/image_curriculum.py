"""In which order an image model learns: few rows of many pictures first, then whole ones; its own drawings of few rows beside.

What a prompt asks for shows in the first rows, and who learns whole pictures sees each of those once for a whole picture's
cost: the lower rows, which follow from the upper ones, take nearly all of it, and the prompt stays unread. One row costs an
eighth, words and all, so that many more prompts are read in the same time. Drawings of its own reach no further than four
rows: below its first wrong ones a picture is noise, and asking for right codes there undid what whole pictures had taught.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specviz.training.image.image_codes import Batches, misread
from specviz.training.image.image_drift import OwnDrawings
from specviz.training.image.image_net import ImageNet

MISREAD = 0.15
"""Up to this share of the codes that are read as given is wrong."""
WORDS = 16
"""Places of a prompt."""
SCHEDULE: tuple[tuple[float, dict[tuple[int, bool], float]], ...] = (
    (0.35, {(16, False): 0.44, (1, False): 0.1, (2, False): 0.1, (1, True): 0.1, (2, True): 0.13, (4, True): 0.13}),
    (1.00, {(16, False): 0.74, (8, False): 0.06, (4, True): 0.1, (2, True): 0.1}),
)
"""Until which share of the time how often so many sixteenths of a picture are read, as given or as drawn (True)."""


class Curriculum:
    """Prompts [picture, word], codes and codes as read [picture, place], an update's at a time and all about equally dear."""

    def __init__(
        self, batches: Batches, net: Callable[[], ImageNet], grid: int, count: int, guidance: float,
        workers: int | None, seed: int = 0,
    ) -> None:  # fmt: skip
        """``count`` is how many whole pictures of ``grid`` x ``grid`` codes an update reads; ``net`` the model as it is."""
        self.batches, self.net, self.grid, self.count = batches, net, grid, count
        self.guidance, self.workers, self.seed = guidance, workers, seed
        self.generator = torch.Generator().manual_seed(seed)
        self.drawings: dict[int, OwnDrawings] = {}

    def next(self, share: float) -> tuple[Tensor, Tensor, Tensor]:
        """An update's examples when ``share`` of the time is gone."""
        places, own = length(share, float(torch.rand((), generator=self.generator)), self.grid)
        if own:
            words, right, drawn = self._drawn(places).next(self.net)
            return words, right, drawn
        words, codes = self.batches.draw(many(places, self.grid, self.count, WORDS))
        codes = codes[:, :places].contiguous()
        return words, codes, misread(codes, MISREAD, self.generator)

    def _drawn(self, places: int) -> OwnDrawings:
        if places not in self.drawings:
            count = many(places, self.grid, self.count, WORDS)
            self.drawings[places] = OwnDrawings(
                self.batches.guided_batch, places, count, self.guidance, self.workers, seed=self.seed + places * 10**6
            )
        return self.drawings[places]


def length(share: float, generator: float, grid: int) -> tuple[int, bool]:
    """How many codes of a picture of ``grid`` rows are read, and whether as drawn; ``generator`` is uniform from 0 to 1."""
    kinds = next(kinds for end, kinds in SCHEDULE if share < end or end == 1)
    for (part, own), likely in kinds.items():
        generator -= likely
        if generator < 0:
            break
    return max(1, part * grid // 16) * grid, own


def many(places: int, grid: int, count: int, words: int) -> int:
    """How many pictures of which only ``places`` are read cost as much as ``count`` whole ones."""
    return max(1, count * (words + grid * grid) // (words + places))

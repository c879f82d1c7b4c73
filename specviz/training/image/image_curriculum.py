"""In which order an image model learns: few rows of many pictures first, then whole ones; its own drawings of few rows beside.

What a prompt asks for shows in the first rows, and who learns whole pictures sees each of those once for a whole picture's
cost: the lower rows, which follow from the upper ones, take nearly all of it, and the prompt stays unread. One row costs an
eighth, words and all, so that many more prompts are read in the same time.

A model that has only ever read right codes is lost after its first wrong one. It is therefore also shown beginnings of its own,
drawn with guidance as they will be, and asked for the right code at each place of them: DAgger (Ross et al. 2011, "A
reduction of imitation learning and structured prediction to no-regret online learning"). They reach no further than four
rows: below its first wrong ones a picture is noise, and asking for right codes there undid what whole pictures had taught.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from specviz.training.image.image_codes import Batches, misread
from specviz.training.image.image_net import ImageNet
from specviz.training.image.image_samples import draw, halved

MISREAD = 0.15
"""Up to this share of the codes that are read as given is wrong."""
WORDS = 16
"""Places of a prompt."""
SCHEDULE: tuple[tuple[float, dict[tuple[int, bool], float]], ...] = (
    (0.35, {(16, False): 0.44, (1, False): 0.1, (2, False): 0.1, (1, True): 0.1, (2, True): 0.13, (4, True): 0.13}),
    (1.00, {(16, False): 0.74, (8, False): 0.06, (4, True): 0.1, (2, True): 0.1}),
)
"""Until which share of the time how often so many sixteenths of a picture are read, as given or as drawn (True)."""

Asked = Callable[[int], tuple[Tensor, Tensor, Tensor]]
"""So many prompts with words and without [picture, word], and the right codes [picture, place]."""


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


class OwnDrawings:
    """Prompts [picture, word], right codes and own codes [picture, place] of the first ``places``, ``count`` at a time.

    ``times`` times as many are drawn at once, and each of them is given ``times`` times before the next are drawn.
    """

    def __init__(
        self, ask: Asked, places: int, count: int, guidance: float, workers: int | None, times: int = 3, seed: int = 0
    ) -> None:
        self.ask, self.places, self.count, self.guidance, self.workers = ask, places, count, guidance, workers
        self.times, self.seed = times, seed
        self.drawings: tuple[Tensor, ...] = ()
        self.waiting: list[Tensor] = []

    def next(self, net: Callable[[], ImageNet]) -> tuple[Tensor, Tensor, Tensor]:
        """The next ``count``; ``net`` is the model as it is now, asked for when drawings have run out."""
        if not self.waiting:
            self._draw(halved(net()))
        chosen = self.waiting.pop()
        words, right, own = (tensor[chosen] for tensor in self.drawings)
        return words, right, own

    def _draw(self, net: ImageNet) -> None:
        with_words, without, right = self.ask(self.count * self.times)
        parts = torch.arange(len(right)).chunk(self.workers or 1)
        rows = list(zip(with_words.tolist(), without.tolist(), strict=True))

        def drawn(part: Tensor) -> Tensor:
            chosen = [rows[place] for place in part.tolist()]
            return draw(net, chosen, self.places, self.guidance, self.seed + int(part[0]))

        with ThreadPoolExecutor(len(parts)) as pool:
            own = torch.cat(list(pool.map(drawn, parts)))
        self.seed += len(right)
        self.drawings = (with_words, right[:, : self.places], own)
        self.waiting = [part for _ in range(self.times) for part in torch.randperm(len(right)).to(right.device).chunk(self.times)]

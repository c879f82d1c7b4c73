"""What an image model draws itself while it learns, beside what it should have drawn there.

A model that has only ever read right codes is lost after its first wrong one. It is therefore also shown beginnings of its own,
drawn with guidance as they will be, and asked for the right code at each place of them: DAgger (Ross et al. 2011, "A
reduction of imitation learning and structured prediction to no-regret online learning").
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from specviz.training.image.image_net import ImageNet
from specviz.training.image.image_samples import draw, halved

Asked = Callable[[int], tuple[Tensor, Tensor, Tensor]]
"""So many prompts with words and without [picture, word], and the right codes [picture, place]."""


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

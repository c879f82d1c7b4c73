"""What a picture drafter learns from: what the frozen image model makes of its own pictures, and of those of the data.

A picture is drawn and read once and learned from several times: drawing costs as much as learning six times, reading as
much as twice. So pictures stand on a shelf, from which one is taken by chance until it has been used up.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specviz.models.image.image import LoadedImage
from specviz.training.image import emoji
from specviz.training.image.image_codes import Batches, coded, prompt_of
from specviz.training.image.image_samples import draw, halved
from specviz.training.image.image_sheets import network

DRAWN = 32
"""How many pictures of its own the target draws at a time; as many of the data go beside them."""
TIMES = 6
"""How often each is learned from."""
SHELF = 256
"""Pictures from which the next is taken: about a megabyte each."""
READ = 8
"""Pictures read together."""

Rows = tuple[Sequence[int], Sequence[int]]
"""Words of a prompt, and of the empty one."""


@dataclass(frozen=True)
class Example:
    """A picture, both ways: ``tokens`` [row, token], ``features`` [row, token, hidden], guided log-``distribution`` [cell,
    code]."""

    tokens: Tensor
    features: Tensor
    distribution: Tensor


class Target:
    """The frozen image model: hidden states, guided distributions, and pictures of its own."""

    def __init__(self, loaded: LoadedImage) -> None:
        self.loaded = loaded
        self.net = network(loaded)
        self.shape = self.net.shape
        self.fast = halved(self.net)

    @torch.no_grad()
    def read(self, rows: Sequence[Rows], codes: Tensor) -> list[Example]:
        """Examples of pictures: their prompts' ``rows`` and ``codes`` [picture, cell]."""
        prompts = torch.tensor([row for pair in rows for row in pair], device=codes.device)
        doubled = codes.repeat_interleave(2, dim=0)
        hidden = self.net.hidden(prompts, doubled)
        logits = self.net.logits(hidden[:, prompts.shape[1] - 1 : -1]).float()
        distributions = guided(logits[0::2], logits[1::2], self.loaded.guidance)
        tokens = torch.cat((prompts, doubled + self.loaded.first_code), dim=1)
        pairs = (rows_of_both.unflatten(0, (-1, 2)) for rows_of_both in (tokens, hidden.float()))
        return [Example(*(tensor.clone() for tensor in parts)) for parts in zip(*pairs, distributions, strict=True)]

    def own(self, rows: Sequence[Rows], seed: int) -> Tensor:
        """Pictures of its own [picture, cell] at temperature 1."""
        return draw(self.fast, rows, self.loaded.cells, self.loaded.guidance, seed)


class Examples:
    """Examples from the data and from the target's own drawing, of the concepts to learn or of those kept out."""

    def __init__(self, target: Target, held_out: bool, seed: int = 3, workers: int = 1) -> None:
        """``workers`` threads share the drawing and the reading, each with torch at one."""
        self.target, self.workers = target, workers
        loaded = target.loaded
        self.data = Batches(coded(loaded.grid), loaded.prompts, loaded.device, seed).data  # type: ignore[arg-type]
        self.concepts = self.data.part(held_out)
        self.generator = np.random.default_rng(seed)
        self.shelf: list[tuple[Example, int]] = []
        self.drawn = 0

    def prompted_pictures(self, count: int) -> tuple[list[Rows], Tensor]:
        """Prompts by chance, and the data's own pictures of them [picture, cell]."""
        rows, codes = [], []
        for _ in range(count):
            concept = self.concepts[int(self.generator.integers(len(self.concepts)))]
            style = emoji.STYLES[int(self.generator.integers(len(emoji.STYLES)))]
            prompt_rows = self.target.loaded.prompts.rows(prompt_of(concept, style))
            rows.append((prompt_rows.conditional, prompt_rows.unconditional))
            codes.append(torch.from_numpy(self.data.codes[concept.rows[style], 0]).long())
        return rows, torch.stack(codes).to(self.target.loaded.device)

    def own(self, count: int) -> list[Example]:
        """Fresh examples of the target's own pictures alone."""
        rows, _ = self.prompted_pictures(count)
        return self._fresh(rows)

    def refill(self) -> None:
        """Pictures of the target's own, and those of the data for the same prompts, onto the shelf."""
        rows, codes = self.prompted_pictures(DRAWN)
        self.shelf += [(example, TIMES) for example in self._fresh(rows, codes)]

    def next(self) -> Example:
        """One of the shelf's."""
        while len(self.shelf) <= SHELF - 2 * DRAWN:
            self.refill()
        place = int(self.generator.integers(len(self.shelf)))
        example, left = self.shelf[place]
        if left > 1:
            self.shelf[place] = (example, left - 1)
        else:
            self.shelf[place] = self.shelf[-1]
            self.shelf.pop()
        return example

    def _fresh(self, rows: Sequence[Rows], codes: Tensor | None = None) -> list[Example]:
        """Examples of the target's own pictures, then of those of ``codes`` [picture, cell] for the same prompts."""

        def part(places: Tensor) -> list[Example]:
            part_rows = [rows[place] for place in places.tolist()]
            examples = self._read(part_rows, self.target.own(part_rows, self.drawn + int(places[0])))
            return examples if codes is None else examples + self._read(part_rows, codes[places])

        with ThreadPoolExecutor(self.workers) as pool:
            examples = [example for part in pool.map(part, torch.arange(len(rows)).chunk(self.workers)) for example in part]
        self.drawn += len(rows)
        return examples

    def _read(self, rows: Sequence[Rows], codes: Tensor) -> list[Example]:
        parts = range(0, len(rows), READ)
        return [example for at in parts for example in self.target.read(rows[at : at + READ], codes[at : at + READ])]


def guided(with_words: Tensor, without: Tensor, strength: float) -> Tensor:
    """Log-probabilities after guidance."""
    return (without + strength * (with_words - without)).log_softmax(-1)

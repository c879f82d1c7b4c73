"""How far the blocks of a masked language model agree with the target, on held-out answers the target itself wrote.

A greedy answer is the target's argmax at every position, so drafting against it *is* speculative decoding at T = 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specviz.drafters.networks.masked_lm import MaskedLM
from specviz.training.common.agreement import repetition
from specviz.training.common.data import Dialogues, Markers


@dataclass(frozen=True)
class Agreement:
    """Blocks of ``places`` tokens, one a step. ``tau`` counts the bonus token; ``reached`` and ``right`` are by place:
    steps whose earlier places were all right, and those of them right there too; ``alone`` is how often a place is right
    whatever the others are. ``lengths[n]`` counts the steps that accepted n."""

    tau: float
    reached: tuple[int, ...]
    right: tuple[int, ...]
    alone: tuple[float, ...]
    lengths: tuple[int, ...]
    repetition: float

    @property
    def steps(self) -> int:
        return sum(self.lengths)

    @property
    def longest(self) -> int:
        """The longest accepted block."""
        return max((length for length, count in enumerate(self.lengths) if count), default=0)

    @property
    def by_place(self) -> tuple[float, ...]:
        """Acceptance given that the earlier places were accepted."""
        return tuple(right / max(1, reached) for right, reached in zip(self.right, self.reached, strict=True))

    def figures(self, places: int = 8) -> dict[str, object]:
        """For a card."""
        return {
            "tau": round(self.tau, 3),
            "by_place": [round(share, 3) for share in self.by_place[:places]],
            "alone": [round(share, 3) for share in self.alone[:places]],
            "longest": self.longest,
            "steps": self.steps,
            "repetition": round(self.repetition, 3),
        }


@torch.inference_mode()
def block_agreement(
    model: MaskedLM, dialogues: Dialogues, chosen: Sequence[int], markers: Markers, places: int, runs: int
) -> Agreement:
    """Speculate along ``chosen`` greedy answers, at most ``runs`` steps. A step that the answer's end cuts short is left
    out, but the end itself may be drafted."""
    reached, right, alone = np.zeros(places, int), np.zeros(places, int), np.zeros(places, int)
    lengths, emitted, again, grams = np.zeros(places + 1, int), 0, 0, 0
    device = model.embedding.device
    for number in chosen:
        answer = dialogues.answer(number)
        repeated, total = repetition(answer)
        again, grams = again + repeated, grams + total
        text = torch.tensor([*markers.prefix, *dialogues.of(number)], device=device)
        first, done = len(text) - len(answer), 0
        while done + places + 1 <= len(answer) and lengths.sum() < runs:
            best = model.draft_ids[model(text[: first + done], places).argmax(-1)].cpu().numpy()
            hits = (best == answer[done : done + places]).astype(int)
            accepted = int(np.cumprod(hits).sum())
            reached[: accepted + 1] += 1  # a slice past the end is no place
            right[:accepted] += 1
            alone += hits
            lengths[accepted] += 1
            done, emitted = done + accepted + 1, emitted + accepted + 1
    steps = max(1, int(lengths.sum()))
    return Agreement(
        emitted / steps, tuple(reached.tolist()), tuple(right.tolist()), tuple((alone / steps).tolist()),
        tuple(lengths.tolist()), again / max(1, grams),
    )  # fmt: skip


@torch.inference_mode()
def first_overlap(
    model: MaskedLM, target: Callable[[Tensor], Tensor], dialogues: Dialogues, chosen: Sequence[int], markers: Markers,
    places: int, stride: int,
) -> float:  # fmt: skip
    """Mean of sum min(p, q) at the first place of a block at temperature 1: the probability that its first token is accepted.

    ``target`` gives logits [token, vocab] of ids [token]; every ``stride``-th place of each answer begins a block.
    """
    total, blocks = 0.0, 0
    for number in chosen:
        text = torch.tensor([*markers.prefix, *dialogues.of(number)], device=model.embedding.device)
        first = len(text) - len(dialogues.answer(number))
        distribution = target(text).float().softmax(-1)[:, model.draft_ids]
        for start in range(first, len(text), stride):
            ours = model(text[:start], places)[0].float().softmax(-1)
            total += float(torch.minimum(ours, distribution[start - 1]).sum())
            blocks += 1
    return total / max(1, blocks)

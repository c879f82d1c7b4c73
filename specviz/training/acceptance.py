"""Acceptance on held-out greedy answers of the target.

A greedy answer is the target's argmax at every position, so drafting along the answer is speculative decoding at T = 0. A family
supplies the rank of each true token among the drafter's predictions; this module does the counting.
Axis names: ``start`` (positions that draft), ``depth``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafting.networks.small_lm import SmallLM
from specviz.training.data import Dialogues, Markers
from specviz.training.features import DialogueFeatures

BREADTH = 5
"""Number of top predictions that are ranked."""
Path = tuple[int, ...]


def ranks_of(logits: Tensor, truth: Tensor, ids: Tensor | None = None, breadth: int = BREADTH) -> Tensor:
    """Return the rank of each token of ``truth`` [...] in ``logits`` [..., draft]; ``breadth`` for ranks of ``breadth`` or more.

    ``ids`` [draft]: token ids of the draft vocabulary; None: the whole vocabulary.
    """
    best = logits.topk(min(breadth, logits.shape[-1])).indices
    hit = (best if ids is None else ids[best]) == truth[..., None]
    return torch.where(hit.any(-1), hit.int().argmax(-1), breadth)


@torch.inference_mode()
def chain_ranks(
    dialogues: Iterable[DialogueFeatures], depth: int, draft: Callable[[DialogueFeatures, Tensor], Iterable[Tensor]],
    ids: Tensor | None = None, breadth: int = BREADTH,
) -> Tensor:  # fmt: skip
    """Return the ranks [start, depth] of chains from every position of greedy answers with ``depth`` tokens left.

    ``draft(dialogue, starts)``: function that returns the logits [start, draft] of every draft step, given the true tokens. The
    first draft token from start i is token i + 2.
    """
    rows = [torch.zeros(0, depth, dtype=torch.long)]
    for dialogue in dialogues:
        tokens = dialogue.tokens
        starts = torch.tensor(range(max(0, dialogue.first - 2), len(tokens) - 1 - depth), device=tokens.device)
        if len(starts):
            steps = enumerate(draft(dialogue, starts), start=2)
            rows.append(torch.stack([ranks_of(logits, tokens[starts + step], ids, breadth) for step, logits in steps], 1).cpu())
    return torch.cat(rows)


def metrics(ranks: Tensor, paths: Collection[Path] | None = None, alone: bool = False) -> dict[str, float]:
    """Return the acceptance of chains and trees from ``ranks`` [start, depth].

    ``tau``: tokens per step of chain drafting, with the bonus token. ``first1``, ``first2``, ...: share of starts with the true
    token on top at that depth, given top ranks at all shallower depths. ``five1``, ...: the same with the true token among the
    top five. ``alone1``, ... (if ``alone``): share of all starts with the true token on top. ``tree`` (if ``paths``): tokens per
    step with a tree of the rank paths ``paths``.
    """
    right = (ranks == 0).int().cumprod(1)
    reached = torch.cat((torch.ones_like(right[:, :1]), right[:, :-1]), 1)
    starts, counts = max(1, len(ranks)), reached.sum(0).clamp_min(1)
    shares = {"first": right.sum(0) / counts, "five": ((ranks < 5) * reached).sum(0) / counts}
    if alone:
        shares["alone"] = (ranks == 0).sum(0) / starts
    found = {"tau": 1 + int(right.sum()) / starts}
    if paths is not None:
        found["tree"] = 1 + sum(map(path_counts(ranks).__getitem__, set(paths))) / starts
    return found | {f"{name}{at + 1}": float(share[at]) for name, share in shares.items() for at in range(ranks.shape[1])}


def path_counts(ranks: Tensor, breadth: int = 10) -> Counter[Path]:
    """Return how often each rank path matched the true tokens."""
    counts: Counter[Path] = Counter()
    for row, times in Counter(map(tuple, ranks.tolist())).items():
        for depth, rank in enumerate(row, start=1):
            if rank >= breadth:
                break
            counts[row[:depth]] += times
    return counts


@torch.inference_mode()
def steps_along(
    dialogues: Dialogues, chosen: Iterable[int], markers: Markers, depth: int, runs: int,
    drafter: Callable[[Tensor, int], Callable[[int], Tensor]], device: torch.device,
) -> Tensor:  # fmt: skip
    """Return the ranks [step, depth] of speculative decoding along the ``chosen`` greedy answers, for about ``runs`` steps.

    A step starts where the last step ended; steps beyond the end of an answer are left out. ``first``: index of the first
    answer token. ``drafter(text, first)`` returns a function from a number of answer tokens to the ranks [depth] of the chain
    drafted after these tokens.
    """
    rows = [torch.zeros(0, depth, dtype=torch.long)]
    for number in chosen:
        if len(rows) > runs:
            break
        text = torch.tensor([*markers.prefix, *dialogues.of(number)], device=device)
        length, done = len(dialogues.answer(number)), 0
        ranks = drafter(text, len(text) - length)
        while len(rows) <= runs and done + depth < length:
            rows.append(ranks(done)[None].cpu())
            done += int((rows[-1] == 0).int().cumprod(1).sum()) + 1
    return torch.cat(rows)


def chain_agreement(
    model: SmallLM, dialogues: Dialogues, chosen: Sequence[int], markers: Markers, depth: int, runs: int = 4000
) -> dict[str, float]:
    """Return :func:`metrics` and the number of steps for chains that ``model`` drafts along the ``chosen`` greedy answers."""

    def drafter(text: Tensor, first: int) -> Callable[[int], Tensor]:
        features = model.features(F.pad(text[None, :-2], (1, 0)), text[None, :-1])[0, first - 1 :]
        ranks = ranks_of(F.linear(features, model.head(), model.bias).float(), text[first:], model.draft_ids)
        return lambda done: ranks[done : done + depth]

    steps = steps_along(dialogues, chosen, markers, depth, runs, drafter, model.bias.device)
    return {**metrics(steps), "steps": float(len(steps))}

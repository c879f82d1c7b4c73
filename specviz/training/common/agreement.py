"""How well a draft model foresees the target, measured on held-out answers the target itself wrote.

A greedy answer is the target's argmax at every position, so drafting against it *is* speculative decoding at T = 0; the
target need not run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafters.networks.small_lm import SmallCache, SmallLM
from specviz.training.common.data import Dialogues, Markers


@dataclass(frozen=True)
class Agreement:
    """Chain drafting of ``depth`` tokens a step. ``tau`` counts the bonus token; ``top1``/``top5`` are by depth, among
    the positions whose shallower drafts were all right; ``repetition`` is the share of 4-grams seen before in their
    answer."""

    depth: int
    tau: float
    top1: tuple[float, ...]
    top5: tuple[float, ...]
    steps: int
    repetition: float


@torch.inference_mode()
def next_token_agreement(
    model: SmallLM, dialogues: Dialogues, chosen: Sequence[int], markers: Markers, to_draft: Tensor
) -> dict[str, float]:
    """Cross-entropy (nats) over all ``chosen`` answers, and top-1/top-5 agreement on the greedy ones among them."""
    total, counted, hit, near, greedy = 0.0, 0, 0, 0, 0
    head = model.head()
    for number in chosen:
        ids = torch.tensor([*markers.prefix, *dialogues.of(number)], device=to_draft.device)[None]
        first = len(markers.prefix) + int(dialogues.prompt[number])
        features = model.features(F.pad(ids[:, :-2], (1, 0)), ids[:, :-1])[0, first - 1 :]
        logits, label = F.linear(features, head, model.bias).float(), to_draft[ids[0, first:]]
        inside = label >= 0
        total += float(F.cross_entropy(logits[inside], label[inside], reduction="sum"))
        counted += int(inside.sum())
        if dialogues.temperature[number] == 0:
            best = logits.topk(5).indices == label[:, None]
            hit, near, greedy = hit + int(best[:, 0].sum()), near + int(best.sum()), greedy + len(label)
    return {"held_out": total / max(1, counted), "top1": hit / max(1, greedy), "top5": near / max(1, greedy)}


@torch.inference_mode()
def chain_agreement(
    model: SmallLM, dialogues: Dialogues, chosen: Sequence[int], markers: Markers, depth: int, runs: int
) -> Agreement:
    """Speculate along ``chosen`` greedy answers with chains of ``depth``, at most ``runs`` steps; steps cut by the end
    of an answer are left out."""
    reached, hit, near = np.zeros(depth, int), np.zeros(depth, int), np.zeros(depth, int)
    steps, emitted, repeated, grams = 0, 0, 0, 0
    for number in chosen:
        answer = dialogues.answer(number)
        again, total = repetition(answer)
        repeated, grams = repeated + again, grams + total
        before = [*markers.prefix, *dialogues.of(number)[: dialogues.prompt[number]]]
        cache = model.open(len(before) + len(answer) + depth + 1)
        model(torch.tensor(before[:-1], device=model.embedding.device), cache, last_only=True)
        root, done = before[-1], 0
        while done + depth + 1 <= len(answer) and steps < runs:
            right, close = _chain(model, cache, root, answer[done : done + depth])
            accepted = int(np.cumprod(right).sum())
            reached[: accepted + 1] += 1
            hit[: accepted + 1] += right[: accepted + 1]
            near[: accepted + 1] += close[: accepted + 1]
            fresh = len(before) - 1 + done
            if accepted == depth:  # the last draft was never fed: it is in the text but not yet in the cache
                model(torch.tensor([answer[done + depth - 1]], device=model.embedding.device), cache)
            cache.keep(fresh + 1 + accepted)
            done, steps, emitted = done + accepted + 1, steps + 1, emitted + accepted + 1
            root = int(answer[done - 1])
    deep = np.maximum(reached, 1)
    return Agreement(
        depth, emitted / max(1, steps), tuple((hit / deep).tolist()), tuple((near / deep).tolist()), steps,
        repeated / max(1, grams),
    )  # fmt: skip


@torch.inference_mode()
def overlap(
    model: SmallLM, target: Callable[[Tensor], Tensor], dialogues: Dialogues, chosen: Sequence[int], markers: Markers
) -> float:
    """Mean over the answers' positions of sum min(p, q) at temperature 1: the probability that a drafted token is accepted.

    ``target`` gives logits [token, vocab] of ids [token]. The answers should have been sampled at temperature 1.
    """
    total, positions = 0.0, 0
    for number in chosen:
        ids = torch.tensor([*markers.prefix, *dialogues.of(number)], device=model.embedding.device)[:-1]
        first = len(markers.prefix) + int(dialogues.prompt[number]) - 1
        ours = model(ids, model.open(len(ids)))[first:].float().softmax(-1)
        theirs = target(ids)[first:].float().softmax(-1)[:, model.draft_ids]
        total += float(torch.minimum(ours, theirs).sum())
        positions += len(ours)
    return total / max(1, positions)


def _chain(model: SmallLM, cache: SmallCache, root: int, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Draft ``len(truth)`` tokens after ``root``: was the truth the first, and among the first five, by depth."""
    right, close = np.zeros(len(truth), int), np.zeros(len(truth), int)
    token = torch.tensor([root], device=model.embedding.device)
    for place, label in enumerate(truth):
        best = model.draft_ids[model(token, cache)[0].topk(5).indices]
        right[place], close[place] = int(best[0] == label), int((best == label).any())
        token = best[:1]
    return right, close


def repetition(answer: np.ndarray) -> tuple[int, int]:
    """How many of an answer's 4-grams it has already written, and how many it has."""
    grams = [tuple(answer[place : place + 4]) for place in range(len(answer) - 3)]
    return len(grams) - len(set(grams)), len(grams)

"""Logit lens: predictions of the target's own head from its hidden states before the last one (nostalgebraist 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.engine.stop import heed
from specviz.figures.drafter_readings import Lens
from specviz.inspection.passages import Passage
from specviz.models.heads.quantised_copy import matrix
from specviz.targets.hybrid import HybridTarget
from specviz.targets.text import TextTarget


@torch.inference_mode()
def lenses(
    target: TextTarget | HybridTarget, passages: Sequence[Passage], layers: Sequence[int], taps: Sequence[int]
) -> list[Lens]:
    """One lens for each of ``layers``, which the passages must hold; none if the target has no final norm called ``norm``."""
    norm, head = getattr(target.model.get_decoder(), "norm", None), matrix(target.model.get_output_embeddings())
    if norm is None:
        return []
    last = int(target.config.num_hidden_layers)
    return [_lens(layer, norm if layer < last else None, head, passages, layer in taps) for layer in layers]


def _lens(layer: int, norm: Any, head: Tensor, passages: Sequence[Passage], tap: bool) -> Lens:
    ranks = []
    for passage in passages:
        heed()
        states = passage.states[layer][passage.first - 1 : -1]
        logits = F.linear(states if norm is None else norm(states), head)
        final = passage.logits.argmax(-1, keepdim=True)
        ranks.append(1 + (logits > logits.gather(1, final)).sum(-1))
    together = torch.cat(ranks).float()
    return Lens(layer, float((together == 1).float().mean()), float(together.median()), tap)

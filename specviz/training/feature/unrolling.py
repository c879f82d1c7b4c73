"""Run a feature drafter over a whole dialogue as drafting will: first on true features, then on its own.

Li et al. 2025, EAGLE-3 (arXiv 2503.01840), "training-time test": step 0 is an ordinary causal pass; in step j the network
reads its own output of step j - 1 together with the true next token. A row then sees what it would see while drafting:
the true keys up to its start, and its own keys of steps 1 to j. Rows with different starts never meet after step 0, so a
sample of them can go on while the rest stop: the deeper steps cost what one pays for them.
Axis names: ``token``, ``start`` (positions that draft), ``hidden``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafters.networks.feature_net import FeatureNet, attend
from specviz.training.common.parallel import evened


def unroll(
    net: FeatureNet, tokens: Tensor, features: Tensor, rows: Sequence[Tensor], embedded: Tensor | None = None
) -> list[Tensor]:
    """Outputs [start, hidden] of each step. ``rows[j]`` are the starts of step j, each among those of the step before.

    Start i reads the feature of token i and token i + 1; its output of step j stands for token i + 1 + j, so its logits
    are the distribution of token i + 2 + j. ``tokens`` [token]; ``features`` [token, tap * hidden], those of a last token unused.
    ``embedded`` [token, hidden] stands for the tokens where some of them are no words.

    Inside, texts and rows are rounded up to few lengths, as :func:`specviz.training.common.parallel.evened` explains: behind a
    text stand tokens that no start sees, and behind the starts the last of them again.
    """
    words = F.embedding(tokens, net.embedding) if embedded is None else embedded
    features, wanted = evened(features[: len(tokens) - 1]), [len(chosen) for chosen in rows]
    words, rows = F.pad(words, (0, 0, 0, len(features) + 1 - len(words))), [_repeated(chosen) for chosen in rows]
    count = len(features)
    net.reach(count + 1 + len(rows))
    places = torch.arange(count, device=tokens.device)
    first, residual = net.mix(words[1:], net.stepped(net.fuse(features[:count]), 0))
    keys, values = net.keys_values(first, places)
    chosen = rows[0]
    attention = attend(net.queries(first[chosen], chosen), keys, values, places[None] > chosen[:, None])
    outputs = [net.finish(residual[chosen], attention)]
    own: list[tuple[Tensor, Tensor]] = []
    for step in range(1, len(rows)):
        stay = torch.searchsorted(rows[step - 1], rows[step])
        chosen = rows[step]
        own = [(key[stay], value[stay]) for key, value in own]
        x, residual = net.mix(words[chosen + 1 + step], net.stepped(outputs[-1][stay], step))
        own.append(net.keys_values(x, chosen + step))
        attention = attend(net.queries(x, chosen + step), keys, values, places[None] > chosen[:, None], own)
        outputs.append(net.finish(residual, attention))
    return [output[:number] for output, number in zip(outputs, wanted, strict=True)]


def _repeated(chosen: Tensor, step: int = 16) -> Tensor:
    """``chosen`` [start] with the last one repeated up to a multiple of ``step``."""
    return torch.cat((chosen, chosen[-1:].expand(-len(chosen) % step)))


def sampled_starts(
    first: int, length: int, shares: Sequence[float], generator: torch.Generator, device: torch.device
) -> list[Tensor]:
    """For each step a random share of the starts that stay inside the answer, ascending, each step's among the last's.

    Start i drafts token i + 2 first: an answer that begins at ``first`` is drafted from start first - 2 on.
    """
    low = max(0, first - 2)
    order = torch.rand(length, generator=generator)
    starts: list[Tensor] = []
    inside = torch.zeros(length, dtype=torch.bool)
    inside[low : length - 2] = True
    for step, share in enumerate(shares):
        inside[max(0, length - 2 - step) :] = False
        if share < 1:
            inside &= order < share
        starts.append(inside.nonzero()[:, 0].to(device))
    return [rows for rows in starts if len(rows)]

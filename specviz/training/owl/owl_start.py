"""Where the training of a recurrent drafter starts: from two linear guesses, not from noise.

The first: the target's next thought from its last one, the probe's, and the next token. Half of the cell carries its main
directions, the other half the same with the opposite sign, since of GeLU(x) and GeLU(-x) the difference is x. The second, for
every further step: the next thought from what the cell has made of this one, and the token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafters.networks.recurrent_net import RecurrentNet, unit
from specviz.training.feature.feature_start import fit
from specviz.training.owl.owl import WindowFeatures

_NOISE = 0.02
"""How large the weights are that guess nothing: enough to grow from."""


@torch.no_grad()
def start(net: RecurrentNet, norm: Tensor, batches: Sequence[WindowFeatures]) -> None:
    """Set every matrix of ``net`` from ``batches`` of windows; ``norm`` [hidden] is the weight of the target's final norm."""
    for linear in (net.enter, net.word, net.first, net.later, net.leave):
        linear.weight.normal_(std=_NOISE)
    net.norm.copy_(0.7 * norm)  # a guess should not be as sure as the target
    features, tokens, thought, further, beyond = _rows(batches)
    safe = norm.where(norm.abs() > 1e-3, torch.ones_like(norm))
    both = 2 * net.config.hidden
    rank = min(net.config.width // 2, net.config.entry, net.config.word)
    guess_map = fit(torch.cat((unit(features, net.config), _words(net, tokens)), dim=-1), thought).to(thought)
    guess = torch.cat((unit(features, net.config), _words(net, tokens)), dim=-1) @ guess_map
    main = torch.linalg.svd(guess - guess.mean(0), full_matrices=False).Vh[:rank].T
    inward = guess_map @ main
    net.enter.weight[:rank] = inward[:both].T
    net.word.weight[:rank] = inward[both:].T
    _carry(net.first.weight, torch.cat((_select(rank, net.config.entry), _select(rank, net.config.word)), dim=1))
    outward = main / safe[:, None]  # the norm behind it multiplies by its weight again
    net.leave.weight[:, :rank], net.leave.weight[:, rank : 2 * rank] = outward, -outward
    state = net.begin(features, tokens)
    step = fit(torch.cat((state[0], net.embedded(further)), dim=-1), beyond @ main)
    _carry(net.later.weight, step.T.to(thought))


def _rows(batches: Sequence[WindowFeatures]) -> tuple[Tensor, ...]:
    """By start: features, the next token, the thought there, the token after it, and the thought there."""
    parts = []
    for batch in batches:
        inside = batch.places[batch.places + 2 < batch.tokens.shape[1]]
        behind = batch.behind[:, : len(inside)]
        features = torch.cat((batch.own[:, inside], behind), dim=-1).float()
        thoughts = [batch.own[:, inside + ahead].float().flatten(0, 1) for ahead in (1, 2)]
        tokens = [batch.tokens[:, inside + ahead].flatten() for ahead in (1, 2)]
        parts.append((features.flatten(0, 1), tokens[0], thoughts[0], tokens[1], thoughts[1]))
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def _words(net: RecurrentNet, tokens: Tensor) -> Tensor:
    return F.rms_norm(F.embedding(tokens, net.embedding), (net.config.hidden,), eps=net.config.eps)


def _select(rank: int, width: int) -> Tensor:
    """[rank, width]: the first ``rank`` inputs as they are."""
    return torch.eye(rank, width)


def _carry(gates: Tensor, candidate: Tensor) -> None:
    """Make the cell's candidate the given map [rank, in], once with each sign. The other gates stay half open."""
    rank, start = len(candidate), 3 * (len(gates) // 4)
    gates[start : start + rank] += candidate.to(gates)
    gates[start + rank : start + 2 * rank] -= candidate.to(gates)

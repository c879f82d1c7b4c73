"""Reader of published Medusa heads onto our network: Cai et al. 2024 (arXiv 2401.10774).

The layout: ``0.0.linear.weight`` and ``.bias`` (head 0, residual block 0), …, ``0.1.weight`` (its output, last in each head),
also behind ``medusa_head.`` or ``medusa_heads.`` beside a whole model's weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch

from specviz.drafting.networks.parallel_net import ParallelConfig, ParallelNet
from specviz.errors import ModelUnavailable
from specviz.models.hub.published import Fit, Repository, refuse_strangers, shaped

_HEAD = re.compile(r"(?:medusa_heads?\.)?(\d+)\.(\d+)\.(?:linear\.)?(weight|bias)")
# Published models have five heads at most; a file with more must not make us allocate memory for them.
_MOST = 16


def is_medusa(names: Iterable[str]) -> bool:
    """Whether tensors of these names are Medusa heads."""
    return any(_HEAD.fullmatch(name) for name in names)


def parallel_net(stored: Repository, target: Fit) -> ParallelNet:
    """Read the network of published Medusa heads, in the target's number format. Weights beside the heads are ignored.

    Raises ModelUnavailable naming the tensor or setting that does not fit.
    """
    matches = {name: match for name in stored.files if (match := _HEAD.fullmatch(name))}
    if not matches:
        raise ModelUnavailable(f"{stored.name} has no tensor like 0.0.linear.weight: these are no Medusa heads.")
    names = {".".join((*match.group(1, 2), *(["linear"] if ".linear." in name else []), match[3])): name
             for name, match in matches.items()}  # fmt: skip
    heads = 1 + max(int(match[1]) for match in matches.values())
    blocks = max(int(match[2]) for match in matches.values())
    if max(heads, blocks) > _MOST:
        raise ModelUnavailable(f"{stored.name} numbers its tensors up to {max(heads, blocks)}: these are no Medusa heads.")
    _complete(stored, "medusa_num_heads", heads)
    _complete(stored, "medusa_num_layers", blocks)
    config = ParallelConfig(target.hidden, heads, target.layers, blocks)
    square, vocab = (target.hidden, target.hidden), target.head.shape[0]
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(heads):
        for block in range(blocks):
            shapes |= {f"{head}.{block}.linear.weight": square, f"{head}.{block}.linear.bias": (target.hidden,)}
        shapes[f"{head}.{blocks}.weight"] = (vocab, target.hidden)
    refuse_strangers(stored, names, set(shapes), "Medusa")
    tensors = {name: shaped(stored, names, name, shape).to(target.head) for name, shape in shapes.items()}
    net = ParallelNet(config, torch.stack([tensors.pop(f"{head}.{blocks}.weight") for head in range(heads)]))
    net.load_state_dict({f"heads.{name}": value for name, value in tensors.items()})
    return net.to(target.head.device, target.head.dtype).eval().requires_grad_(False)


def _complete(stored: Repository, field: str, count: int) -> None:
    """Raise ModelUnavailable if ``count`` is less than the configuration's ``field``. More are accepted: the configuration of
    medusa-vicuna-7b-v1.3 declares two heads, and its authors' loader overrides it with five."""
    promised = stored.config.get(field)
    if isinstance(promised, int) and count < promised:
        raise ModelUnavailable(
            f"{stored.name} holds {count} where its config.json says {promised} ({field}): some are missing. Get it anew."
        )

"""File format of feature drafters: learned weights as row-wise int8; embedding and head are the target's and left out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from specviz.drafting.networks.cross_net import CrossNet
from specviz.drafting.networks.feature_net import FeatureConfig, FeatureNet
from specviz.drafting.networks.weights import read_weights, write_weights
from specviz.errors import ModelUnavailable

Network = TypeVar("Network", FeatureNet, CrossNet)


def save(net: Network, path: Path, card: Mapping[str, str]) -> None:
    """Write the learned weights, the draft vocabulary and ``card``."""
    tensors = {name: value.detach() for name, value in net.state_dict().items()}
    if net.draft_ids is not None:
        tensors["draft_ids"] = net.draft_ids
    path.parent.mkdir(parents=True, exist_ok=True)
    write_weights(path, tensors, {**card, "config": json.dumps(asdict(net.config))})


def load(path: Path, embedding: Tensor, head: Tensor, dtype: torch.dtype, device: torch.device) -> FeatureNet:
    """The drafter in ``path`` on the target's ``embedding`` and ``head`` [vocab, hidden]; see :func:`load_as`."""
    return load_as(FeatureNet, FeatureConfig, path, (embedding, head), dtype, device)


def config_of(card: Mapping[str, str], shape: type[FeatureConfig]) -> FeatureConfig:
    """The sizes that a file's ``card`` gives."""
    fields: dict[str, Any] = json.loads(card["config"])
    fields |= {name: tuple(setting) for name, setting in fields.items() if isinstance(setting, list)}
    return shape(**fields)


def load_as(
    network: Callable[..., Network],
    shape: type[FeatureConfig],
    path: Path,
    shared: tuple[Tensor, Tensor],
    dtype: torch.dtype,
    device: torch.device,
) -> Network:
    """The drafter in ``path``, a ``network`` of this ``shape``, on the target's embedding and head [vocab, hidden].

    Raises ModelUnavailable when the file is none of ours or does not fit the target.
    """
    tensors, card = read_weights(path)
    if "config" not in card:
        raise ModelUnavailable(f"{path.name} is no feature drafter: choose a file written by this app's training.")
    config = config_of(card, shape)
    ids = tensors.pop("draft_ids", None)
    parts = [part.detach().to(device, dtype) for part in shared]
    net = network(config, *parts, None if ids is None else ids.to(device))
    try:
        net.load_state_dict(tensors)
    except RuntimeError as problem:
        raise ModelUnavailable(f"{path.name} does not hold this drafter's weights: fetch the file again.") from problem
    return net.to(device, dtype).eval().requires_grad_(False)

"""Drafters that ship as LoRA deltas to another drafter: the delta is merged into a copy of that drafter."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from torch import Tensor, nn

from specviz.drafting.networks.lora import merge_lora
from specviz.drafting.networks.weights import read_weights
from specviz.errors import ModelUnavailable

Net = TypeVar("Net", bound=nn.Module)
SHARED = ("embedding", "head")
"""Buffers that are the target's own."""
CHANGES = "changes"
"""Key of the card for the name and :func:`digest` of the changed file."""


IMITATES = "imitates"
"""Key of the card for the name and :func:`digest` of the file that a drafter was trained on."""


def named(file: Path) -> str:
    """Identification of a file on a card: its name and :func:`digest`."""
    return f"{file.name} {digest(file)}"


def digest(file: Path) -> str:
    """First 16 hex digits of a file's SHA-256, enough to tell files apart."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def independent_copy(net: Net) -> Net:
    """Return a copy with its own weights; the target's embedding and head stay shared."""
    shared = [value for name, value in net.named_buffers(recurse=False) if name in SHARED]
    return copy.deepcopy(net, {id(tensor): tensor for tensor in shared})


def with_lora(net: Net, factors: Mapping[str, Tensor], name: str) -> Net:
    """Return a copy of ``net`` with the LoRA delta called ``name`` merged. Raises ModelUnavailable if it does not fit."""
    net_copy = independent_copy(net)
    merge_lora(net_copy, factors, name)
    return net_copy.eval()  # this drops anything folded from the old weights


def load_changed(path: Path, base: Net, base_path: Path) -> Net:
    """Merge the LoRA delta in ``path`` into a copy of ``base``, which was read from ``base_path``.

    Raises ModelUnavailable if the delta was trained for another version of that file.
    """
    factors, card = read_weights(path)
    if card.get(CHANGES) != named(base_path):
        raise ModelUnavailable(
            f"{path.name} was trained for another version of {base_path.name}: make it again with "
            f"`python -m specviz train {path.stem}`."
        )
    return with_lora(base, factors, path.name)

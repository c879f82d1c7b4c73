"""Base class of draft networks: tensors shared with the target, the rotary table, and loading and saving learned weights.

A file holds the learned weights (row-wise int8), the draft vocabulary and, in its metadata, the config. The target's embedding
and head are not stored. Axis names: ``vocab``, ``hidden`` (of the target), ``support`` (the draft vocabulary).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import msgspec
import torch
from torch import Tensor, nn

from specviz.drafting.networks.decoder_layer import Layout, plain
from specviz.drafting.networks.rotary import Rotating, table, turn
from specviz.drafting.networks.weights import read_weights, write_weights
from specviz.errors import ModelUnavailable


class Network(Rotating, nn.Module):
    """Base class of a draft network.

    ``embedding`` [vocab, hidden] and ``head`` [support, hidden]: the target's tensors, frozen and shared. ``draft_ids``
    [support]: token ids of the head's rows, None for the whole vocabulary. ``rates``: rotary inverse frequencies, in radians per
    position.
    """

    title: ClassVar[str]
    """Name of this kind of network, for error messages."""
    shape: ClassVar[type[Any]]
    """Dataclass of the network's config."""
    needs_vocabulary: ClassVar[bool] = False
    """Whether files of this network must have a draft vocabulary."""
    embedding: Tensor
    draft_ids: Any

    def __init__(
        self,
        config: Any,
        embedding: Tensor | None = None,
        head: Tensor | None = None,
        draft_ids: Tensor | None = None,
        rates: Tensor | None = None,
        positions: int = 1024,
    ) -> None:
        """Raise ModelUnavailable if ``embedding`` does not match ``config``, or ``head`` does not match ``draft_ids``."""
        super().__init__()
        self.config = config
        if embedding is not None:
            whole = (config.vocab_size, config.hidden)
            sizes = None if head is None or draft_ids is None else {config.vocab_size, len(draft_ids)}
            if embedding.shape != whole or (head is not None and sizes is not None and len(head) not in sizes):
                found = " and a head of ".join(" x ".join(map(str, part.shape)) for part in (embedding, head) if part is not None)
                raise ModelUnavailable(
                    f"This {self.title} needs a target with {whole[0]} tokens and a hidden size of {whole[1]}, "
                    f"but the chosen target has an embedding of {found}. Choose the target that the drafter was trained for."
                )
            self.register_buffer("embedding", embedding.detach(), persistent=False)
        if head is not None:
            rows = head if draft_ids is None or len(head) == len(draft_ids) else head[draft_ids.to(head.device)]
            self.register_buffer("head", rows.detach().contiguous(), persistent=False)
        self.register_buffer("draft_ids", None if draft_ids is None else draft_ids.long(), persistent=False)
        if rates is not None:
            self._table = partial(table, rates)
            self.register_buffer("rotary", table(rates, positions).to(self.embedding), persistent=False)

    def turn(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate x [row, head, size] to ``positions`` [row]."""
        cosine, sine = self.turns(positions)
        return turn(x, cosine[:, None], sine[:, None])

    def runtime(self, layout: Layout = plain) -> Any:
        """Return the inference runtime, with matrices packed by ``layout``; by default, the network itself."""
        return self

    def save(self, path: Path, card: Mapping[str, str]) -> None:
        """Write the learned weights, the draft vocabulary and the metadata ``card``."""
        tensors = {name: value.detach() for name, value in self.state_dict().items()}
        if self.draft_ids is not None:
            tensors["draft_ids"] = self.draft_ids
        path.parent.mkdir(parents=True, exist_ok=True)
        write_weights(path, tensors, {**card, "config": json.dumps(asdict(self.config))})

    @classmethod
    def config_of(cls, card: Mapping[str, str]) -> Any:
        """Return the config stored in a file's metadata."""
        return msgspec.json.decode(card["config"], type=cls.shape)

    @classmethod
    def load(cls, path: Path, shared: Sequence[Tensor], dtype: torch.dtype, device: torch.device) -> Self:
        """Load the network from ``path`` with all weights frozen. ``shared``: the target's tensors that its constructor takes.

        Raises ModelUnavailable if the file holds no such network or does not fit the target.
        """
        tensors, card = read_weights(path)
        ids = tensors.pop("draft_ids", None)
        if "config" not in card or (ids is None and cls.needs_vocabulary):
            raise ModelUnavailable(f"{path.name} is not a {cls.title}: choose a file written by `python -m specviz train`.")
        parts: list[Any] = [part.detach().to(device, dtype) for part in shared]
        vocabulary: list[Any] = [] if ids is None else [ids.to(device)]
        net = cls(cls.config_of(card), *parts, *vocabulary)
        try:
            net.load_state_dict(tensors)
        except RuntimeError as problem:
            raise ModelUnavailable(f"{path.name} does not hold the weights of a {cls.title}: fetch the file again.") from problem
        return net.to(device, dtype).eval().requires_grad_(False)

"""What the library ``speculators`` wrote and computed, kept beside the tests, and the same heads as they are read here."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specviz.drafting.networks.eagle_head import PublishedEagleHead
from specviz.models.heads.published import read
from specviz.models.hub.published import Fit, Repository, open_repository
from tests.support.referee.filled import uniform
from tests.support.referee.speculators_heads import HIDDEN, ROWS, VOCAB, filled, states, text
from tests.support.tiny.published_heads import drafted_logits

FOLDER = Path(__file__).resolve().parents[2] / "models" / "heads" / "speculators"
HEADS: dict[str, dict[str, Any]] = json.loads(gzip.decompress((FOLDER / "heads.json.gz").read_bytes()))
LOGITS = load_file(FOLDER / "logits.safetensors")
FIT = Fit("tiny", 8, uniform("the target's embedding", (VOCAB, HIDDEN)), uniform("the target's head", (VOCAB, HIDDEN)))


def stored(
    folder: Path, name: str, config: dict[str, Any] | None = None, tensors: dict[str, Tensor] | None = None,
    cases: dict[str, dict[str, Any]] = HEADS, fill: Callable[[str, Sequence[int]], Tensor] = filled,
) -> Repository:  # fmt: skip
    """The case called so as a folder, with other settings or tensors where they are given."""
    case = cases[name]
    made = {part: fill(part, shape) for part, shape in case["tensors"].items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file({**made, **(tensors or {})}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**case["config"], **(config or {})}))
    return open_repository(str(folder))


def head_of(repository: Repository) -> PublishedEagleHead:
    head: PublishedEagleHead = read("eagle3", repository, FIT)
    return head


def furthest(head: PublishedEagleHead, name: str, depths: int) -> float:
    given = drafted_logits(head, text(), states(len(head.config.taps)), depths)
    differences = [
        (ours[: ROWS - depth] - LOGITS[f"{name}/{depth}"]).abs().max() for depth, ours in enumerate(given)
    ]  # rows whose text has ended are the referee's own affair
    return float(torch.stack(differences).max())

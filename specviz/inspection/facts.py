"""Facts about stored heads: dialect, files and their hashes, tensors, sizes, conventions, draft vocabulary. No model runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specviz.drafting.networks.feature_head import FeatureHead
from specviz.drafting.networks.head_config import HeadConventions
from specviz.models.heads.dialects import dialect_of, drafting
from specviz.models.hub.published import Repository

_CHUNK = 1 << 20


def sha256(path: Path) -> str:
    """The file's SHA-256, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            digest.update(piece)
    return digest.hexdigest()


def stored_facts(stored: Repository) -> dict[str, Any]:
    """Facts about a folder of heads, with or without a reader: dialect, files with size and hash, names of tensors."""
    dialect, stored = dialect_of(stored).title, drafting(stored)
    files = sorted(set(stored.files.values()))
    return {
        "dialect": dialect,
        "architectures": list(stored.config.get("architectures") or ()),
        "files": [{"name": file.name, "bytes": file.stat().st_size, "sha256": sha256(file)} for file in files],
        "tensors": sorted(stored.files),
    }


def head_facts(head: FeatureHead) -> dict[str, Any]:
    """Sizes, conventions and vocabulary of a head as read."""
    config = head.config
    sizes = {name: value for name, value in asdict(config).items() if name != "how"}
    how = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(config.how).items()}
    return {
        "kind": head.dialect,
        "sizes": sizes,
        "conventions": how,
        "parameters": sum(value.numel() for value in head.tensors.values()),
        "bytes": head.parameter_bytes,
        "draft_vocabulary": len(head.head),
        "notes": [*head.notes, *_odd(head)],
    }


def unusual(head: FeatureHead) -> str:
    """Conventions that differ from EAGLE-3's paper, in words; a description of the paper's if none differs."""
    how, plain = head.config.how, HeadConventions(head.config.taps)
    words = {
        "entry_norm": f"norm before the projection ({how.entry_norm})",
        "normed_residual": "residual behind the norm",
        "feeds_normed": "feeds itself the normed output",
        "windows": f"sliding windows {list(how.windows)}",
        "sections": f"rotary rates by axis {list(how.sections)}{', in turn' if how.sections_woven else ''}",
        "pictured": "the picture's own embeddings at its places",
        "rates": "scaled rotary rates",
        "centred": "norms' weights stored as their distance from one",
    }
    changed = [word for name, word in words.items() if getattr(how, name) != getattr(plain, name)]
    if head.config.paired:
        changed.insert(0, "a projection of [norm of embedding; norm of state] enters a whole layer with a norm behind it")
    elif not head.config.wide:
        changed.insert(0, "a projection of [embedding; state] enters the layer, whose output the target's head reads")
    return ", ".join(changed) if changed else "no norm before the projection, plain residual, feeds itself the plain output"


def _odd(head: FeatureHead) -> Iterator[str]:
    """Notes on tensors that no training produces."""
    for name, value in head.tensors.items():
        if not bool(value.any()):
            yield f"{name} is zero throughout: it was never trained, or got lost on the way."
    if not bool(head.head.any()):
        yield "lm_head.weight is zero throughout: it was never trained, or got lost on the way."

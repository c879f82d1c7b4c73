"""Dialects of published heads, recognised by a folder's settings and tensors, and their readers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from specviz.errors import ModelUnavailable
from specviz.models.heads import (
    published_dream,
    published_eagle,
    published_eagle3,
    published_medusa,
    published_mtp,
    published_speculators,
)
from specviz.models.heads.head_settings import OURS, words
from specviz.models.hub.published import Fit, Repository, reading


@dataclass(frozen=True)
class Dialect:
    """A layout of published heads. ``kind`` is the method of this drafter; ``reader`` is None for a layout without a reader."""

    title: str
    kind: str = ""
    reader: Callable[[Repository, Fit], Any] | None = None


EAGLE = Dialect("EAGLE-1/2 heads (SafeAILab, HASS)", "eagle", published_eagle.feature_head)
MSD = Dialect("EAGLE-1/2 heads for pictures, which enter as they are (MSD)", "eagle", published_eagle.seeing_head)
VISPEC = Dialect("EAGLE-1/2 heads for pictures, compressed by learned queries (ViSpec)", "eagle", published_eagle.seeing_head)
DREAM = Dialect("a DREAM drafter", "dream", published_dream.cross_net)
EAGLE3 = Dialect("EAGLE-3 heads, flat settings (SafeAILab, SpecForge, AngelSlim)", "eagle3", published_eagle3.feature_head)
SPECULATORS = Dialect("EAGLE-3 heads of the speculators library", "eagle3", published_speculators.feature_head)
MEDUSA = Dialect("Medusa heads", "medusa", published_medusa.parallel_net)
_BY_ARCHITECTURE = {
    "DSpark": Dialect("a DSpark drafter, which fills a block and corrects it with a Markov head"),
    "Domino": Dialect("a Domino drafter, which fills a block and corrects it with a recurrent network"),
    "DFlash": Dialect("a DFlash drafter, which fills a block of tokens in one pass"),
    "PEagle": Dialect("a P-EAGLE drafter, which guesses several tokens in one pass"),
}
_SPECULATORS = {
    "eagle": Dialect("EAGLE-1/2 heads of the speculators library"),
    "peagle": _BY_ARCHITECTURE["PEagle"],
    "dflash": _BY_ARCHITECTURE["DFlash"],
    "dflash2": _BY_ARCHITECTURE["DFlash"],
    "dspark": _BY_ARCHITECTURE["DSpark"],
    "mtp": Dialect("MTP layers of the speculators library"),
}
MTP = Dialect("a checkpoint's own MTP layers, which draft for that very model", "eagle", published_mtp.feature_head)
EMPTY_MTP = Dialect(
    "a checkpoint whose config.json promises MTP layers and whose files hold none: an engine would draft with random ones"
)
MODEL = Dialect("a whole model, no heads for one")
UNKNOWN = Dialect("no drafter whose layout is known")


def dialect_of(stored: Repository) -> Dialect:
    """Dialect of a folder."""
    config, names = stored.config, {name.removeprefix("model.") for name in stored.files}
    if published_speculators.is_speculators(config):
        return _SPECULATORS.get(str(config.get("speculators_model_type")), SPECULATORS)
    architectures = " ".join(words(stored.name, config, "architectures"))
    if named := [dialect for word, dialect in _BY_ARCHITECTURE.items() if word.lower() in architectures.lower()]:
        return named[0]
    if published_mtp.mtp_names(stored):
        return MTP
    if published_mtp.promises(config) and not any("nextn" in name for name in names):
        return EMPTY_MTP
    if published_medusa.is_medusa(stored.files):
        return MEDUSA
    if published_dream.is_dream(names):
        return DREAM
    if "layers.1.self_attn.q_proj.weight" in names and "fc.weight" not in names:
        return MODEL
    wide = {"midlayer.hidden_norm.weight", "layers.0.hidden_norm.weight", "midlayer.self_attn.q_proj.weight", "d2t"}
    if wide & names or "eagle3" in architectures.lower():
        return EAGLE3
    if "imadpt.q" in names:
        return VISPEC
    if "fc.weight" not in names:
        return UNKNOWN
    return MSD if published_eagle.is_msd(config) else EAGLE


def drafting(stored: Repository) -> Repository:
    """The folder without the target's own tensors, if drafting layers lie among them."""
    return published_mtp.mtp_part(stored) if dialect_of(stored) is MTP else stored


def read(kind: str, stored: Repository, target: Fit) -> Any:
    """Read the heads' network for the method ``kind``. Raises ModelUnavailable naming their dialect if it is another one."""
    dialect = dialect_of(stored)
    if dialect.reader is not None and dialect.kind == kind:
        with reading(stored.name):
            return dialect.reader(stored, target)
    if dialect.reader is not None:
        raise ModelUnavailable(f"{stored.name} holds {dialect.title}: choose the method {dialect.kind} for them.")
    also = "" if dialect in (UNKNOWN, MODEL, EMPTY_MTP) else ", which is not read yet"
    raise ModelUnavailable(f"{stored.name} is {dialect.title}{also}; {kind} wants heads made for it. {OURS}")


KINDS = tuple(dict.fromkeys(dialect.kind for dialect in (EAGLE, EAGLE3, MEDUSA, DREAM)))
"""Methods whose published heads are read."""

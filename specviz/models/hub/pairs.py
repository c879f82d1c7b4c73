"""Published targets paired with published heads: sizes, memory, and the commands that run each pair. Does not import torch."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping

from msgspec import Struct

from specviz.models.hub.catalog import IMAGE, VISION, Entry, entries, row_of
from specviz.paths import ASSETS

MTP = "MTP"
"""Layout of MTP layers, which are stored and downloaded with the target."""
_NOT_INSPECTED = ("ViSpec", "DREAM", "LANTERN", "LANTERN for LlamaGen")
"""Layouts that the command `inspect` does not support."""
_PICTURE = "assets/images/scenes/donuts-tiger.png"


class Pair(Struct, frozen=True, forbid_unknown_fields=True):
    """Published target with a repository of heads for it; fields as in ``assets/pairs.toml``."""

    target: str
    heads: str
    method: str
    layout: str
    parameters: int
    shape: Mapping[str, int | bool]
    pickled: bool = False
    number_bytes: int = 2
    run_on: str = ""
    note: str = ""
    own: Entry | None = None
    gather: tuple[str, ...] = ()

    @property
    def entry(self) -> Entry:
        """Catalogue entry of the target, or the pair's own entry."""
        return self.own or next(entry for entry in entries() if entry.name == self.target)

    @property
    def head_bytes(self) -> int:
        """Approximate download size of the heads in bytes."""
        return self.number_bytes * self.parameters

    @property
    def memory(self) -> int:
        """Bytes of target and heads in bfloat16, without the key-value cache."""
        return 2 * (self.entry.parameters + self.parameters)

    @property
    def status(self) -> str:
        """Sentence that says whether this project has run the pair."""
        return f"Run on {self.run_on}." if self.run_on else "This pair has not run here yet."

    @property
    def commands(self) -> tuple[str, ...]:
        """Commands in order: fetch, inspect (where supported), run with the baseline."""
        folder = self.heads.split("/")[1]
        commands = self.gather or (f"python -m specviz fetch {self.target}",)
        draft = self.target if self.layout == MTP else self.heads
        if self.pickled:
            weights = f"{folder}/pytorch_model.bin"
            commands += (f"hf download {self.heads} --local-dir {folder}", f"python -m specviz convert {weights}")
            draft = f"{folder}-safetensors"
        prompt, image = "Explain how rain forms, step by step.", ""
        if self.entry.modality == VISION:
            prompt, image = "Describe the picture.", f" --image {_PICTURE}"
        elif self.entry.modality == IMAGE:
            prompt = "A red fox in the snow."
        if self.layout not in _NOT_INSPECTED:
            commands += (f"python -m specviz inspect {draft} --target {self.target}{image}",)
        chain = " --param width=1 --param depth=3 --param nodes=3" if self.layout == MTP else ""  # as engines do
        return (
            *commands,
            f"python -m specviz run --method {self.method} --target {self.target} --draft {draft}{chain}{image} "
            f'--prompt "{prompt}" --baseline',
        )


PAIRS = tuple(
    row_of(Pair, fields, f"pairs.toml: {fields.get('heads')}")
    for fields in tomllib.loads((ASSETS / "pairs.toml").read_text("utf-8"))["pair"]
)

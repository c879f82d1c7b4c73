"""Vision-language target: the image enters with the prompt; after that, text is decoded as by any other target.

The image is encoded once (:mod:`specviz.targets.image_prompt`), and each prefill receives its features. One table holds the
differences between families: positions (one axis, three, or counted from 1) and bidirectional attention within a prompt. A run's
positions are stored in its target, never on the model, which runs share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specviz.engine.interfaces import TargetPass
from specviz.engine.tiers import Outputs
from specviz.engine.to_device import to_device
from specviz.errors import BadInput, ModelUnavailable
from specviz.targets.image_prompt import ImagePrompt
from specviz.targets.layers import SLIDING, changing_factors, layer_kinds
from specviz.targets.text import TextSession, TextTarget, joined, unsupported_reason


@dataclass(frozen=True)
class Family:
    """Positions and prefill mask of one model type.

    ``axes``: 3 if a position is (time, row, column), else 1. ``first``: number of the first position. ``blocks``: tokens that
    attend to later tokens at prefill: "picture" for an image's tokens among themselves, "prompt" for the whole prompt, "" for
    none.
    """

    axes: int = 1
    first: int = 0
    blocks: str = ""


FAMILIES: Mapping[str, Family] = {
    "smolvlm": Family(),
    "idefics3": Family(),
    "llava": Family(),
    "llava_next": Family(),
    "qwen2_vl": Family(axes=3),
    "qwen2_5_vl": Family(axes=3),
    "qwen3_vl": Family(axes=3),
    "gemma3": Family(blocks="picture"),
    "paligemma": Family(first=1, blocks="prompt"),
}


def family_of(model: Any, name: str) -> Family:
    """Return the model's family. Raises ModelUnavailable with the reason if the model cannot verify trees."""
    config = model.config
    kind = str(getattr(config, "model_type", ""))
    text = config.get_text_config()
    reason = unsupported_reason(model, layer_kinds(text)) or changing_factors(text)
    if not reason and kind not in FAMILIES:
        reason = f"is of type {kind}, for which tree passes are untested; choose a target of type {', '.join(FAMILIES)}"
    if not reason and FAMILIES[kind].blocks == "prompt" and SLIDING in layer_kinds(text):
        reason = "has sliding layers but takes one mask for all of them; choose a target with full attention in all layers"
    if reason:
        raise ModelUnavailable(f"{name} {reason}.")
    return FAMILIES[kind]


class VisionLanguageTarget(TextTarget):
    """Target around a loaded model for one run; runs share only the model. ``sight``: the run's prompt with its image."""

    def __init__(self, model: Any, name: str, eos_ids: Sequence[int], sight: ImagePrompt, tier: str = "auto") -> None:
        self.family = family_of(model, name)
        self.sight = sight
        if sight.visual and sight.visual[-1]:
            raise BadInput("The prompt ends with the picture; add a question after it.")
        super().__init__(model, name, eos_ids, tier)
        # Without a mask, such a model would make a bidirectional one for plain text too.
        self.masked = self.family.blocks == "prompt"
        self.variant = ("shift", self.family.first + sight.shift, self.family.axes)

    def _plain(self) -> str:
        return "only text models have compiled passes"

    def _obstacle(self) -> str:
        if self.family.blocks:
            return "its prompt has bidirectional attention, so its prefill needs a separate mask"
        return super()._obstacle()

    def open(self, capacity: int, taps: Sequence[int] = ()) -> VisionLanguageSession:
        self.refuse(capacity)
        return VisionLanguageSession(self, capacity, tuple(taps))

    def run(
        self, tokens: Tensor, positions: Tensor, mask: Any, cache: Any, taps: Sequence[int], last: int = 0, **more: Any
    ) -> Outputs:
        """See :meth:`TextTarget.run`; ``positions`` [1, row] are indices in the text, [axis, 1, row] are final."""
        if positions.ndim == 2:
            positions = positions + (self.family.first + self.sight.shift)
            if self.family.axes > 1:
                positions = positions[None].expand(self.family.axes, -1, -1)
        return super().run(tokens, positions, mask, cache, taps, last, **more)

    def holds(self, ids: Sequence[int]) -> bool:
        """Whether ``ids`` start with this run's prompt, or with a prefix of it that includes the image."""
        prompt_ids = self.sight.ids[: len(ids)]
        return (
            tuple(ids[: len(prompt_ids)]) == prompt_ids
            and not any(self.sight.visual[len(prompt_ids) :])
            and any(self.sight.visual)
        )


class VisionLanguageSession(TextSession):
    """Session on a :class:`VisionLanguageTarget`."""

    target: VisionLanguageTarget

    def prefill(self, ids: Sequence[int]) -> TargetPass:
        """Append ``ids`` to the cache; only this run's prompt includes the image.

        Raises BadInput if a text has the image's placeholders but is not this run's prompt.
        """
        target = self.target
        if self.length or not target.holds(ids):
            if target.sight.placeholder in ids:
                raise BadInput("This text has a placeholder for a picture but is not the picture's prompt.")
            return super().prefill(ids)
        seen = min(len(ids), len(target.sight.ids))
        if target.family.blocks != "prompt":  # text after the image may be prefilled in chunks
            seen = min(seen, max(target.piece, len(target.sight.visual) - target.sight.visual[::-1].index(True)))
        prompt_pass, following = self._look(seen), list(ids[seen:])
        return joined([prompt_pass, super().prefill(following)] if following else [prompt_pass])

    def _look(self, length: int) -> TargetPass:
        """Prefill the prompt's first ``length`` tokens with the image.

        A prompt with bidirectional attention is run as a whole, because its last tokens change its first ones; later entries are
        then dropped.
        """
        target, sight = self.target, self.target.sight
        block_length = len(sight.ids) if target.family.blocks == "prompt" else length
        tokens = to_device([sight.ids[:block_length]], target.device)
        more: dict[str, Any] = {"mm_encoder_outputs": {"image": sight.features}}
        if target.family.blocks == "picture":
            more["token_type_ids"] = to_device([sight.visual[:block_length]], target.device)
        elif target.family.blocks == "prompt":
            more["token_type_ids"] = torch.zeros_like(tokens)
        positions = torch.arange(block_length, device=target.device)[None]
        if sight.positions is not None:
            positions = sight.positions[:, :, :block_length]
        last = block_length - length + 1
        logits, hidden = target.run(tokens, positions, None, self._cache.cache, self.taps, last=last, **more)
        self._cache.advance(block_length)
        self._cache.rewind(length)
        return TargetPass(logits[:1], {tap: states[:length] for tap, states in hidden.items()})

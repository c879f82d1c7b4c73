"""The small vision-language model while it learns: its shape, its start, and a pass over packed conversations.

The network is transformers' own SmolVLM; a mask says that conversations share a prefix and do not see each other.
Axis names: ``scene``, ``token``, ``question``, ``visual``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
    SmolVLMVisionConfig,
)

from specviz.models.vision.scenes import END, IMAGE, SPECIAL, USER
from specviz.training.families.scenes_batches import HEADS, IGNORED, KINDS, Batch

PATCH_WEIGHT = {"kind": 1.0, "colour": 0.5, "size": 0.5, "region": 0.5}
_EMPTY = 0.15
"""What a patch with nothing in it counts, of one that shows something."""
LONG, SHORT, READ = 0.25, 0.5, 0.75
"""What descriptions, answers about pictures and answers read off words count. Much of a description is choice of words,
which nobody can learn and which drowns the rest."""
_NAMED = 0.5
"""What naming a patch by the language model's own table of words counts, of the dense teacher."""


@dataclass(frozen=True)
class Shape:
    """Sizes of the model. ``grid`` squared is the number of visual tokens."""

    width: int = 160
    layers: int = 12
    heads: int = 5
    inner: int = 416
    vision_width: int = 160
    vision_layers: int = 4
    vision_heads: int = 5
    vision_inner: int = 480
    side: int = 128
    patch: int = 8
    shuffle: int = 2
    context: int = 512

    @property
    def grid(self) -> int:
        return self.side // self.patch // self.shuffle


def config_of(shape: Shape, vocab: int) -> SmolVLMConfig:
    """The standard configuration with these sizes."""
    text = LlamaConfig(
        vocab_size=vocab, hidden_size=shape.width, intermediate_size=shape.inner, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.heads, max_position_embeddings=shape.context,
        tie_word_embeddings=True, initializer_range=0.06, bos_token_id=None, eos_token_id=SPECIAL.index(END),
        pad_token_id=SPECIAL.index(END),
    )  # fmt: skip
    vision = SmolVLMVisionConfig(
        hidden_size=shape.vision_width, intermediate_size=shape.vision_inner, num_hidden_layers=shape.vision_layers,
        num_attention_heads=shape.vision_heads, image_size=shape.side, patch_size=shape.patch, hidden_act="relu",
        initializer_range=0.06,
    )  # fmt: skip
    # Every configuration has this one, though the class does not list it.
    padding: dict[str, Any] = {"pad_token_id": SPECIAL.index(END)}
    return SmolVLMConfig(
        text_config=text, vision_config=vision, image_token_id=SPECIAL.index(IMAGE), scale_factor=shape.shuffle,
        tie_word_embeddings=True, **padding,
    )  # fmt: skip


class Learner(nn.Module):
    """The model, and the dense teacher's heads, which are not kept."""

    def __init__(self, shape: Shape, vocab: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.shape = shape
        self.model: Any = SmolVLMForConditionalGeneration(config_of(shape, vocab))
        self.patch_heads = nn.ModuleDict({name: nn.Linear(shape.width, many) for name, many in HEADS.items()})
        self.names: Tensor | None = None
        with torch.no_grad():  # silent layers: what comes in goes out, until training says otherwise
            for layer in self.model.model.text_model.layers:
                layer.self_attn.o_proj.weight.zero_()
                layer.mlp.down_proj.weight.zero_()
            for layer in self.model.model.vision_model.encoder.layers:
                layer.self_attn.out_proj.weight.zero_()
                layer.mlp.fc2.weight.zero_()

    def learn_names(self, tokenizer: Any) -> None:
        """From now on a patch should also look like the word for what it shows, where one token is that word.

        Attention then finds a thing by its name from the start, instead of learning every name's looks twice.
        """
        spelled = [tokenizer.backend_tokenizer.encode(f" {kind}", add_special_tokens=False).ids for kind in KINDS]
        single = [ids[0] if len(ids) == 1 else IGNORED for ids in spelled]
        self.names = torch.tensor([IGNORED, *single], device=self.model.device)

    @classmethod
    def around(cls, model: Any, shape: Shape) -> Learner:
        """A model that has learned already, for what reads it."""
        learner = cls(shape, int(model.config.text_config.vocab_size), 0)
        learner.model = model
        return learner

    def leaves(self, language: bool) -> dict[str, nn.Parameter]:
        """Parameters by name; without ``language`` only what the dense teacher reaches."""
        return {name: value for name, value in self.named_parameters() if language or ".text_model." not in name}

    @staticmethod
    def shaped(name: str, value: Tensor) -> Tensor:
        """As an optimiser for matrices wants it: a table of rows that stand for themselves is no matrix, patches are one."""
        if "embedding.weight" in name or "embed_tokens" in name:
            return value[None] if value.ndim == 2 else value.flatten(1)
        return value

    def visual_tokens(self, pixels: Tensor) -> Tensor:
        """uint8 [scene, row, column, 3] to visual tokens [scene, visual, hidden]."""
        images = pixels.permute(0, 3, 1, 2).float() / 127.5 - 1
        features = self.model.model.get_image_features(images[:, None], return_dict=True).pooler_output
        return torch.stack(list(features)) if isinstance(features, (list, tuple)) else features

    def patch_loss(self, visual: Tensor, batch: Batch) -> Tensor:
        """The dense teacher's cross-entropies, a mean over patches that show something and, at less weight, the others."""
        weight = torch.where(batch.patches["kind"] > 0, 1.0, _EMPTY).flatten()
        total = torch.zeros((), device=visual.device)
        for name, head in self.patch_heads.items():
            lost = F.cross_entropy(head(visual).float().flatten(0, 1), batch.patches[name].flatten(), reduction="none")
            total = total + PATCH_WEIGHT[name] * (lost * weight).sum() / weight.sum()
        return total if self.names is None else total + _NAMED * self._name_loss(self.names, visual, batch)

    def _name_loss(self, names: Tensor, visual: Tensor, batch: Batch) -> Tensor:
        """Cross-entropy of each thing's word, read off its patches as the last layer's states are read."""
        words = names[batch.patches["kind"]]
        named = words != IGNORED
        states = self.model.model.text_model.norm(visual[named])
        return F.cross_entropy(self.model.lm_head(states).float(), words[named])

    def word_loss(self, visual: Tensor, batch: Batch) -> Tensor:
        """Mean cross-entropies over the descriptions' tokens, over those of the short answers, and over those of answers
        without a picture, each with its own weight: a description is as long as ten answers."""
        hidden = self.read(visual, batch)
        cut = batch.long.shape[1]
        total = LONG * self._cross_entropy(hidden[:, :cut], batch.long_labels)
        total = total + SHORT * self._cross_entropy(hidden[:, cut:], batch.short_labels.flatten(1))
        if batch.read is None or batch.read_labels is None:
            return total
        return total + READ * self._cross_entropy(self.read_pages(batch.read), batch.read_labels)

    def read_pages(self, pages: Tensor) -> Tensor:
        """Last hidden states [page, token, hidden] of conversations [page, token] without a picture."""
        rows = self.model.model.text_model.embed_tokens(pages)
        places = torch.arange(pages.shape[1], device=pages.device)[None].expand(len(pages), -1)
        return self.model.model.text_model(inputs_embeds=rows, position_ids=places, use_cache=False).last_hidden_state

    def _cross_entropy(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """Mean over the tokens that have a label; a batch without one counts nothing."""
        chosen = labels != IGNORED
        lost = F.cross_entropy(self.model.lm_head(hidden[chosen]).float(), labels[chosen], reduction="sum")
        return lost / chosen.sum().clamp_min(1)

    def read(self, visual: Tensor, batch: Batch) -> Tensor:
        """Last hidden states behind the prefix, [scene, token, hidden]: the description's, then the questions'."""
        scenes, questions, longest = batch.short.shape
        embed = self.model.model.text_model.embed_tokens
        user = embed(torch.full((scenes, 1), SPECIAL.index(USER), device=visual.device))
        rows = torch.cat((user, visual.to(user.dtype), embed(batch.long), embed(batch.short.flatten(1))), dim=1)
        start = 1 + visual.shape[1]
        own = [torch.arange(batch.long.shape[1]), torch.arange(longest).repeat(questions)]
        places = torch.cat((torch.arange(start), *(start + offset for offset in own))).to(visual.device)
        mask = conversations([start, batch.long.shape[1], *[longest] * questions]).to(visual.device)
        passed = self.model.model.text_model(
            inputs_embeds=rows, position_ids=places[None].expand(scenes, -1), use_cache=False, attention_mask=mask
        )
        return passed.last_hidden_state[:, start:]


def conversations(parts: Sequence[int]) -> Tensor:
    """Bool [1, 1, token, token] of a row of a prefix and conversations of these lengths: each sees the prefix and itself,
    causally."""
    which = torch.arange(len(parts)).repeat_interleave(torch.tensor(parts))
    seen = (which == which[:, None]) | (which == 0)
    return seen.tril()[None, None]

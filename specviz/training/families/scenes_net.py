"""The small vision-language model while it learns: its shape, its start, and a pass over packed conversations.

The network is transformers' own SmolVLM; only attention is replaced for the time of training, by one that knows that
conversations share a prefix and do not see each other: a third of the arithmetic of a masked square.
Axis names: ``scene``, ``head``, ``token``, ``question``, ``size`` (of a head), ``visual``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
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
    return SmolVLMConfig(
        text_config=text, vision_config=vision, image_token_id=SPECIAL.index(IMAGE), scale_factor=shape.shuffle,
        tie_word_embeddings=True, pad_token_id=SPECIAL.index(END),
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
        return total if self.names is None else total + _NAMED * self._name_loss(visual, batch)

    def _name_loss(self, visual: Tensor, batch: Batch) -> Tensor:
        """Cross-entropy of each thing's word, read off its patches as the last layer's states are read."""
        words = self.names[batch.patches["kind"]]
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
        with layout(Layout(pages.shape[1], 0, 0)):
            passed = self.model.model.text_model(
                inputs_embeds=rows, position_ids=places, use_cache=False, attention_mask=rows.new_zeros(1, 1, 1, 1)
            )
        return passed.last_hidden_state

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
        with layout(Layout(start, batch.long.shape[1], questions)):
            passed = self.model.model.text_model(
                inputs_embeds=rows, position_ids=places[None].expand(scenes, -1), use_cache=False,
                attention_mask=rows.new_zeros(1, 1, 1, 1),
            )  # fmt: skip
        return passed.last_hidden_state[:, start:]


@dataclass(frozen=True)
class Layout:
    """How a row is packed: ``prefix`` tokens, one conversation of ``long`` tokens, then ``questions`` equally long ones."""

    prefix: int
    long: int
    questions: int


_LAYOUTS: dict[int, Layout] = {}
PACKED, SQUARE = "specviz_packed", "specviz_square"


@contextmanager
def layout(packing: Layout) -> Iterator[None]:
    """Packed attention in this thread follows ``packing`` inside."""
    key = threading.get_ident()
    _LAYOUTS[key] = packing
    try:
        yield
    finally:
        del _LAYOUTS[key]


def packed_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, scaling: float = 1.0, **more: Any
) -> tuple[Tensor, None]:
    """[scene, head, token, size] to [scene, token, head, size]: every conversation sees the prefix and itself."""
    packing = _LAYOUTS[threading.get_ident()]
    scenes, heads, _, size = query.shape
    cut = (packing.prefix, packing.long)
    rest = query.shape[2] - sum(cut)
    query = query * scaling
    (q0, q1, q2), (k0, k1, k2), (v0, v1, v2) = (part.split([*cut, rest], dim=2) for part in (query, key, value))
    prefix = _masked(q0 @ k0.transpose(2, 3)).softmax(-1) @ v0
    if cut == (query.shape[2], 0):
        return prefix.transpose(1, 2).contiguous(), None
    far = torch.cat((q1, q2), dim=2) @ k0.transpose(2, 3)
    weights = torch.cat((far[:, :, : packing.long], _masked(q1 @ k1.transpose(2, 3))), dim=-1).softmax(-1)
    long = weights[..., : packing.prefix] @ v0 + weights[..., packing.prefix :] @ v1
    q2, k2, v2 = (part.reshape(scenes, heads, packing.questions, -1, size) for part in (q2, k2, v2))
    near = _masked(q2 @ k2.transpose(3, 4))
    prefix_scores = far[:, :, packing.long :].reshape(*near.shape[:4], packing.prefix)
    weights = torch.cat((prefix_scores, near), dim=-1).softmax(-1)
    before = weights[..., : packing.prefix].reshape(scenes, heads, rest, packing.prefix) @ v0
    short = before + (weights[..., packing.prefix :] @ v2).reshape(scenes, heads, rest, size)
    return torch.cat((prefix, long, short), dim=2).transpose(1, 2).contiguous(), None


def _masked(scores: Tensor) -> Tensor:
    """Scores [..., token, token] with what comes later hidden."""
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(later, float("-inf"))


def square_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, scaling: float = 1.0, **more: Any
) -> tuple[Tensor, None]:
    """Everything sees everything: plain products, which on a processor cost half of what the fused kernel does here."""
    weights = ((query * scaling) @ key.transpose(2, 3)).softmax(-1)
    return (weights @ value).transpose(1, 2).contiguous(), None


@contextmanager
def training_attention(model: Any) -> Iterator[None]:
    """The model attends as training needs it inside, and as before afterwards."""
    AttentionInterface.register(PACKED, packed_attention)
    AttentionInterface.register(SQUARE, square_attention)
    parts = ((model.model.text_model.config, PACKED), (model.model.vision_model.config, SQUARE))
    before = [config._attn_implementation for config, _ in parts]
    for config, name in parts:
        config._attn_implementation = name
    try:
        yield
    finally:
        for (config, _), name in zip(parts, before, strict=True):
            config._attn_implementation = name

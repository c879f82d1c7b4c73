"""Tiny random vision-language models of seven families, each with a prompt that holds a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers as tf
from PIL import Image
from torch import Tensor
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLTextConfig
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLTextConfig
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig

from specviz.models.vision.picture_question import PictureQuestion, boxes_of_grid

VOCAB = 97
IMAGE = 90
START, STOP = 92, 93
WINDOW = 8


@dataclass(frozen=True)
class TinyVision:
    """A model in eval mode, float32 unless asked, and a prompt with a picture for it."""

    name: str
    model: Any
    prompt: PictureQuestion

    def whole(self, suffix: list[int]) -> Tensor:
        """Reference: logits [token, vocab] of prompt and suffix in one pass without a cache, as the model's users do it."""
        ids = torch.tensor([[*self.prompt.ids, *suffix]])
        more = dict(self.prompt.inputs)
        for key in [key for key in more if key.endswith("token_type_ids")]:
            tail = torch.full((1, len(suffix)), 1 if self.name == "paligemma" else 0, dtype=more[key].dtype)
            more[key] = torch.cat((more[key], tail), 1)
        with torch.no_grad():
            return self.model(input_ids=ids, use_cache=False, **more).logits[0]


def _text(kind: Any, **own: Any) -> Any:
    base = dict(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=1024, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        initializer_range=0.2,
    )  # fmt: skip
    return kind(**{**base, **own})


def _ids(count: int, seed: int) -> list[int]:
    return torch.randint(8, VOCAB - 8, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def _prompt(
    visual: int, inputs: Mapping[str, Tensor], before: int = 4, after: int = 5, marked: bool = False, types: str = ""
) -> PictureQuestion:
    middle = [START, *[IMAGE] * visual, STOP] if marked else [IMAGE] * visual
    ids = (*_ids(before, 3), *middle, *_ids(after, 4))
    places = tuple(place for place, one in enumerate(ids) if one == IMAGE)
    hidden = tuple(place for place, one in enumerate(ids) if one in {IMAGE, START, STOP}) if marked else places
    more = dict(inputs)
    if types:
        here = [[int(one == IMAGE and types != "zeros") for one in ids]]
        more["mm_token_type_ids" if types == "mm" else "token_type_ids"] = torch.tensor(here)
    side = round(visual**0.5)
    picture = Image.new("RGB", (32, 32), (200, 120, 40))
    return PictureQuestion(ids, more, places, hidden, boxes_of_grid(side, side), (side, side), picture)


def _siglip(**own: Any) -> dict[str, Any]:
    return dict(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=32,
        patch_size=8,
        **own,
    )


def _pixels(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5))


def _built(base: str, attention: str, text: Any, vision: Any, **own: Any) -> Any:
    config = getattr(tf, f"{base}Config")(text_config=text, vision_config=vision, image_token_id=IMAGE, **own)
    config._attn_implementation = attention
    return getattr(tf, f"{base}ForConditionalGeneration")(config)


def _smolvlm(attention: str) -> tuple[Any, PictureQuestion]:
    vision = tf.SmolVLMVisionConfig(**_siglip())
    model = _built("SmolVLM", attention, _text(tf.LlamaConfig), vision, scale_factor=2)
    return model, _prompt(4, {"pixel_values": _pixels(1, 1, 3, 32, 32)})


def _clip(base: str, attention: str, **own: Any) -> Any:
    own |= {"vision_feature_layer": -2, "vision_feature_select_strategy": "default"}
    return _built(base, attention, _text(tf.LlamaConfig), tf.CLIPVisionConfig(**_siglip(projection_dim=32)), **own)


def _llava(attention: str) -> tuple[Any, PictureQuestion]:
    return _clip("Llava", attention), _prompt(16, {"pixel_values": _pixels(1, 3, 32, 32)})


def _llava_next(attention: str) -> tuple[Any, PictureQuestion]:
    """A picture twice as wide as high: two tiles of 16 tokens, their three ends of rows, and the whole picture's 16."""
    model = _clip("LlavaNext", attention, image_grid_pinpoints=[[32, 32], [32, 64], [64, 32]])
    torch.nn.init.normal_(model.model.image_newline, std=0.3)
    inputs = {"pixel_values": _pixels(1, 3, 3, 32, 32), "image_sizes": torch.tensor([[32, 64]])}
    return model, _prompt(16 + 4 * 9, inputs)


QWEN_VISION: dict[str, Any] = dict(
    depth=2, hidden_size=32, intermediate_size=64, num_heads=4, patch_size=4, spatial_merge_size=2,
    temporal_patch_size=2, in_channels=3, out_hidden_size=48,
)  # fmt: skip
WINDOWS = {"window_size": 16, "fullatt_block_indexes": [1]}
"""Of Qwen2.5-VL's vision."""


def turning(*section: int, **own: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": 1e4, "mrope_section": list(section), **own}


def _qwen(base: str, attention: str, text: Any, vision: dict[str, Any]) -> tuple[Any, PictureQuestion]:
    marks = {"video_token_id": 91, "vision_start_token_id": START, "vision_end_token_id": STOP}
    inputs = {"pixel_values": _pixels(16, 3 * 2 * 4 * 4), "image_grid_thw": torch.tensor([[1, 4, 4]])}
    return _built(base, attention, text.to_dict(), vision, **marks), _prompt(4, inputs, marked=True, types="mm")


def _qwen2vl(attention: str) -> tuple[Any, PictureQuestion]:
    vision = {**QWEN_VISION, "embed_dim": 32, "hidden_size": 48, "mlp_ratio": 2}
    del vision["intermediate_size"], vision["out_hidden_size"]
    return _qwen("Qwen2VL", attention, _text(Qwen2VLTextConfig, rope_parameters=turning(2, 2, 2)), vision)


def _qwen25vl(attention: str) -> tuple[Any, PictureQuestion]:
    text = _text(Qwen2_5_VLTextConfig, rope_parameters=turning(2, 2, 2))
    return _qwen("Qwen2_5_VL", attention, text, QWEN_VISION | WINDOWS)


def _qwen3vl(attention: str) -> tuple[Any, PictureQuestion]:
    text = _text(Qwen3VLTextConfig, head_dim=16, rope_parameters=turning(4, 2, 2, mrope_interleaved=True))
    return _qwen("Qwen3VL", attention, text, QWEN_VISION | {"num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]})


def _gemma3(attention: str) -> tuple[Any, PictureQuestion]:
    text = _text(
        tf.Gemma3TextConfig, head_dim=16, sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    )  # fmt: skip
    marks = {"mm_tokens_per_image": 4, "boi_token_id": START, "eoi_token_id": STOP}
    model = _built("Gemma3", attention, text, tf.SiglipVisionConfig(**_siglip()), **marks)
    # Zeros when fresh: the picture would not matter.
    torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight, std=0.3)
    return model, _prompt(4, {"pixel_values": _pixels(1, 3, 32, 32)}, after=8, types="token")


def _paligemma(attention: str) -> tuple[Any, PictureQuestion]:
    vision, text = tf.SiglipVisionConfig(**_siglip(projection_dim=48)), _text(tf.GemmaConfig, head_dim=16)
    model = _built("PaliGemma", attention, text, vision, projection_dim=48, hidden_size=48)
    return model, _prompt(16, {"pixel_values": _pixels(1, 3, 32, 32)}, before=0, after=6, types="zeros")


FAMILIES: dict[str, Callable[[str], tuple[Any, PictureQuestion]]] = {
    "smolvlm": _smolvlm,
    "llava": _llava,
    "llava_next": _llava_next,
    "qwen2vl": _qwen2vl,
    "qwen2_5vl": _qwen25vl,
    "qwen3vl": _qwen3vl,
    "gemma3": _gemma3,
    "paligemma": _paligemma,
}


def tiny_vision(
    name: str, attention: str = "sdpa", dtype: torch.dtype = torch.float32, seed: int = 0, device: str = "cpu"
) -> TinyVision:
    """A random model of this family (see ``FAMILIES``) with a picture prompt; text tokens are 8 … 88."""
    torch.manual_seed(seed)
    model, prompt = FAMILIES[name](attention)
    model = model.eval().to(dtype).requires_grad_(False).to(device)
    inputs = {key: value.to(device, dtype if value.is_floating_point() else value.dtype) for key, value in prompt.inputs.items()}
    return TinyVision(name, model, replace(prompt, inputs=inputs))

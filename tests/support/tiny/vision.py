"""Tiny random vision-language models of seven families, each with a prompt that holds a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
        for key in self.prompt.token_keywords:
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
    keywords = tuple(key for key in more if key.endswith("token_type_ids"))
    picture = Image.new("RGB", (32, 32), (200, 120, 40))
    return PictureQuestion(ids, more, places, hidden, boxes_of_grid(side, side), (side, side), picture, keywords)


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


def _smolvlm(attention: str) -> tuple[Any, PictureQuestion]:
    config = tf.SmolVLMConfig(
        vision_config=tf.SmolVLMVisionConfig(**_siglip()), text_config=_text(tf.LlamaConfig), image_token_id=IMAGE,
        scale_factor=2,
    )  # fmt: skip
    return _made(tf.SmolVLMForConditionalGeneration, config, attention), _prompt(4, {"pixel_values": _pixels(1, 1, 3, 32, 32)})


def _llava(attention: str) -> tuple[Any, PictureQuestion]:
    config = tf.LlavaConfig(
        vision_config=tf.CLIPVisionConfig(**_siglip(projection_dim=32)), text_config=_text(tf.LlamaConfig),
        image_token_id=IMAGE, vision_feature_layer=-2, vision_feature_select_strategy="default",
    )  # fmt: skip
    return _made(tf.LlavaForConditionalGeneration, config, attention), _prompt(16, {"pixel_values": _pixels(1, 3, 32, 32)})


def _llava_next(attention: str) -> tuple[Any, PictureQuestion]:
    """A picture twice as wide as high: two tiles of 16 tokens, their three ends of rows, and the whole picture's 16."""
    config = tf.LlavaNextConfig(
        vision_config=tf.CLIPVisionConfig(**_siglip(projection_dim=32)), text_config=_text(tf.LlamaConfig),
        image_token_id=IMAGE, vision_feature_layer=-2, vision_feature_select_strategy="default",
        image_grid_pinpoints=[[32, 32], [32, 64], [64, 32]],
    )  # fmt: skip
    model = _made(tf.LlavaNextForConditionalGeneration, config, attention)
    torch.nn.init.normal_(model.model.image_newline, std=0.3)
    inputs = {"pixel_values": _pixels(1, 3, 3, 32, 32), "image_sizes": torch.tensor([[32, 64]])}
    return model, _prompt(16 + 4 * 9, inputs)


_QWEN_IDS = dict(image_token_id=IMAGE, video_token_id=91, vision_start_token_id=START, vision_end_token_id=STOP)
_QWEN_VISION = dict(
    depth=2, hidden_size=32, intermediate_size=64, num_heads=4, patch_size=4, spatial_merge_size=2,
    temporal_patch_size=2, in_channels=3,
)  # fmt: skip


def _turning(*section: int, **own: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": 1e4, "mrope_section": list(section), **own}


def _qwen_prompt() -> PictureQuestion:
    inputs = {"pixel_values": _pixels(16, 3 * 2 * 4 * 4), "image_grid_thw": torch.tensor([[1, 4, 4]])}
    return _prompt(4, inputs, marked=True, types="mm")


def _qwen2vl(attention: str) -> tuple[Any, PictureQuestion]:
    vision = {**_QWEN_VISION, "embed_dim": 32, "hidden_size": 48, "mlp_ratio": 2}
    vision.pop("intermediate_size")
    text = _text(Qwen2VLTextConfig, rope_parameters=_turning(2, 2, 2))
    config = tf.Qwen2VLConfig(text_config=text.to_dict(), vision_config=vision, **_QWEN_IDS)
    return _made(tf.Qwen2VLForConditionalGeneration, config, attention), _qwen_prompt()


def _qwen25vl(attention: str) -> tuple[Any, PictureQuestion]:
    vision = {**_QWEN_VISION, "out_hidden_size": 48, "window_size": 16, "fullatt_block_indexes": [1]}
    text = _text(Qwen2_5_VLTextConfig, rope_parameters=_turning(2, 2, 2))
    config = tf.Qwen2_5_VLConfig(text_config=text.to_dict(), vision_config=vision, **_QWEN_IDS)
    return _made(tf.Qwen2_5_VLForConditionalGeneration, config, attention), _qwen_prompt()


def _qwen3vl(attention: str) -> tuple[Any, PictureQuestion]:
    vision = {**_QWEN_VISION, "out_hidden_size": 48, "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]}
    text = _text(Qwen3VLTextConfig, head_dim=16, rope_parameters=_turning(4, 2, 2, mrope_interleaved=True))
    config = tf.Qwen3VLConfig(text_config=text.to_dict(), vision_config=vision, **_QWEN_IDS)
    return _made(tf.Qwen3VLForConditionalGeneration, config, attention), _qwen_prompt()


def _gemma3(attention: str) -> tuple[Any, PictureQuestion]:
    text = _text(
        tf.Gemma3TextConfig, head_dim=16, sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    )  # fmt: skip
    config = tf.Gemma3Config(
        text_config=text, vision_config=tf.SiglipVisionConfig(**_siglip()), mm_tokens_per_image=4, image_token_id=IMAGE,
        boi_token_id=START, eoi_token_id=STOP,
    )  # fmt: skip
    model = _made(tf.Gemma3ForConditionalGeneration, config, attention)
    # Zeros when fresh: the picture would not matter.
    torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight, std=0.3)
    return model, _prompt(4, {"pixel_values": _pixels(1, 3, 32, 32)}, after=8, types="token")


def _paligemma(attention: str) -> tuple[Any, PictureQuestion]:
    vision = tf.SiglipVisionConfig(**_siglip(projection_dim=48))
    config = tf.PaliGemmaConfig(
        vision_config=vision, text_config=_text(tf.GemmaConfig, head_dim=16), image_token_id=IMAGE, projection_dim=48,
        hidden_size=48,
    )  # fmt: skip
    model = _made(tf.PaliGemmaForConditionalGeneration, config, attention)
    return model, _prompt(16, {"pixel_values": _pixels(1, 3, 32, 32)}, before=0, after=6, types="zeros")


def _made(kind: Any, config: Any, attention: str) -> Any:
    config._attn_implementation = attention
    return kind(config)


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
    inputs = {key: value.to(dtype) if value.is_floating_point() else value for key, value in prompt.inputs.items()}
    inputs = {key: value.to(device) for key, value in inputs.items()}
    found = PictureQuestion(
        prompt.ids,
        inputs,
        prompt.visual,
        prompt.hidden,
        prompt.boxes,
        prompt.grid,
        prompt.picture,
        prompt.token_keywords,
    )
    return TinyVision(name, model, found)

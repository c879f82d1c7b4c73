"""Tiny random vision-language models, one of each family, and a prompt with a picture for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLTextConfig
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLTextConfig
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig

VOCAB = 97
PICTURE, VIDEO, OPENING, CLOSING = 90, 91, 92, 93
LAYERS = 3


def _text(kind: Any, **more: Any) -> Any:
    shape = {
        "vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": LAYERS,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "pad_token_id": None,
        "bos_token_id": None, "eos_token_id": None, "tie_word_embeddings": False,
    }  # fmt: skip
    return kind(**{**shape, **more})


def _eye(kind: Any, **more: Any) -> Any:
    return kind(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=32,
        patch_size=8,
        **more,
    )


def _smolvlm() -> Any:
    return hf.SmolVLMForConditionalGeneration(
        hf.SmolVLMConfig(
            vision_config=_eye(hf.SmolVLMVisionConfig), text_config=_text(hf.LlamaConfig), image_token_id=PICTURE,
            scale_factor=2, pad_token_id=0,
        )
    )  # fmt: skip


def _llava() -> Any:
    return hf.LlavaForConditionalGeneration(
        hf.LlavaConfig(
            vision_config=_eye(hf.CLIPVisionConfig, projection_dim=32), text_config=_text(hf.LlamaConfig),
            image_token_id=PICTURE, vision_feature_layer=-2, vision_feature_select_strategy="default",
        )
    )  # fmt: skip


_TOKENS = {
    "image_token_id": PICTURE, "video_token_id": VIDEO, "vision_start_token_id": OPENING, "vision_end_token_id": CLOSING,
}  # fmt: skip
_TILES = {
    "depth": 2,
    "num_heads": 4,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "in_channels": 3,
}


def _turns(sections: list[int], **more: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": 1e4, "mrope_section": sections, **more}


def _qwen2_vl() -> Any:
    text = _text(Qwen2VLTextConfig, rope_parameters=_turns([2, 2, 2])).to_dict()
    eye = {**_TILES, "embed_dim": 32, "hidden_size": 48, "mlp_ratio": 2}
    return hf.Qwen2VLForConditionalGeneration(hf.Qwen2VLConfig(text_config=text, vision_config=eye, **_TOKENS))


def _qwen2_5_vl() -> Any:
    text = _text(Qwen2_5_VLTextConfig, rope_parameters=_turns([2, 2, 2])).to_dict()
    eye = {**_TILES, "hidden_size": 32, "intermediate_size": 64, "out_hidden_size": 48}
    eye |= {"window_size": 16, "fullatt_block_indexes": [1]}
    return hf.Qwen2_5_VLForConditionalGeneration(hf.Qwen2_5_VLConfig(text_config=text, vision_config=eye, **_TOKENS))


def _qwen3_vl() -> Any:
    text = _text(Qwen3VLTextConfig, head_dim=16, rope_parameters=_turns([4, 2, 2], mrope_interleaved=True)).to_dict()
    eye = {**_TILES, "hidden_size": 32, "intermediate_size": 64, "out_hidden_size": 48}
    eye |= {"num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]}
    return hf.Qwen3VLForConditionalGeneration(hf.Qwen3VLConfig(text_config=text, vision_config=eye, **_TOKENS))


def _gemma3() -> Any:
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    config = hf.Gemma3Config(
        text_config=_text(hf.Gemma3TextConfig, head_dim=16, sliding_window=8, layer_types=kinds),
        vision_config=_eye(hf.SiglipVisionConfig), mm_tokens_per_image=4, image_token_id=PICTURE, boi_token_id=OPENING,
        eoi_token_id=CLOSING,
    )  # fmt: skip
    made = hf.Gemma3ForConditionalGeneration(config)
    torch.nn.init.normal_(made.model.multi_modal_projector.mm_input_projection_weight, std=0.3)  # zeros by default
    return made


def _paligemma() -> Any:
    return hf.PaliGemmaForConditionalGeneration(
        hf.PaliGemmaConfig(
            vision_config=_eye(hf.SiglipVisionConfig, projection_dim=48), text_config=_text(hf.GemmaConfig, head_dim=16),
            image_token_id=PICTURE, projection_dim=48, hidden_size=48,
        )
    )  # fmt: skip


MAKERS: dict[str, Callable[[], Any]] = {
    "smolvlm": _smolvlm, "llava": _llava, "qwen2_vl": _qwen2_vl, "qwen2_5_vl": _qwen2_5_vl, "qwen3_vl": _qwen3_vl,
    "gemma3": _gemma3, "paligemma": _paligemma,
}  # fmt: skip
PLACES = {"smolvlm": 4, "llava": 16, "qwen2_vl": 4, "qwen2_5_vl": 4, "qwen3_vl": 4, "gemma3": 4, "paligemma": 16}


def tiny(kind: str, attention: str = "sdpa", dtype: torch.dtype = torch.float32) -> Any:
    """A random model of this family, its weights spread so that its text is neither constant nor linear."""
    torch.manual_seed(0)
    made = MAKERS[kind]().eval()
    for weight in made.parameters():
        if weight.ndim > 1:
            weight.data.mul_(3.0)
    made = made.to(dtype).requires_grad_(False)
    made.set_attn_implementation(attention)
    return made


def prompt(kind: str, seed: int = 0) -> list[int]:
    """Token ids with places for one picture."""
    chance = torch.Generator().manual_seed(100 + seed)
    before, after = (torch.randint(8, 88, (n,), generator=chance).tolist() for n in (4, 7))
    places = [PICTURE] * PLACES[kind]
    if kind == "paligemma":
        return [*places, *before, *after]
    if kind.startswith("qwen"):
        return [*before, OPENING, *places, CLOSING, *after]
    return [*before, *places, *after]


def inputs(kind: str, seed: int = 0, ids: list[int] | None = None) -> dict[str, torch.Tensor]:
    """What a processor would make of a picture of noise and a prompt."""
    torch.manual_seed(50 + seed)
    made: dict[str, torch.Tensor] = {"input_ids": torch.tensor([prompt(kind) if ids is None else ids])}
    if kind.startswith("qwen"):
        made["pixel_values"] = torch.randn(16, 3 * 2 * 4 * 4)
        made["image_grid_thw"] = torch.tensor([[1, 4, 4]])
    elif kind == "smolvlm":
        made["pixel_values"] = torch.randn(1, 1, 3, 32, 32)
    else:
        made["pixel_values"] = torch.randn(1, 3, 32, 32)
    return made


def told(kind: str, given: dict[str, torch.Tensor], more: list[int]) -> dict[str, torch.Tensor]:
    """The model's own inputs for the prompt and ``more`` behind it, as its documentation has them."""
    ids = torch.cat((given["input_ids"], torch.tensor([more], dtype=torch.long)), dim=1)
    made = {**given, "input_ids": ids}
    if kind.startswith("qwen"):
        made["mm_token_type_ids"] = (ids == PICTURE).int()
    if kind == "gemma3":
        made["token_type_ids"] = (ids == PICTURE).long()
    if kind == "paligemma":
        made["token_type_ids"] = torch.cat(
            (torch.zeros_like(given["input_ids"]), torch.ones(1, len(more)).long()), dim=1
        )
    return made

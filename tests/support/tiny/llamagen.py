"""Tiny random LlamaGen in a folder, with VQ tokenizer, T5 and LANTERN's drafter; and its forward pass, from the paper's formulas.

Rotations are complex numbers here, one place after another, and nothing is cached: nothing is shared with what it checks.
"""

from __future__ import annotations

import cmath
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor
from transformers import PreTrainedTokenizerFast, T5Config, T5EncoderModel

CODES, HIDDEN, HEADS, INNER, LAYERS, CLASSES = 24, 32, 4, 48, 3, 10
SIZE = HIDDEN // HEADS
PLACES, FEATURES = 8, 16
"""Of a caption."""
VQ_CHANNELS, VQ_DIM = 32, 8


def drawn(generator: torch.Generator, *shape: int, scale: float = 0.3) -> Tensor:
    return scale * torch.randn(shape, generator=generator)


def decoder_tensors(captions: bool, seed: int = 1) -> dict[str, Tensor]:
    """Named as LlamaGen's authors store them."""
    g = torch.Generator().manual_seed(seed)
    tensors = {"tok_embeddings.weight": drawn(g, CODES, HIDDEN, scale=1.0), "output.weight": drawn(g, CODES, HIDDEN)}
    if captions:
        tensors["cls_embedding.uncond_embedding"] = drawn(g, PLACES, FEATURES, scale=1.0)
        tensors["cls_embedding.cap_proj.fc1.weight"] = drawn(g, HIDDEN, FEATURES)
        tensors["cls_embedding.cap_proj.fc2.weight"] = drawn(g, HIDDEN, HIDDEN)
    else:
        tensors["cls_embedding.embedding_table.weight"] = drawn(g, CLASSES + 1, HIDDEN, scale=1.0)
    for layer in range(LAYERS):
        shapes = {
            "attention.wqkv": (3 * HIDDEN, HIDDEN), "attention.wo": (HIDDEN, HIDDEN), "feed_forward.w1": (INNER, HIDDEN),
            "feed_forward.w2": (HIDDEN, INNER), "feed_forward.w3": (INNER, HIDDEN),
        }  # fmt: skip
        tensors |= {f"layers.{layer}.{name}.weight": drawn(g, *shape) for name, shape in shapes.items()}
        tensors |= {f"layers.{layer}.{name}_norm.weight": 1 + drawn(g, HIDDEN) for name in ("attention", "ffn")}
    return tensors | {"norm.weight": 1 + drawn(g, HIDDEN)}


def as_lantern(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same, named as LANTERN's conversion stores them."""
    names = {
        "tok_embeddings": "embed_tokens", "attention.wo": "self_attn.o_proj", "attention_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm", "feed_forward.w1": "mlp.gate_proj", "feed_forward.w2": "mlp.down_proj",
        "feed_forward.w3": "mlp.up_proj",
    }  # fmt: skip
    renamed: dict[str, Tensor] = {}
    for name, value in tensors.items():
        for ours, theirs in names.items():
            name = name.replace(f"{ours}.weight", f"{theirs}.weight")
        if "wqkv" in name:
            for part, rows in zip("qkv", value.chunk(3), strict=True):
                renamed["model." + name.replace("attention.wqkv", f"self_attn.{part}_proj")] = rows.clone()
        else:
            renamed["lm_head.weight" if name == "output.weight" else f"model.{name}"] = value
    return renamed


def vq_tensors(seed: int = 3) -> dict[str, Tensor]:
    """A tokenizer's pixel half with two levels, so that a code covers 2 x 2 pixels, and some of what only encoding needs."""
    g = torch.Generator().manual_seed(seed)
    tensors = {"quantize.embedding.weight": drawn(g, CODES, VQ_DIM), "encoder.conv_in.weight": drawn(g, 4, 3, 3, 3)}

    def conv(name: str, into: int, out: int, width: int) -> None:
        tensors[f"{name}.weight"], tensors[f"{name}.bias"] = drawn(g, out, into, width, width, scale=0.1), drawn(g, out)

    def norm(name: str, channels: int) -> None:
        tensors[f"{name}.weight"], tensors[f"{name}.bias"] = 1 + drawn(g, channels), drawn(g, channels)

    def residual(name: str, into: int, out: int) -> None:
        norm(f"{name}.norm1", into)
        conv(f"{name}.conv1", into, out, 3)
        norm(f"{name}.norm2", out)
        conv(f"{name}.conv2", out, out, 3)
        if into != out:
            conv(f"{name}.nin_shortcut", into, out, 1)

    def attention(name: str, channels: int) -> None:
        norm(f"{name}.norm", channels)
        for part in ("q", "k", "v", "proj_out"):
            conv(f"{name}.{part}", channels, channels, 1)

    wide, narrow = 2 * VQ_CHANNELS, VQ_CHANNELS
    conv("post_quant_conv", VQ_DIM, 16, 1)
    conv("decoder.conv_in", 16, wide, 3)
    residual("decoder.mid.0", wide, wide)
    attention("decoder.mid.1", wide)
    residual("decoder.mid.2", wide, wide)
    for block in range(2):
        residual(f"decoder.conv_blocks.0.res.{block}", wide, wide)
        attention(f"decoder.conv_blocks.0.attn.{block}", wide)
        residual(f"decoder.conv_blocks.1.res.{block}", narrow if block else wide, narrow)
    conv("decoder.conv_blocks.0.upsample.conv", wide, wide, 3)
    norm("decoder.norm_out", narrow)
    conv("decoder.conv_out", narrow, 3, 3)
    return tensors


def t5(path: Path) -> Path:
    """A tiny T5 with a tokenizer of letters, which ends a text with </s>."""
    letters = {
        token: place for place, token in enumerate(["<pad>", "</s>", "<unk>", *sorted(pre_tokenizers.ByteLevel.alphabet())])
    }
    tokenizer = Tokenizer(models.BPE(letters, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(path)  # fmt: skip
    torch.manual_seed(4)
    config = T5Config(
        vocab_size=len(letters), d_model=FEATURES, d_kv=4, num_heads=4, d_ff=24, num_layers=2, feed_forward_proj="gated-gelu"
    )  # fmt: skip
    T5EncoderModel(config).save_pretrained(path)
    return path


def folder(path: Path, grid: int, captions: bool = False, lantern: bool = False, **settings: Any) -> Path:
    """The whole model as a user has it on disk."""
    (path / "vq").mkdir(parents=True)
    tensors = decoder_tensors(captions)
    said: dict[str, Any] = {"model_type": "llamagen", "block_size": grid * grid, "num_attention_heads": HEADS}
    if lantern:
        said |= {"model_type": "llama", "cls_token_num": PLACES if captions else 1, "input_type": "t2i" if captions else "c2i"}
    save_file(as_lantern(tensors) if lantern else tensors, path / "model.safetensors")
    save_file(vq_tensors(), path / "vq" / "model.safetensors")
    (path / "config.json").write_text(json.dumps({**said, **settings}))
    if captions:
        t5(path / "t5")
    return path


def drafter(path: Path, input_type: str, **settings: Any) -> Path:
    """A random drafter as LANTERN stores it, with an embedding of its own."""
    g = torch.Generator().manual_seed(2)
    shapes = {f"self_attn.{part}_proj": (HIDDEN, HIDDEN) for part in "qkvo"}
    shapes |= {"mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER)}
    own = {"embed_tokens.weight": drawn(g, CODES, HIDDEN, scale=1.0), "fc.weight": drawn(g, HIDDEN, 2 * HIDDEN)}
    own |= {"fc.bias": drawn(g, HIDDEN), "layers.0.post_attention_layernorm.weight": 1 + drawn(g, HIDDEN)}
    own |= {f"layers.0.{name}.weight": drawn(g, *shape) for name, shape in shapes.items()}
    said = {
        "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": HIDDEN,
        "caption_dim": 2048, "class_dropout_p": 0.0, "initializer_range": 0.02, "intermediate_size": INNER,
        "max_position_embeddings": 2048, "model_type": "llama", "num_attention_heads": HEADS, "num_hidden_layers": 1,
        "num_key_value_heads": HEADS, "pretraining_tp": 1, "rms_norm_eps": 1e-6, "rope_scaling": None,
        "tie_word_embeddings": False, "torch_dtype": "float16", "transformers_version": "4.32.0.dev0", "use_cache": True,
        "vocab_size": CODES, "input_type": input_type,
    }  # fmt: skip
    path.mkdir()
    save_file(own, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({**said, **settings}))
    return path


def factors(places: int, grid: int, first: int) -> Tensor:
    """Complex [place, size / 2]: rows of the grid turn the first half of the pairs, columns the second; 0 before the picture."""
    half = SIZE // 2
    rates = [10000.0 ** (-2 * pair / half) for pair in range(half // 2)]
    table = []
    for place in range(places):
        row, column = divmod(place - first, grid)
        turned = [cmath.exp(1j * axis * rate) for axis in (row, column) for rate in rates]
        table.append(turned if place >= first else [0j] * half)
    return torch.tensor(table, dtype=torch.complex128)


def unit(x: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def attended(queries: Tensor, keys: Tensor, values: Tensor, turned: Tensor, seen: Tensor) -> Tensor:
    """Attention [place, hidden] of projections [place, hidden]; ``seen`` is bool [place, place]."""

    def turn(x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.reshape(len(x), HEADS, SIZE // 2, 2).contiguous())
        return torch.view_as_real(pairs * turned[:, None]).flatten(2)

    scores = torch.einsum("ihd,jhd->hij", turn(queries), turn(keys)) / SIZE**0.5
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return torch.einsum("hij,jhd->ihd", weights, values.reshape(len(values), HEADS, SIZE)).flatten(1)


def states(tensors: Mapping[str, Tensor], embedded: Tensor, grid: int, first: int, unseen: int = 0) -> Tensor:
    """The decoder's last states [place, hidden], the final norm done, of embeddings [place, hidden]; float64."""
    t = {name: value.double() for name, value in tensors.items()}
    x, places = embedded.double(), len(embedded)
    turned = factors(places, grid, first)
    seen = torch.ones(places, places, dtype=torch.bool).tril()
    seen[:, :unseen] = False
    seen |= torch.eye(places, dtype=torch.bool)
    for layer in range(LAYERS):
        part = {name.removeprefix(f"layers.{layer}."): value for name, value in t.items() if name.startswith(f"layers.{layer}.")}
        normed = unit(x, 1e-5) * part["attention_norm.weight"]
        x = x + attended(*(normed @ part["attention.wqkv.weight"].T).chunk(3, -1), turned, seen) @ part["attention.wo.weight"].T
        normed = unit(x, 1e-5) * part["ffn_norm.weight"]
        gate, up = F.silu(normed @ part["feed_forward.w1.weight"].T), normed @ part["feed_forward.w3.weight"].T
        x = x + (gate * up) @ part["feed_forward.w2.weight"].T
    return unit(x, 1e-5) * t["norm.weight"]


def picture_states(
    tensors: Mapping[str, Tensor], prompts: Sequence[Tensor], codes: Sequence[int], grid: int, unseen: int = 0
) -> list[Tensor]:
    """The states of both rows, whose prompts' embeddings are ``prompts``, over the prompt and these codes."""
    words = tensors["tok_embeddings.weight"].double()[list(codes)]
    return [states(tensors, torch.cat((row.double(), words)), grid, len(row), unseen) for row in prompts]


def guided(rows: Sequence[Tensor], scale: float) -> Tensor:
    return rows[1] + scale * (rows[0] - rows[1])


def drafted(own: Mapping[str, Tensor], codes: Sequence[int], features: Tensor, grid: int, first: int) -> Tensor:
    """The drafter's outputs [place, hidden] beside the target's ``features`` [place, hidden], as LANTERN feeds it: the places
    of the prompt read code 0."""
    t = {name: value.double() for name, value in own.items()}
    read = t["embed_tokens.weight"][[0] * (first - 1) + list(codes)]
    x = torch.cat((read, features), dim=-1) @ t["fc.weight"].T + t["fc.bias"]
    projections = [x @ t[f"layers.0.self_attn.{part}_proj.weight"].T for part in "qkv"]
    seen = torch.ones(len(x), len(x), dtype=torch.bool).tril()
    x = x + attended(*projections, factors(len(x), grid, first - 1), seen) @ t["layers.0.self_attn.o_proj.weight"].T
    normed = unit(x, 1e-6) * t["layers.0.post_attention_layernorm.weight"]
    gate = F.silu(normed @ t["layers.0.mlp.gate_proj.weight"].T)
    return x + (gate * (normed @ t["layers.0.mlp.up_proj.weight"].T)) @ t["layers.0.mlp.down_proj.weight"].T

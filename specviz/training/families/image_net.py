"""The image model as it trains and draws: the function and weights of transformers' Janus, in fewer and larger operations.

Norm weights stay at one: the matrices behind them learn the same. Axis names: ``batch``, ``place``, ``hidden``, ``code``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import JanusConfig, JanusForConditionalGeneration

from specviz.models.image.image import LoadedImage
from specviz.models.image.image_shape import TextShape, VqShape, janus_config
from specviz.models.loading_lock import exclusive_loading
from specviz.training.parallel import products

LANGUAGE = "model.language_model."


def fresh(vq: VqShape, text: TextShape, grid: int, codebook: Tensor, seed: int = 0) -> dict[str, nn.Parameter]:
    """Learned parameters by the standard class's names, drawn anew; codes start from their vectors."""
    torch.manual_seed(seed)
    with exclusive_loading():
        model = JanusForConditionalGeneration(JanusConfig(**janus_config(vq, text, grid)))
    prefixes = ("model.language_model.", "model.generation_")
    parameters = {name: value for name, value in model.named_parameters() if name.startswith(prefixes)}
    with torch.no_grad():
        parameters["model.generation_embeddings.weight"].copy_(codebook)
        for name, value in parameters.items():
            if value.ndim == 2 and name.startswith(LANGUAGE + "layers"):
                value.normal_(std=value.shape[1] ** -0.5)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                value.mul_(0.3)
    return {name: nn.Parameter(value.detach().clone()) for name, value in parameters.items()}


def learned(parameters: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """Those that are moved: all but the norms."""
    return {name: value for name, value in parameters.items() if not name.endswith("norm.weight")}


def stacked(small: Mapping[str, Tensor], layers: int, into: Mapping[str, nn.Parameter]) -> None:
    """Start a deep network from one with fewer layers: behind each come copies that look at the same and add nothing yet."""
    depth = 1 + max(int(name.split(".")[3]) for name in small if name.startswith(LANGUAGE + "layers"))
    times = layers // depth
    with torch.no_grad():
        for name, value in into.items():
            if not name.startswith(LANGUAGE + "layers"):
                value.copy_(small[name])
                continue
            parts = name.split(".")
            number, copy = divmod(int(parts[3]), times)
            parts[3] = str(number)
            value.copy_(small[".".join(parts)])
            if copy and name.endswith(("o_proj.weight", "down_proj.weight")):
                value.zero_()


class ImageNet:
    """Runs the parameters over [begin, words …, picture, codes …]."""

    def __init__(self, parameters: Mapping[str, Tensor], shape: TextShape, dtype: torch.dtype | None = None) -> None:
        self.parameters, self.shape = parameters, shape
        self.dtype = dtype or products(next(iter(parameters.values())).device)
        self.size = shape.width // shape.heads
        half = self.size // 2
        angle = torch.arange(512)[:, None] * shape.theta ** -(torch.arange(half) / half)
        self.cosine = torch.cat((angle.cos(), angle.cos()), -1)
        self.sine = torch.cat((-angle.sin(), angle.sin()), -1)

    def __getitem__(self, name: str) -> Tensor:
        return self.parameters[name]

    def embedded(self, codes: Tensor) -> Tensor:
        """Codes [..] to embeddings [.., hidden], as the standard class makes them."""
        x = self["model.generation_embeddings.weight"][codes]
        x = F.linear(x, self["model.generation_aligner.fc1.weight"], self["model.generation_aligner.fc1.bias"])
        layer = "model.generation_aligner.hidden_layers.0."
        return F.linear(F.gelu(x), self[layer + "weight"], self[layer + "bias"])

    def hidden(self, prompts: Tensor, codes: Tensor) -> Tensor:
        """Prompts [batch, place] and codes [batch, place] to final hidden states [batch, place, hidden] of all places."""
        words = self[LANGUAGE + "embed_tokens.weight"][prompts]
        return self.run(torch.cat((words, self.embedded(codes).to(words.dtype)), dim=1))

    def run(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        """Embeddings [batch, place, hidden], behind those in the cache where there is one, to final hidden states."""
        start = cache.length if cache else 0
        turn = tuple(table[start : start + x.shape[1]].to(x.device, self.dtype) for table in (self.cosine, self.sine))
        x = x.to(self.dtype)
        for number in range(self.shape.layers):
            states = cache.layers[number][..., : start + x.shape[1], :] if cache else None
            x = self.layer(x, f"{LANGUAGE}layers.{number}.", turn, states)
        if cache:
            cache.length += x.shape[1]
        return F.rms_norm(x, (x.shape[-1],), eps=1e-6)

    def layer(self, x: Tensor, name: str, turn: tuple[Tensor, ...], states: Tensor | None) -> Tensor:
        """One decoder layer on [batch, place, hidden]; ``states`` [2, batch, head, place, size] are keys and values so far,
        with room for the new ones."""
        batch, places, width = x.shape
        matrices = [self[f"{name}self_attn.{letter}_proj.weight"] for letter in "qkv"]
        mixed = F.linear(F.rms_norm(x, (width,), eps=1e-6), torch.cat(matrices).to(x.dtype))
        query, key, value = mixed.view(batch, places, 3, self.shape.heads, self.size).permute(2, 0, 3, 1, 4)
        key = turned(key, *turn)
        if states is not None:
            states[0, :, :, -places:], states[1, :, :, -places:] = key, value
            key, value = states
        attention = attended(turned(query, *turn), key, value)
        attention = attention.transpose(1, 2).reshape(batch, places, width)
        x = x + F.linear(attention, self[f"{name}self_attn.o_proj.weight"].to(x.dtype))
        both = torch.cat((self[f"{name}mlp.gate_proj.weight"], self[f"{name}mlp.up_proj.weight"])).to(x.dtype)
        gate, up = F.linear(F.rms_norm(x, (width,), eps=1e-6), both).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, self[f"{name}mlp.down_proj.weight"].to(x.dtype))

    def logits(self, hidden: Tensor) -> Tensor:
        """Final hidden states [.., hidden] to logits [.., code]."""
        head = "model.generation_head."
        dtype = hidden.dtype
        x = F.linear(hidden, self[head + "proj_out.weight"].to(dtype), self[head + "proj_out.bias"].to(dtype))
        return F.linear(F.gelu(x), self[head + "vision_head.weight"].to(dtype), self[head + "vision_head.bias"].to(dtype))

    def loss(self, prompts: Tensor, codes: Tensor, read: Tensor | None = None) -> Tensor:
        """Mean cross-entropy in nats of codes [batch, place] given prompts [batch, word] and the codes before, as they are
        or, for what is learned from, as ``read`` has them."""
        states = self.hidden(prompts, (codes if read is None else read)[:, :-1])[:, prompts.shape[1] - 1 :]
        return F.cross_entropy(self.logits(states).flatten(0, 1).float(), codes.flatten())


class Cache:
    """Keys and values [layer, 2, batch, head, place, size]."""

    def __init__(self, net: ImageNet, batch: int, places: int, device: torch.device) -> None:
        shape = (net.shape.layers, 2, batch, net.shape.heads, places, net.size)
        self.layers = torch.zeros(shape, dtype=net.dtype, device=device)
        self.length = 0


def turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary positions on [batch, head, place, size]."""
    return torch.addcmul(x * cosine, x.roll(x.shape[-1] // 2, -1), sine)


def attended(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The last places [batch, head, place, size] among all, causal, in plain products: on processors torch's fused attention is
    slow backwards, and took half of drawing's time.

    Long sequences go in blocks of rows, each of which leaves out the places that none of its rows may see.
    """
    places, before = query.shape[2], key.shape[2] - query.shape[2]
    if query.is_cuda:
        return F.scaled_dot_product_attention(query, key, value, is_causal=places > 1)
    mask = torch.full((places, before + places), float("-inf"), dtype=query.dtype).triu(1 + before)
    blocks, query = max(1, places // 128), query * query.shape[-1] ** -0.5
    edges, outputs = [places * number // blocks for number in range(blocks + 1)], []
    for start, end in zip(edges, edges[1:], strict=False):
        scores = query[:, :, start:end] @ key[:, :, : before + end].transpose(2, 3) + mask[start:end, : before + end]
        outputs.append(scores.softmax(-1) @ value[:, :, : before + end])
    return torch.cat(outputs, dim=2)


def network(loaded: LoadedImage) -> ImageNet:
    """The loaded model as training runs it."""
    text = loaded.model.config.text_config
    shape = TextShape(
        text.vocab_size, text.hidden_size, text.intermediate_size, text.num_hidden_layers, text.num_attention_heads,
        float(text.rope_parameters["rope_theta"]),
    )  # fmt: skip
    return ImageNet({name: value.detach() for name, value in loaded.model.named_parameters()}, shape)


def halved(net: ImageNet) -> ImageNet:
    """The same network with its weights in what the device multiplies fastest in, for drawing only."""
    return ImageNet({name: value.detach().to(net.dtype) for name, value in net.parameters.items()}, net.shape, net.dtype)


@torch.inference_mode()
def draw(
    net: ImageNet, rows: Sequence[tuple[Sequence[int], Sequence[int]]], cells: int, guidance: float, seed: int,
    temperature: float = 1.0,
) -> Tensor:  # fmt: skip
    """Codes [picture, cell] for pairs of rows (with words, without), drawn with guidance. ``net`` is :func:`halved`."""
    device = next(iter(net.parameters.values())).device
    generator = torch.Generator(device).manual_seed(seed)
    prompts = torch.tensor([pair[0] for pair in rows] + [pair[1] for pair in rows], device=device)
    cache = Cache(net, len(prompts), prompts.shape[1] + cells, device)
    hidden = net.run(net[LANGUAGE + "embed_tokens.weight"][prompts], cache)[:, -1:]
    columns = []
    for _ in range(cells):
        with_words, without = net.logits(hidden)[:, 0].float().chunk(2)
        logits = without + guidance * (with_words - without)
        if temperature:
            codes = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
        else:
            codes = logits.argmax(-1, keepdim=True)
        columns.append(codes)
        hidden = net.run(net.embedded(torch.cat((codes, codes))), cache)
    return torch.cat(columns, dim=1)

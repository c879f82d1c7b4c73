"""``train image_ar_small``, ``train image_ar``, ``train image_sprites``: autoregressive models of image codes, given a prompt.

The small model has 6 layers and 8 x 8 codes. The large model has 12 layers and 16 x 16 codes. The large model starts from the
small model, which learns words and codes on short sequences. The sprite model starts from the large model's words and layers;
its codes are patches of the picture, and in the second stage it learns fewer concepts in one style, and compositions of them.

The class is transformers' Janus over [begin, words …, picture, codes …]. Norm weights stay at 1, since the matrices that follow
can absorb any scale. Axis names: ``batch``, ``place``, ``hidden``, ``code``.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import JanusConfig, JanusForConditionalGeneration

from specviz.drafting.networks.weights import read_weights, write_weights
from specviz.engine.cache import CACHE_ARGUMENT, KeyValues
from specviz.models.cache import exclusive_loading
from specviz.models.image.image import CELL, janus_config
from specviz.models.image.load import SHIPPED
from specviz.models.image.prompts import PROMPT_TOKENS, words_file
from specviz.training.driver import Job, Schedule, Step, TrainState
from specviz.training.families import compositions, emoji
from specviz.training.families.emoji import (
    Batches,
    code_pictures,
    corrupt_codes,
    patch_encoder,
    patches,
    training_names,
    vq_model,
    word_prompts,
)
from specviz.training.parallel import products
from specviz.training.phrases import phrases
from specviz.training.registry import WEIGHTS, Recipe

LAYERS = "model.language_model.layers."
PREFIXES = ("model.language_model.", "model.generation_")
"""Name prefixes of the parameters for image generation. The class also has vision, text output and an image tokenizer."""
ADDS = ("o_proj.weight", "down_proj.weight")


def new_model(config: Mapping[str, Any], codebook: Tensor, seed: int = 0) -> Any:
    """Return a model with random weights and code embeddings from ``codebook`` [code, dim]."""
    torch.manual_seed(seed)
    with exclusive_loading():
        model = JanusForConditionalGeneration(JanusConfig(**config))
    with torch.no_grad():
        model.model.generation_embeddings.weight.copy_(codebook)
        for name, value in drawing(model).items():
            if value.ndim == 2 and name.startswith(LAYERS):
                value.normal_(std=value.shape[1] ** -0.5)
            if name.endswith(ADDS):
                value.mul_(0.3)
    learning = learned(model)
    for name, value in model.named_parameters():
        value.requires_grad_(name in learning)
    return model


def drawing(model: Any) -> dict[str, nn.Parameter]:
    """Return the parameters for image generation; the shipped file contains only these."""
    return {name: value for name, value in model.named_parameters() if name.startswith(PREFIXES)}


def learned(model: Any) -> dict[str, nn.Parameter]:
    """Return the parameters to train: all of :func:`drawing` but the norms."""
    return {name: value for name, value in drawing(model).items() if not name.endswith("norm.weight")}


@torch.no_grad()
def stack(small: Mapping[str, Tensor], model: Any) -> None:
    """Initialise a model from a ``small`` one with fewer layers: each layer is followed by copies that add nothing.

    Parameters of another shape, such as the embeddings of other codes, keep their initial values.
    """
    times = model.config.text_config.num_hidden_layers // len({name.split(".")[3] for name in small if name.startswith(LAYERS)})
    for name, value in drawing(model).items():
        if not name.startswith(LAYERS):
            if small[name].shape == value.shape:
                value.copy_(small[name])
            continue
        layer, _, rest = name.removeprefix(LAYERS).partition(".")
        number, copy = divmod(int(layer), times)
        value.copy_(small[f"{LAYERS}{number}.{rest}"])
        if copy and name.endswith(ADDS):
            value.zero_()


def hidden_states(model: Any, prompts: Tensor, codes: Tensor) -> Tensor:
    """Return the last hidden states [batch, place, hidden] of ``prompts`` [batch, place] followed by ``codes`` [batch, place]."""
    rows = (model.get_input_embeddings()(prompts), model.prepare_embeddings_for_image_generation(codes))
    return model.model.language_model(inputs_embeds=torch.cat(rows, 1), use_cache=False).last_hidden_state


def loss(model: Any, prompts: Tensor, codes: Tensor, read: Tensor | None = None) -> Tensor:
    """Return the mean cross-entropy in nats of ``codes`` [batch, place], given ``prompts`` [batch, word] and previous codes.

    ``read`` [batch, place]: codes that the model reads as previous codes; None: ``codes``.
    """
    states = hidden_states(model, prompts, (codes if read is None else read)[:, :-1])[:, prompts.shape[1] - 1 :]
    return F.cross_entropy(model.model.generation_head(states).flatten(0, 1).float(), codes.flatten())


def guided(both: Sequence[Tensor], strength: float) -> Tensor:
    """Return the logits with classifier-free guidance from ``both``, the logits with and without the prompt."""
    with_words, without = both
    return without + strength * (with_words - without)


@torch.inference_mode()
def draw(model: Any, prompts: Tensor, empty: Tensor, cells: int, guidance: float, seed: int) -> Tensor:
    """Sample codes [picture, cell] at temperature 1 for ``prompts`` [picture, word], with guidance against ``empty`` prompts."""
    generator = torch.Generator(prompts.device).manual_seed(seed)
    cache = KeyValues([None] * model.config.text_config.num_hidden_layers, prompts.shape[1] + cells).cache
    rows, columns = model.get_input_embeddings()(torch.cat((prompts, empty))), list[Tensor]()
    while len(columns) < cells:
        states = model.model.language_model(inputs_embeds=rows, use_cache=True, **{CACHE_ARGUMENT: cache}).last_hidden_state
        logits = guided(model.model.generation_head(states[:, -1:])[:, 0].float().chunk(2), guidance)
        columns.append(torch.multinomial(logits.softmax(-1), 1, generator=generator))
        rows = model.prepare_embeddings_for_image_generation(columns[-1].repeat(2, 1))
    return torch.cat(columns, 1)


PARTS = 4
"""Number of parts of an update on a CPU: the activations of a part, three pictures of 16 x 16 codes, fit into a core's
cache.
"""
MISREAD = 0.15
"""Maximum share of wrong codes in pictures from the data."""
TIMES = 3
"""Number of updates for which pictures are generated at once, and number of times that each picture is read."""
SCHEDULE: tuple[tuple[float, dict[tuple[int, bool], float]], ...] = (
    (0.35, {(16, False): 0.44, (1, False): 0.1, (2, False): 0.1, (1, True): 0.1, (2, True): 0.13, (4, True): 0.13}),
    (1.00, {(16, False): 0.74, (8, False): 0.06, (4, True): 0.1, (2, True): 0.1}),
)
"""Periods (end as a share of the time, frequencies). A frequency is for (sixteenths of a picture to read, whether generated)."""
SPRITES_MISREAD = 0.4
"""Maximum share of wrong codes in the second stage."""
Draw = Callable[[Tensor, Tensor, int, int], Tensor]
"""Function that generates codes [picture, place], from prompts, empty prompts [picture, word], a number of places and a seed."""


def length(share: float, generator: float, grid: int) -> tuple[int, bool]:
    """Return the number of codes to read of a picture with ``grid`` rows, and whether the model generates the picture.

    ``generator``: random number from 0 to 1.
    """
    kinds = next(kinds for end, kinds in SCHEDULE if share < end or end == 1)
    for (part, own), likely in kinds.items():
        generator -= likely
        if generator < 0:
            break
    return max(1, part * grid // 16) * grid, own


class Curriculum:
    """Source of batches of about equal cost: prompts [picture, word], codes and codes as read [picture, place]."""

    def __init__(self, batches: Batches, draw: Draw, grid: int, count: int, seed: int = 0) -> None:
        """``count``: number of pictures of ``grid`` x ``grid`` codes in an update, if read as a whole."""
        self.batches, self.draw, self.grid, self.count, self.seed = batches, draw, grid, count, seed
        self.generator = torch.Generator().manual_seed(seed)
        self.drawn = Counter[int]()
        self.waiting = defaultdict[int, list[tuple[Tensor, Tensor, Tensor]]](list)

    def next(self, share: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return the batch of an update after ``share`` of the time."""
        places, own = length(share, float(torch.rand((), generator=self.generator)), self.grid)
        count = max(1, self.count * (PROMPT_TOKENS + self.grid**2) // (PROMPT_TOKENS + places))
        if not own:
            prompts, codes = self.batches.draw(count)
            codes = codes[:, :places].contiguous()
            return prompts, codes, corrupt_codes(codes, MISREAD, self.generator)
        if not self.waiting[places]:
            prompts, empty, right = self.batches.guided_batch(count * TIMES)
            codes = self.draw(prompts, empty, places, self.seed + places * 10**6 + self.drawn[places])
            self.drawn[places] += len(right)
            parts = [part for _ in range(TIMES) for part in torch.randperm(len(right)).to(right.device).chunk(TIMES)]
            self.waiting[places] = [(prompts[part], right[part, :places], codes[part]) for part in parts]
        return self.waiting[places].pop()


class ImageArTraining(TrainState):
    """Training of an image model."""

    unit = "codes"

    def __init__(self, recipe: Recipe, settings: Schedule, device: torch.device) -> None:
        """Create a new model, initialised from the recipe's ``start`` if that has the same prompt tokenizer."""
        self.prompts, shape = word_prompts(), recipe.shape
        codec, self.style = shape.get("codec", "image_vq"), shape.get("style", "")
        self.grid, self.guidance, self.data = shape["grid"], shape["guidance"], code_pictures(shape["grid"], codec)
        vectors = vq_model()[0].quantize.embedding.weight if codec == "image_vq" else patches()[0].flatten(1)
        sizes: dict[str, Any] = {"codes": len(vectors), "dim": vectors.shape[1]}
        if codec != "image_vq":
            sizes["multiplier"] = (1, 1)
        self.sources = {"codebook": self.data.codebook, "digest_of_prompts": self.prompts.digest}
        self.config = janus_config(self.grid, prompts=self.prompts.size, **sizes, **shape["text"])
        self.model: Any = new_model(self.config, vectors)
        start = WEIGHTS / f"{shape.get('start', '')}.safetensors"
        if start.exists():
            weights, facts = read_weights(start)
            if facts.get("digest_of_prompts") == self.prompts.digest:
                print(f"starts from {start.stem}", flush=True)
                stack(weights, self.model)
        self.model.to(device).set_attn_implementation("sdpa")
        self.batches = Batches(self.data, self.prompts, device, free=shape.get("free", 0.0))
        self.held_out = self.batches.held_out_pictures(48)
        self.second = ("sprites", shape.get("alone", 1.0))
        super().__init__(settings, learned(self.model))

    def begin(self) -> None:
        """Start a new curriculum. A resumed run has a new seed."""
        self.curriculum = Curriculum(self.batches, self.draw_codes, self.grid, self.settings.batch, self.progress.updates)

    def enter(self, stage: str) -> None:
        """Begin the second stage: the sprites' concepts in one style, and compositions."""
        super().enter(stage)
        labels, encode = phrases("emoji")["sprites"], patch_encoder()[0]
        self.batches.narrow(labels, self.style, compositions.Compositions(labels, self.style, self.grid, CELL, encode).draw)

    def draw_codes(self, prompts: Tensor, empty: Tensor, places: int, seed: int) -> Tensor:
        """Return codes generated by the averaged model, on all cores of a CPU."""
        with self.using(self.optimizer.averaged()):
            model = copy.deepcopy(self.model).to(products(self.device))
        model.set_attn_implementation("eager")  # torch's fused attention is slow for single queries on CPUs
        parts = torch.arange(len(prompts)).chunk(self.settings.workers)

        def own(part: Tensor) -> Tensor:
            return draw(model, prompts[part], empty[part], places, self.guidance, seed + int(part[0]))

        with ThreadPoolExecutor(len(parts)) as pool:
            return torch.cat(list(pool.map(own, parts)))

    def step(self, share: float) -> Step:
        """Return loss and gradients of the curriculum's next batch; in the second stage, of whole pictures."""
        if self.progress.stage:
            prompts, codes = self.batches.draw(self.settings.batch)
            batch = (prompts, codes, corrupt_codes(codes, SPRITES_MISREAD, self.curriculum.generator))
        else:
            batch = self.curriculum.next(share)
        pictures = len(batch[0])
        self.part = -(-pictures // (PARTS if self.device.type == "cpu" else 1))

        def part_loss(rows: Sequence[int]) -> Tensor:
            part = slice(rows[0], rows[-1] + 1)
            return loss(self.model, *(tensor[part] for tensor in batch)) * len(rows) / pictures

        return self.learn(range(pictures), part_loss, batch[1].numel())

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        return {"held_out": float(loss(self.model, *self.held_out))}

    def metrics(self) -> dict[str, float]:
        """Return the loss and, if compositions were learned, the share of held-out ones that are nearest to their own picture."""
        if not self.batches.compose:
            return self.measure()
        rows = [self.prompts.rows(text) for text in compositions.held_out()]
        prompts, empty = (torch.tensor([getattr(row, side) for row in rows]) for side in ("conditional", "unconditional"))
        codes = self.draw_codes(prompts.to(self.device), empty.to(self.device), self.grid**2, 0).cpu()
        cells = patches()[0][codes].unflatten(1, (self.grid, self.grid)).transpose(2, 3)  # [picture, row, pixel row, ..]
        drawn = ((cells.flatten(3, 4).flatten(1, 2) + 1) * 127.5).round().byte().numpy()
        found = [compositions.nearest(picture) == number for number, picture in enumerate(drawn)]
        return {**self.measure(), "compositions": sum(found) / len(found)}

    def save(self, path: Path, card: dict[str, str]) -> None:
        """Write the parameters for image generation, with config and digests in the card."""
        tensors, sums = drawing(self.model), hashlib.sha256()
        for name in sorted(tensors):
            sums.update(tensors[name].detach().float().cpu().numpy().tobytes())
        facts = {
            "config": json.dumps(self.config), "prompts": self.prompts.description,
            "guidance": str(self.guidance), "digest": sums.hexdigest()[:16], **self.sources,
        }  # fmt: skip
        write_weights(path, tensors, card | facts)


def make(job: Job) -> None:
    """Train, measure on held-out concepts, and write the weights, and the words of a shipped model's prompts."""
    batches = emoji.run(job, partial(ImageArTraining, job.recipe)).batches
    for model in (model for model, recipe in SHIPPED.items() if recipe in (job.recipe.name, job.recipe.writes)):
        names = training_names(batches.concepts, batches.styles)
        words_file(model).write_text("\n".join(names) + "\n", "utf-8")

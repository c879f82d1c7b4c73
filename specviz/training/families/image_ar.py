"""``train image_ar_small``, ``image_ar``: prompts and picture codes in, autoregressive models out.

The small one draws 8 x 8 codes with 6 layers; the other 16 x 16 with 12 layers, and starts from the small one: what words mean
and what a code looks like is learned where pictures are short. The class is transformers' Janus over [begin, words …, picture,
codes …]; norm weights stay at one: the matrices behind them learn the same.
Axis names: ``batch``, ``place``, ``hidden``, ``code``.
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
from specviz.engine.cache import CACHE_ARGUMENT, GrowingCache
from specviz.models.image.image import SHIPPED
from specviz.models.image.image_shape import SHIPPED_VQ, TextShape, VqShape, janus_config
from specviz.models.image.image_vocabulary import WORDS
from specviz.models.image.prompts import PROMPT_TOKENS
from specviz.models.loading_lock import exclusive_loading
from specviz.training.driver import Job, Schedule, Step, TrainState
from specviz.training.families import emoji
from specviz.training.families.emoji import Batches, coded, learned_names, misread, vq_model, word_prompts
from specviz.training.parallel import products
from specviz.training.registry import WEIGHTS, Recipe

LAYERS = "model.language_model.layers."
PREFIXES = ("model.language_model.", "model.generation_")
"""Beginnings of the names of what draws; the rest of the class sees pictures, writes text, or is the picture tokenizer's."""
ADDS = ("o_proj.weight", "down_proj.weight")


def fresh(vq: VqShape, text: TextShape, grid: int, codebook: Tensor, seed: int = 0) -> Any:
    """A model drawn anew, whose codes start from their vectors [code, dim]."""
    torch.manual_seed(seed)
    with exclusive_loading():
        model = JanusForConditionalGeneration(JanusConfig(**janus_config(vq, text, grid)))
    model.set_attn_implementation("eager")  # backwards and for single queries torch's fused attention is slow on processors
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
    """The parameters that ship."""
    return {name: value for name, value in model.named_parameters() if name.startswith(PREFIXES)}


def learned(model: Any) -> dict[str, nn.Parameter]:
    """Those that are moved: all but the norms."""
    return {name: value for name, value in drawing(model).items() if not name.endswith("norm.weight")}


@torch.no_grad()
def stack(small: Mapping[str, Tensor], model: Any) -> None:
    """Start a deep model from one with fewer layers: behind each come copies that look at the same and add nothing yet."""
    times = model.config.text_config.num_hidden_layers // len({name.split(".")[3] for name in small if name.startswith(LAYERS)})
    for name, value in drawing(model).items():
        if not name.startswith(LAYERS):
            value.copy_(small[name])
            continue
        layer, _, rest = name.removeprefix(LAYERS).partition(".")
        number, copy = divmod(int(layer), times)
        value.copy_(small[f"{LAYERS}{number}.{rest}"])
        if copy and name.endswith(ADDS):
            value.zero_()


def hidden_states(model: Any, prompts: Tensor, codes: Tensor) -> Tensor:
    """Prompts [batch, place] and codes [batch, place] to final hidden states [batch, place, hidden] of all places."""
    rows = (model.get_input_embeddings()(prompts), model.prepare_embeddings_for_image_generation(codes))
    return model.model.language_model(inputs_embeds=torch.cat(rows, dim=1), use_cache=False).last_hidden_state


def loss(model: Any, prompts: Tensor, codes: Tensor, read: Tensor | None = None) -> Tensor:
    """Mean cross-entropy in nats of codes [batch, place] given prompts [batch, word] and the codes before, as they are
    or, for what is learned from, as ``read`` has them."""
    states = hidden_states(model, prompts, (codes if read is None else read)[:, :-1])[:, prompts.shape[1] - 1 :]
    return F.cross_entropy(model.model.generation_head(states).flatten(0, 1).float(), codes.flatten())


def guided(both: Sequence[Tensor], strength: float) -> Tensor:
    """Logits with words and without, after guidance."""
    with_words, without = both
    return without + strength * (with_words - without)


@torch.inference_mode()
def draw(model: Any, prompts: Tensor, empty: Tensor, cells: int, guidance: float, seed: int) -> Tensor:
    """Codes [picture, cell] at temperature 1 for prompts [picture, word] with guidance against ``empty`` ones."""
    generator = torch.Generator(prompts.device).manual_seed(seed)
    cache = GrowingCache(model.config.text_config.num_hidden_layers, prompts.shape[1] + cells).cache
    rows, columns = model.get_input_embeddings()(torch.cat((prompts, empty))), list[Tensor]()
    while len(columns) < cells:
        states = model.model.language_model(inputs_embeds=rows, use_cache=True, **{CACHE_ARGUMENT: cache}).last_hidden_state
        logits = guided(model.model.generation_head(states[:, -1:])[:, 0].float().chunk(2), guidance)
        columns.append(torch.multinomial(logits.softmax(-1), 1, generator=generator))
        rows = model.prepare_embeddings_for_image_generation(columns[-1].repeat(2, 1))
    return torch.cat(columns, dim=1)


SMALL = "image_ar_small"
PARTS = 4
"""A processor reads an update in so many parts: what one of three pictures of 16 x 16 codes leaves behind still fits a core's
cache."""
MISREAD = 0.15
"""Up to this share of the codes that are read as given is wrong."""
TIMES = 3
"""So many times as many pictures are drawn at once as an update reads, and each is read so many times."""
SCHEDULE: tuple[tuple[float, dict[tuple[int, bool], float]], ...] = (
    (0.35, {(16, False): 0.44, (1, False): 0.1, (2, False): 0.1, (1, True): 0.1, (2, True): 0.13, (4, True): 0.13}),
    (1.00, {(16, False): 0.74, (8, False): 0.06, (4, True): 0.1, (2, True): 0.1}),
)
"""Until which share of the time how often so many sixteenths of a picture are read, as given or as drawn (True)."""
Draw = Callable[[Tensor, Tensor, int, int], Tensor]
"""Prompts with words and without [picture, word], how many places, and a seed, to the model's own codes [picture, place]."""


def length(share: float, generator: float, grid: int) -> tuple[int, bool]:
    """How many codes of a picture of ``grid`` rows are read, and whether as drawn; ``generator`` is uniform from 0 to 1."""
    kinds = next(kinds for end, kinds in SCHEDULE if share < end or end == 1)
    for (part, own), likely in kinds.items():
        generator -= likely
        if generator < 0:
            break
    return max(1, part * grid // 16) * grid, own


class Curriculum:
    """Prompts [picture, word], codes and codes as read [picture, place], an update's at a time and all about equally dear."""

    def __init__(self, batches: Batches, draw: Draw, grid: int, count: int, seed: int = 0) -> None:
        """``count`` is how many whole pictures of ``grid`` x ``grid`` codes an update reads."""
        self.batches, self.draw, self.grid, self.count, self.seed = batches, draw, grid, count, seed
        self.generator = torch.Generator().manual_seed(seed)
        self.drawn = Counter[int]()
        self.waiting = defaultdict[int, list[tuple[Tensor, Tensor, Tensor]]](list)

    def next(self, share: float) -> tuple[Tensor, Tensor, Tensor]:
        """An update's examples when ``share`` of the time is gone: of short beginnings as many as cost what whole ones do."""
        places, own = length(share, float(torch.rand((), generator=self.generator)), self.grid)
        count = max(1, self.count * (PROMPT_TOKENS + self.grid**2) // (PROMPT_TOKENS + places))
        if not own:
            prompts, codes = self.batches.draw(count)
            codes = codes[:, :places].contiguous()
            return prompts, codes, misread(codes, MISREAD, self.generator)
        if not self.waiting[places]:
            prompts, empty, right = self.batches.guided_batch(count * TIMES)
            codes = self.draw(prompts, empty, places, self.seed + places * 10**6 + self.drawn[places])
            self.drawn[places] += len(right)
            parts = [part for _ in range(TIMES) for part in torch.randperm(len(right)).to(right.device).chunk(TIMES)]
            self.waiting[places] = [(prompts[part], right[part, :places], codes[part]) for part in parts]
        return self.waiting[places].pop()


class ImageArTraining(TrainState):
    """One of the image models, and its curriculum of prompts and pictures."""

    unit = "codes"

    def __init__(self, recipe: Recipe, settings: Schedule, device: torch.device) -> None:
        """A new model, or the small one grown where it is there and speaks of the same codes in the same words."""
        self.prompts, shape = word_prompts(), recipe.shape
        self.grid, self.guidance, self.data = shape["grid"], shape["guidance"], coded(shape["grid"])
        self.shape = TextShape(prompts=self.prompts.size, **shape["text"])
        self.model: Any = fresh(SHIPPED_VQ, self.shape, self.grid, vq_model()[0].quantize.embedding.weight)
        smaller = WEIGHTS / f"{SMALL}.safetensors"
        if recipe.name != SMALL and smaller.exists():
            weights, facts = read_weights(smaller)
            if (facts.get("codebook"), facts.get("digest_of_prompts")) == (self.data.codebook, self.prompts.digest):
                print(f"starts from {SMALL}", flush=True)
                stack(weights, self.model)
        self.model.to(device)
        self.batches = Batches(self.data, self.prompts, device)
        self.held_out = self.batches.kept_out(48)
        super().__init__(settings, learned(self.model))

    def begin(self) -> None:
        """A resumed training meets other pictures."""
        self.curriculum = Curriculum(self.batches, self.drawn, self.grid, self.settings.batch, self.progress.updates)

    def drawn(self, prompts: Tensor, empty: Tensor, places: int, seed: int) -> Tensor:
        """What the model as it is draws for these prompts; a processor's cores share them."""
        with self.using(self.optimizer.averaged()):
            model = copy.deepcopy(self.model).to(products(self.device))
        parts = torch.arange(len(prompts)).chunk(self.settings.workers)

        def own(part: Tensor) -> Tensor:
            return draw(model, prompts[part], empty[part], places, self.guidance, seed + int(part[0]))

        with ThreadPoolExecutor(len(parts)) as pool:
            return torch.cat(list(pool.map(own, parts)))

    def step(self, share: float) -> Step:
        """Mean loss on words, codes and codes as read [picture, place], and its gradients."""
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

    def save(self, path: Path, card: dict[str, str]) -> None:
        """With what loading needs to know; ``digest`` tells these weights from others."""
        tensors, sums = drawing(self.model), hashlib.sha256()
        for name in sorted(tensors):
            sums.update(tensors[name].detach().float().cpu().numpy().tobytes())
        facts = {
            "config": json.dumps(janus_config(SHIPPED_VQ, self.shape, self.grid)), "prompts": self.prompts.description,
            "guidance": str(self.guidance), "codebook": self.data.codebook, "digest": sums.hexdigest()[:16],
            "digest_of_prompts": self.prompts.digest,
        }  # fmt: skip
        write_weights(path, tensors, card | facts)


def make(job: Job) -> None:
    """Train, measure on held-out concepts, write the recipe's weights."""
    emoji.run(job, partial(ImageArTraining, job.recipe))
    if job.recipe.name in SHIPPED.values():
        WORDS.write_text("\n".join(learned_names()) + "\n", "utf-8")

"""``train image_ar_small``, ``image_ar``: prompts and picture codes in, autoregressive models out.

The small one draws 8 x 8 codes with 6 layers; the other 16 x 16 with 12 layers, and starts from the small one: what words mean
and what a code looks like is learned where pictures are short.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from specviz.drafters.networks.weights import read_weights, write_weights
from specviz.models.device import choose_device
from specviz.models.image.image import SHIPPED
from specviz.models.image.image_shape import SHIPPED_VQ, TextShape, janus_config
from specviz.models.image.image_vocabulary import WORDS
from specviz.training import driver
from specviz.training.driver import Schedule, Step, TrainState
from specviz.training.families import emoji
from specviz.training.families.image_codes import Batches, coded, learned_names, misread, vq_model, word_prompts
from specviz.training.families.image_net import ImageNet, draw, fresh, halved, learned, stacked
from specviz.training.registry import WEIGHTS, Job

MISREAD = 0.15
"""Up to this share of the codes that are read as given is wrong."""
PROMPT = 16
"""Places of a prompt."""
SCHEDULE: tuple[tuple[float, dict[tuple[int, bool], float]], ...] = (
    (0.35, {(16, False): 0.44, (1, False): 0.1, (2, False): 0.1, (1, True): 0.1, (2, True): 0.13, (4, True): 0.13}),
    (1.00, {(16, False): 0.74, (8, False): 0.06, (4, True): 0.1, (2, True): 0.1}),
)
"""Until which share of the time how often so many sixteenths of a picture are read, as given or as drawn (True)."""

Asked = Callable[[int], tuple[Tensor, Tensor, Tensor]]
"""So many prompts with words and without [picture, word], and the right codes [picture, place]."""


class Curriculum:
    """Prompts [picture, word], codes and codes as read [picture, place], an update's at a time and all about equally dear."""

    def __init__(
        self, batches: Batches, net: Callable[[], ImageNet], grid: int, count: int, guidance: float,
        workers: int | None, seed: int = 0,
    ) -> None:  # fmt: skip
        """``count`` is how many whole pictures of ``grid`` x ``grid`` codes an update reads; ``net`` the model as it is."""
        self.batches, self.net, self.grid, self.count = batches, net, grid, count
        self.guidance, self.workers, self.seed = guidance, workers, seed
        self.generator = torch.Generator().manual_seed(seed)
        self.drawings: dict[int, OwnDrawings] = {}

    def next(self, share: float) -> tuple[Tensor, Tensor, Tensor]:
        """An update's examples when ``share`` of the time is gone."""
        places, own = length(share, float(torch.rand((), generator=self.generator)), self.grid)
        if own:
            words, right, drawn = self._drawn(places).next(self.net)
            return words, right, drawn
        words, codes = self.batches.draw(many(places, self.grid, self.count, PROMPT))
        codes = codes[:, :places].contiguous()
        return words, codes, misread(codes, MISREAD, self.generator)

    def _drawn(self, places: int) -> OwnDrawings:
        if places not in self.drawings:
            count = many(places, self.grid, self.count, PROMPT)
            self.drawings[places] = OwnDrawings(
                self.batches.guided_batch, places, count, self.guidance, self.workers, seed=self.seed + places * 10**6
            )
        return self.drawings[places]


def length(share: float, generator: float, grid: int) -> tuple[int, bool]:
    """How many codes of a picture of ``grid`` rows are read, and whether as drawn; ``generator`` is uniform from 0 to 1."""
    kinds = next(kinds for end, kinds in SCHEDULE if share < end or end == 1)
    for (part, own), likely in kinds.items():
        generator -= likely
        if generator < 0:
            break
    return max(1, part * grid // 16) * grid, own


def many(places: int, grid: int, count: int, words: int) -> int:
    """How many pictures of which only ``places`` are read cost as much as ``count`` whole ones."""
    return max(1, count * (words + grid * grid) // (words + places))


class OwnDrawings:
    """Prompts [picture, word], right codes and own codes [picture, place] of the first ``places``, ``count`` at a time.

    ``times`` times as many are drawn at once, and each of them is given ``times`` times before the next are drawn.
    """

    def __init__(
        self, ask: Asked, places: int, count: int, guidance: float, workers: int | None, times: int = 3, seed: int = 0
    ) -> None:
        self.ask, self.places, self.count, self.guidance, self.workers = ask, places, count, guidance, workers
        self.times, self.seed = times, seed
        self.drawings: tuple[Tensor, ...] = ()
        self.waiting: list[Tensor] = []

    def next(self, net: Callable[[], ImageNet]) -> tuple[Tensor, Tensor, Tensor]:
        """The next ``count``; ``net`` is the model as it is now, asked for when drawings have run out."""
        if not self.waiting:
            self._draw(halved(net()))
        chosen = self.waiting.pop()
        words, right, own = (tensor[chosen] for tensor in self.drawings)
        return words, right, own

    def _draw(self, net: ImageNet) -> None:
        with_words, without, right = self.ask(self.count * self.times)
        parts = torch.arange(len(right)).chunk(self.workers or 1)
        rows = list(zip(with_words.tolist(), without.tolist(), strict=True))

        def drawn(part: Tensor) -> Tensor:
            chosen = [rows[place] for place in part.tolist()]
            return draw(net, chosen, self.places, self.guidance, self.seed + int(part[0]))

        with ThreadPoolExecutor(len(parts)) as pool:
            own = torch.cat(list(pool.map(drawn, parts)))
        self.seed += len(right)
        self.drawings = (with_words, right[:, : self.places], own)
        self.waiting = [part for _ in range(self.times) for part in torch.randperm(len(right)).to(right.device).chunk(self.times)]


SMALL = "image_ar_small"
GUIDANCE = {SMALL: 3.0, "image_ar": 2.0}
"""How hard each draws: one that knows its pictures is sure already, and at 3 they break up."""
GRIDS = {SMALL: 8, "image_ar": 16}
SHAPES = {SMALL: TextShape(layers=6), "image_ar": TextShape(layers=12)}
PARTS = 4
"""A processor reads an update in so many parts: what one of three pictures of 16 x 16 codes leaves behind still fits a core's
cache."""


class ImageArTraining(TrainState):
    """One of the image models, and its curriculum of prompts and pictures."""

    unit = "codes"

    def __init__(self, name: str, settings: Schedule, device: torch.device, provenance: str) -> None:
        """``provenance`` says what was spent on the recipe's own weights, where training goes on from those."""
        self.name, self.grid = name, GRIDS[name]
        self.prompts, self.data = word_prompts(), coded(self.grid)
        self.shape = replace(SHAPES[name], prompts=self.prompts.size)
        self.parameters = _begun(name, self.shape, self.prompts.digest, self.data.codebook, device, bool(provenance))
        self.batches = Batches(self.data, self.prompts, device, 2 + provenance.count("updates"))
        self.net, self.held_out = ImageNet(self.parameters, self.shape), self.batches.kept_out(48)
        super().__init__(settings, learned(self.parameters))
        kept_out = len(self.data.part(held_out=True))
        print(f"{len(self.batches.concepts)} concepts to learn, {kept_out} kept out; {self.shape}", flush=True)

    def begin(self) -> None:
        """A resumed training meets other pictures."""
        workers = self.settings.workers if self.device.type == "cpu" else None
        self.curriculum = Curriculum(
            self.batches, lambda: ImageNet({**self.parameters, **self.optimizer.averaged()}, self.shape), self.grid,
            self.settings.batch, GUIDANCE[self.name], workers, self.progress.updates,
        )  # fmt: skip

    def step(self, share: float) -> Step:
        """Mean loss on words, codes and codes as read [picture, place], and its gradients."""
        batch = self.curriculum.next(share)
        pictures, many = len(batch[0]), PARTS if self.device.type == "cpu" else 1
        self.part = -(-pictures // many)

        def loss(rows: Sequence[int]) -> Tensor:
            part = slice(rows[0], rows[-1] + 1)
            return self.net.loss(*(tensor[part] for tensor in batch)) * len(rows) / pictures

        return self.learn(range(pictures), loss, batch[1].numel())

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        return {"held_out": float(self.net.loss(*self.held_out))}

    def facts(self) -> dict[str, str]:
        """What else the card says; ``digest`` tells these weights from others."""
        sums, prompts = hashlib.sha256(), self.prompts.description
        for key in sorted(self.parameters):
            sums.update(self.parameters[key].detach().float().cpu().numpy().tobytes())
        return {
            "config": json.dumps(janus_config(SHIPPED_VQ, self.shape, self.grid)), "prompts": prompts,
            "guidance": str(GUIDANCE[self.name]), "codebook": self.data.codebook, "digest": sums.hexdigest()[:16],
            "digest_of_prompts": hashlib.sha256(prompts.encode()).hexdigest()[:16],
        }  # fmt: skip


def make(job: Job) -> None:
    """Train, measure on held-out concepts, write the recipe's weights."""
    name, device = job.recipe.name, choose_device(job.device)
    fits = _start(name, word_prompts().digest, coded(GRIDS[name]).codebook) is not None
    provenance = driver.provenance_of(job) if fits else ""
    state = ImageArTraining(name, driver.settings_for(job, device, Schedule), device, provenance)
    driver.train(state, driver.checkpoint_of(name), provenance=provenance)

    def save(path: Path, facts: dict[str, str]) -> None:
        write_weights(path, dict(state.parameters), facts)

    line = emoji.line(f"{state.progress.tokens} codes read")
    driver.finish(job, state, state.measure(), line, save, emoji.LICENCE, **state.facts())
    if name in SHIPPED.values():
        WORDS.write_text("\n".join(learned_names()) + "\n", "utf-8")


def _begun(
    name: str, shape: TextShape, prompts: str, codebook: str, device: torch.device, again: bool
) -> dict[str, nn.Parameter]:
    """New parameters, or those of the first smaller model that is there, grown; ``again`` the model's own."""
    net_vq, _ = vq_model()
    parameters = fresh(SHIPPED_VQ, shape, GRIDS[name], net_vq.quantize.embedding.weight)
    for smaller in [*([name] if again else []), *([SMALL] if name != SMALL else [])]:
        if weights := _start(smaller, prompts, codebook):
            print(f"starts from {smaller}", flush=True)
            stacked(weights, shape.layers, parameters)
            break
    return {key: nn.Parameter(value.data.to(device)) for key, value in parameters.items()}


def _start(name: str, prompts: str, codebook: str) -> dict[str, Tensor] | None:
    """A smaller model's weights, where they are there and speak of the same codes in the same words."""
    path = WEIGHTS / f"{name}.safetensors"
    if not path.exists():
        return None
    weights, facts = read_weights(path)
    if facts.get("codebook") != codebook or facts.get("digest_of_prompts") != prompts:
        return None
    return weights

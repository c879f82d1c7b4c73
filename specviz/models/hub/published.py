"""Safe reader of published drafting heads: a folder or hub repository, its settings, tensors, and layout.

Only safetensors are opened. Every shape is checked against the config and the target. A tensor unknown to our networks
is refused, since leaving it out would change the computation.

An unknown setting may change the computation without adding a tensor, and a head read without it silently drafts badly. So it
is refused by name. The meanings of settings are those of SafeAILab/EAGLE, sgl-project/SpecForge, Tencent/AngelSlim,
vllm-project/speculators, vLLM and NVIDIA's Model-Optimizer.

Layouts come from ``assets/head_layouts.toml``: how a folder is recognised, how names and settings are read.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from msgspec import Meta, Struct
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from specviz.errors import ModelUnavailable, SpecvizError, shown
from specviz.models.hub.cache_dir import Progress, no_progress
from specviz.models.hub.catalog import resolve, row_of
from specviz.models.hub.hub import fetch_repository
from specviz.models.hub.prepare import PICKLES
from specviz.paths import ASSETS

Stored = str | tuple["Stored", ...] | list["Stored"]
"""Name of a stored tensor; a tuple names tensors whose rows are joined, a list tensors that are stacked."""


@dataclass(frozen=True)
class Fit:
    """The target that heads must fit: its ``embedding`` and ``head`` [vocab, hidden] and its number of layers."""

    name: str
    layers: int
    embedding: Tensor
    head: Tensor

    @property
    def hidden(self) -> int:
        return self.head.shape[1]


@dataclass(frozen=True)
class Repository:
    """A folder of heads: its displayed name, its config.json, and the file of each tensor."""

    name: str
    config: Mapping[str, Any]
    files: Mapping[str, Path]

    def tensor(self, name: Stored) -> Tensor:
        """Return one tensor. Raises ModelUnavailable if its file is damaged."""
        if not isinstance(name, str):
            return (torch.stack if isinstance(name, list) else torch.cat)([self.tensor(part) for part in name])
        try:
            with safe_open(self.files[name], framework="pt") as file:
                tensor: Tensor = file.get_tensor(name)
                return tensor
        except (OSError, SafetensorError) as problem:
            raise ModelUnavailable(f"{self.files[name].name} of {self.name} is damaged ({problem}). Get it again.") from problem


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Guard the reading of the heads called ``name``. Raises ModelUnavailable for any error that their settings or tensors
    cause."""
    try:
        yield
    except (SpecvizError, MemoryError):
        raise
    except Exception as problem:  # an unexpected setting, or a tensor of a wrong kind
        raise ModelUnavailable(
            f"{name} has a setting or tensor that makes no sense ({type(problem).__name__}: {problem}). Get the heads again."
        ) from problem


def open_repository(name: str, progress: Progress = no_progress) -> Repository:
    """Open the heads called ``name``: a folder, a hub id, or a catalogued model from the hub that drafts for itself.

    Raises ModelUnavailable for pickles, damaged files, or missing weights.
    """
    place = resolve(name)
    if place.entry is not None and not place.repository:  # a model from the hub may hold MTP layers
        raise ModelUnavailable(f"{name} is a whole model, not heads for one. Give a hub id or a folder with heads.")
    folder = place.path or fetch_repository(place.repository, progress)
    stored = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    if not stored:
        suffixes = {file.suffix.lower() for file in folder.iterdir()} if folder.is_dir() else {folder.suffix.lower()}
        if suffixes & PICKLES or place.repository:
            raise ModelUnavailable(
                f"{name} has no safetensors, perhaps only pickles, which can run code when opened and are never read here. "
                "Choose heads stored as safetensors; or, where you trust them, get the files yourself and run `python -m specviz "
                "convert FILE` on your own machine."
            )
        raise ModelUnavailable(f"{name} holds no safetensors weights. Give the folder that holds the heads.")
    try:
        file = folder / "config.json"
        config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (OSError, ValueError, RecursionError) as problem:
        raise ModelUnavailable(f"The config.json of {name} cannot be read ({problem}). Get it again.") from problem
    if not isinstance(config, dict):
        raise ModelUnavailable(f"The config.json of {name} holds no settings. Get it again.")
    files: dict[str, Path] = {}
    for file in stored:
        try:
            with safe_open(file, framework="pt") as opened:
                files.update(dict.fromkeys(opened.keys(), file))
        except (OSError, SafetensorError) as problem:
            raise ModelUnavailable(f"{file.name} of {name} is damaged ({problem}). Get it again.") from problem
    return Repository(name, config, files)


def shaped(stored: Repository, names: Mapping[str, Stored], name: str, shape: Sequence[int]) -> Tensor:
    """Return the tensor ``name``, whose published name ``names`` gives. Raises ModelUnavailable if it is missing or has another
    shape."""
    if name not in names:
        raise ModelUnavailable(f"{stored.name} lacks the tensor {name}: get the heads again.")
    published, tensor = names[name], stored.tensor(names[name])
    if tuple(tensor.shape) != tuple(shape):
        found, wanted = (" x ".join(map(str, size)) for size in (tensor.shape, shape))
        raise ModelUnavailable(
            f"{published if isinstance(published, str) else name} of {stored.name} is {found} and should be {wanted}: these "
            "heads do not fit this target, or their config.json belongs to others."
        )
    return tensor


def tensors_of(
    stored: Repository, names: Mapping[str, Stored], shapes: Mapping[str, Sequence[int]], kind: str, also: Collection[str] = ()
) -> dict[str, Tensor]:
    """Return the tensors of these ``shapes``. Raises ModelUnavailable if one is missing or has another shape, or if the folder
    holds one that is neither among them nor in ``also``."""
    tensors = {name: shaped(stored, names, name, shape) for name, shape in shapes.items()}
    if strange := sorted(str(own) for name, own in names.items() if name not in shapes and name not in also):
        raise ModelUnavailable(f"{stored.name} holds {strange[0]}, which published {kind} heads do not have. Choose other heads.")
    return tensors


OURS = "Choose other heads, or leave the draft empty."
STRANGE = {
    "quantization_config": "says that the weights are quantised, but only plain ones are read",
    "residual_multiplier": "scales what each layer adds, which we do not compute",
    "embedding_multiplier": "scales the embedding, which we do not compute",
}
"""Settings with a known effect that is not computed here, with that effect."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "logit_scale": (1,),
    "position_embedding_type": ("rope",),
    "is_causal": (True,),
}
"""Accepted values of settings: those that describe the computation here. An unset one is accepted too."""
SIZES = frozenset(
    """hidden_size target_hidden_size num_attention_heads num_key_value_heads head_dim intermediate_size num_hidden_layers
    rms_norm_eps rope_theta rope_scaling rope_parameters partial_rotary_factor max_position_embeddings attention_bias mlp_bias
    layer_types sliding_window use_sliding_window max_window_layers architectures tie_word_embeddings model_type vocab_size
    draft_vocab_size""".split()
)
"""Settings that every reader of heads reads."""
HARMLESS = frozenset(
    """_attn_implementation _name_or_path attention_dropout auto_map chunk_size_feed_forward decoder_sparse_step dtype
    embed_requires_grad id2label initializer_range is_decoder is_encoder_decoder label2id length_penalty max_length
    min_length modal_type num_beam_groups num_beams num_return_sequences output_attentions output_hidden_states
    output_router_logits pretraining_tp problem_type repetition_penalty return_dict router_aux_loss_coef
    speculators_version target_model_type temperature top_k top_p torch_dtype transformers_version typical_p use_cache""".split()
)
"""Settings without effect on a forward pass: names, ids, training, generation, chunking of products."""

SIZE, POSITIVE = Annotated[int, Meta(ge=1)], Annotated[float, Meta(gt=0, le=sys.float_info.max)]
TOKEN = Annotated[int, Meta(ge=0)]
WORDS, NUMBERS, LAYER_IDS = tuple[str, ...], tuple[TOKEN, ...], tuple[Annotated[int, Meta(ge=-1)], ...]
_KINDS: dict[Any, tuple[str, Any]] = {
    SIZE: ("not a whole number above 0: these are not heads as published", None),
    POSITIVE: ("not a number above 0", None),
    WORDS: ("not a list of words", ()),
    TOKEN: ("not a token id", None),
    NUMBERS: ("not a list of whole numbers", ()),
    LAYER_IDS: ("not a list of layer numbers", ()),
    dict[str, Any]: ("not a group of settings", {}),
    bool: ("neither true nor false", False),
}
"""By kind of setting: the complaint about a value of another kind, and the default."""


@dataclass(frozen=True)
class Settings:
    """Settings of the heads called ``name``."""

    name: str
    values: Mapping[str, Any]

    def get(self, field: str, kind: Any, otherwise: Any = None) -> Any:
        """A setting of this ``kind``, by default ``otherwise`` or the kind's own. Raises ModelUnavailable for anything else."""
        value, (problem, default) = self.values.get(field), _KINDS[kind]
        value = next((one for one in (value, otherwise, default) if one is not None), None)
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError:
            raise self.refusal(f"has {field} {shown(value)}, which is {problem}") from None

    def section(self, field: str) -> Settings:
        """A setting that holds settings, none by default."""
        return Settings(self.name, self.get(field, dict[str, Any]))

    def refusal(self, what: str) -> ModelUnavailable:
        """Return the error for heads that do ``what``."""
        return ModelUnavailable(f"{self.name} {what}. {OURS}")

    def refuse_unknown(self, read: Collection[str], values: Mapping[str, Sequence[Any]]) -> None:
        """Raise ModelUnavailable for the first setting that may change the computation: a set one that is not in ``read``, or one
        with a value that is not among its ``values``."""
        values = {**NEUTRAL, **values}
        for field, value in self.values.items():
            names_a_token = field.endswith("_token_id") and field != "mask_token_id"  # block drafters read that one
            if field in HARMLESS or names_a_token or value is None or (field in read and field not in values):
                continue
            if field in values and value not in values[field]:
                known = " or ".join(str(good) for good in values[field])
                raise self.refusal(f"has {field} {shown(value)}, but our network computes {known or 'none'}")
            if field not in values and value and field in STRANGE:
                raise self.refusal(f"sets {field}: it {STRANGE[field]}")
            if field not in values and value:
                raise ModelUnavailable(
                    f"{self.name} sets {field} to {str(value)[:60]!r} in its config.json, which our reader does not know and "
                    f"will not leave out. {OURS} If it does not change the computation, remove it from a copy of the file."
                )

    def layers(self, most: int) -> int:
        """Number of a head's layers, 1 by default. Raises ModelUnavailable for more than ``most``, such as the number of its
        tensors: such a head would be built before the missing weights are noticed."""
        layers: int = self.get("num_hidden_layers", SIZE, 1)
        if layers > most:
            raise self.refusal(f"says num_hidden_layers {shown(layers)}, more than the {most} that are possible")
        return layers

    def windows(self, layers: int) -> tuple[int, ...]:
        """Sliding window of each layer, 0 for the whole text; () if no layer has one. Raises ModelUnavailable if ambiguous."""
        kinds, width = self.get("layer_types", WORDS), self.values.get("sliding_window")
        if not kinds:
            if width and self.values.get("use_sliding_window") is not False:
                raise ModelUnavailable(
                    f"{self.name} has a sliding_window of {shown(width)} and does not say for which layers (layer_types): "
                    "engines differ. Add layer_types to a copy of its config.json, or use_sliding_window: false "
                    "if it has none."
                )
            return ()
        if len(kinds) != layers or set(kinds) - {"full_attention", "sliding_attention"}:
            raise self.refusal(f"has layer_types {shown(kinds)} for {layers} layers, which our reader does not know")
        if "sliding_attention" not in kinds:
            return ()
        width = self.get("sliding_window", SIZE)
        return tuple(width if kind == "sliding_attention" else 0 for kind in kinds)

    def rotary(self, size: int, woven: bool = False) -> dict[str, Any]:
        """Return the conventions of rotary positions: ``theta``, ``rates``, ``rotary_scale`` and, for pictures, ``sections``.

        ``woven`` is the trainer's default of ``mrope_interleaved``: whether rates alternate between time, height and width.
        """
        nested = self.section("rope_parameters" if self.values.get("rope_parameters") else "rope_scaling")
        if "sliding_attention" in nested.values:  # one set per kind of layer; the trainer and engines use this one
            nested = nested.section("sliding_attention")
        rope = dict(nested.values)
        own = {field: rope.pop(field, None) or self.values.get(field) for field in ("rope_theta", "partial_rotary_factor")}
        numbers = Settings(self.name, own)
        theta, factor = numbers.get("rope_theta", POSITIVE, 1e4), numbers.get("partial_rotary_factor", POSITIVE, 1.0)
        kind, rotated = str(rope.get("rope_type", rope.get("type", "default"))), int(size * factor)
        said: dict[str, Any] = {"theta": theta}
        if sections := nested.get("mrope_section", NUMBERS):
            said |= {"sections": sections, "sections_woven": bool(rope.get("mrope_interleaved", woven))}
            if sum(sections) != rotated // 2 or len(sections) != 3:
                raise self.refusal(f"splits rotary rates as {shown(list(sections))} (mrope_section), but has {rotated // 2}")
            kind = "default" if kind == "mrope" else kind
        if factor > 1 or kind not in {"default", "linear", "llama3", "yarn"}:
            what = f"{kind} rotary positions" if factor <= 1 else f"a partial_rotary_factor of {factor}"
            raise self.refusal(f"has {what}, which our drafter does not support")
        if kind == "default":
            rates = theta ** -(torch.arange(0, rotated, 2, dtype=torch.float64) / rotated)
            return said if factor == 1 else {**said, "rates": tuple(rates.tolist())}
        rope = {field: value for field, value in rope.items() if not field.startswith("mrope_")} | {"rope_type": kind}
        longest = self.get("max_position_embeddings", SIZE, 2048)
        try:
            config = LlamaConfig(  # type: ignore[call-arg]  # it also reads arguments beyond its declared fields
                head_dim=rotated, rope_theta=theta, rope_scaling=rope, max_position_embeddings=longest
            )
            rates, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
        except Exception as problem:  # each kind has its own parameters, which transformers does not check
            what = f"has {kind} rotary positions that cannot be computed ({type(problem).__name__}: {problem})"
            raise self.refusal(what) from problem
        if not bool(torch.isfinite(rates).all()):
            raise self.refusal(f"has {kind} rotary positions that are not finite")
        return {**said, "rates": tuple(rates.double().tolist()), "rotary_scale": float(scale)}


_EXTRA = re.compile(r"(?:model\.)?(?:language_model\.)?layers\.(\d{1,6})\.(?:eh_proj|enorm)\.weight")
_EXPERT = re.compile(r"(layers\.\d+\.mlp\.experts)\.(\d+)\.(?:gate|up|down)_proj\.weight")
_LAYER = re.compile(r"^(?:language_model\.)?layers\.(\d{1,6})\.")


class Layout(Struct, frozen=True, forbid_unknown_fields=True):
    """A layout of published heads; fields as in the file. ``method`` is empty for a layout without a reader."""

    title: str
    when: tuple[Mapping[str, Any], ...]
    method: str = ""
    network: str = ""
    short: str = ""
    names: tuple[tuple[str, str], ...] = ()
    read: tuple[str, ...] = ()
    values: Mapping[str, list[Any]] = {}
    ignored: str = ""
    architectures: str = ""
    switches: Mapping[str, list[str]] = {}
    present: Mapping[str, str] = {}
    declared: tuple[str, ...] = ()
    how: Mapping[str, Any] = {}
    config: Mapping[str, Any] = {}

    def fits(self, stored: Repository) -> bool:
        """Whether a folder has this layout, given that no earlier layout of the table fits it."""
        names = [name.removeprefix("model.") for name in stored.files]
        architectures = " ".join(Settings(stored.name, stored.config).get("architectures", WORDS)).lower()
        inner = stored.config.get("text_config")
        levels = (stored.config, inner if isinstance(inner, Mapping) else {})

        def holds(condition: str, wanted: Any) -> bool:
            if condition in ("tensor", "without"):
                return any(re.fullmatch(wanted, name) for name in names) == (condition == "tensor")
            if condition == "architecture":
                return wanted in architectures
            if condition == "equal":
                return all(str(stored.config.get(name)) in values for name, values in wanted.items())
            return wanted in stored.config if condition == "setting" else any(one.get(wanted) not in (None, 0) for one in levels)

        return any(all(holds(*condition) for condition in conditions.items()) for conditions in self.when)

    def flags(self, said: Settings, names: Collection[str]) -> dict[str, Any]:
        """Return the fields of a head's configuration that its settings or the names of its tensors switch on or off."""
        found = {field: max(said.get(flag, bool) for flag in flags) for field, flags in self.switches.items()}
        return found | {field: found.get(field, False) or tensor in names for field, tensor in self.present.items()}

    def names_in(self, stored: Repository) -> dict[str, Stored]:
        """Return the published names of a folder's tensors, by their names in our networks. Experts that are stored one by one
        become one tensor of each kind. Raises ModelUnavailable if an expert lacks a matrix."""
        first = min(_extra_layers(stored), default=-1)
        names: dict[str, Stored] = {}
        for original in stored.files:
            name = original.removeprefix("model.")
            if first >= 0:  # MTP layers, which follow the model's own, are renumbered from 0
                name = _LAYER.sub(lambda found: f"layers.{int(found[1]) - first}.", name)
            for pattern, plain in self.names:
                name = re.sub(pattern, plain, name)
            names[name] = original
        experts: dict[str, set[int]] = {}
        for found in filter(None, map(_EXPERT.fullmatch, names)):
            experts.setdefault(found[1], set()).add(int(found[2]))
        for start, numbers in experts.items():
            parts = [[f"{start}.{number}.{kind}_proj.weight" for number in sorted(numbers)] for kind in ("gate", "up", "down")]
            if missing := [part for kind in parts for part in kind if part not in names]:
                raise ModelUnavailable(f"{stored.name} lacks the tensor {missing[0]}: get it again.")
            gate, up, down = ([names.pop(part) for part in kind] for kind in parts)
            names |= {f"{start}.gate_up_proj": list(zip(gate, up, strict=True)), f"{start}.down_proj": down}
        return names


_FILE = ASSETS / "head_layouts.toml"
LAYOUTS = {
    name: row_of(Layout, fields, f"{_FILE.name}: {name}") for name, fields in tomllib.loads(_FILE.read_text("utf-8")).items()
}
METHODS = tuple(sorted({layout.method for layout in LAYOUTS.values() if layout.method}))
"""Methods whose published heads are read."""


def layout_of(stored: Repository) -> Layout:
    """Return the first layout that fits a folder."""
    return next(layout for layout in LAYOUTS.values() if layout.fits(stored))


def drafting(stored: Repository) -> Repository:
    """Return a folder of MTP layers without the target's own tensors, any other folder unchanged."""
    if layout_of(stored) is not LAYOUTS["mtp"]:
        return stored
    extra = _extra_layers(stored)

    def drafts(name: str) -> bool:
        layer = _LAYER.match(name)
        return name.startswith("mtp.") or (layer is not None and int(layer[1]) in extra)

    return replace(stored, files={name: file for name, file in stored.files.items() if drafts(name.removeprefix("model."))})


def _extra_layers(stored: Repository) -> set[int]:
    """Numbers of the MTP layers, which follow a model's own."""
    return {int(found[1]) for name in stored.files if (found := _EXTRA.fullmatch(name))}

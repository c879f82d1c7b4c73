"""Reader of published draft heads: a folder or hub repository, its settings, tensors and layout.

Only safetensors files are opened. Shapes are checked against the config and the target. Unknown tensors and settings are refused
by name, because ignoring them could silently change the computation.

Settings mean what they mean in SafeAILab/EAGLE, sgl-project/SpecForge, Tencent/AngelSlim, vllm-project/speculators, vLLM and
NVIDIA's Model-Optimizer. ``assets/head_layouts.toml`` says how to recognise each layout and read its names and settings.
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
"""Name of a stored tensor. Tensors named in a tuple are concatenated by rows; tensors named in a list are stacked."""


@dataclass(frozen=True)
class Fit:
    """Target that heads must fit, with ``embedding`` and ``head`` [vocab, hidden]."""

    name: str
    layers: int
    embedding: Tensor
    head: Tensor

    @property
    def hidden(self) -> int:
        return self.head.shape[1]


@dataclass(frozen=True)
class Repository:
    """Folder of heads: display name, config.json, and the file of each tensor."""

    name: str
    config: Mapping[str, Any]
    files: Mapping[str, Path]

    def tensor(self, name: Stored) -> Tensor:
        """Return the tensor called ``name``. Raises ModelUnavailable if a file is damaged."""
        if not isinstance(name, str):
            return (torch.stack if isinstance(name, list) else torch.cat)([self.tensor(part) for part in name])
        try:
            with safe_open(self.files[name], framework="pt") as file:
                tensor: Tensor = file.get_tensor(name)
                return tensor
        except (OSError, SafetensorError) as problem:
            raise ModelUnavailable(
                f"{self.files[name].name} of {self.name} is damaged ({problem}). Download it again."
            ) from problem


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn any error while the heads called ``name`` are read into ModelUnavailable."""
    try:
        yield
    except (SpecvizError, MemoryError):
        raise
    except Exception as problem:  # an unexpected setting, or a tensor of the wrong kind
        raise ModelUnavailable(
            f"{name} has an invalid setting or tensor ({type(problem).__name__}: {problem}). Download the heads again."
        ) from problem


def open_repository(name: str, progress: Progress = no_progress) -> Repository:
    """Open the heads called ``name``: a folder, a hub id, or a catalogue model from the hub with MTP layers.

    Raises ModelUnavailable for pickles, damaged files, or missing weights.
    """
    place = resolve(name)
    if place.entry is not None and not place.repository:  # a model from the hub may have MTP layers
        raise ModelUnavailable(f"{name} is a whole model, not heads for one. Give a hub id or a folder with heads.")
    folder = place.path or fetch_repository(place.repository, progress)
    stored = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    if not stored:
        suffixes = {file.suffix.lower() for file in folder.iterdir()} if folder.is_dir() else {folder.suffix.lower()}
        if suffixes & PICKLES or place.repository:
            raise ModelUnavailable(
                f"{name} has no safetensors files. Pickles are never opened here, because they can run code. "
                "Choose heads stored as safetensors or, if you trust the pickles, download them and run `python -m specviz "
                "convert FILE` on your own machine."
            )
        raise ModelUnavailable(f"{name} holds no safetensors weights. Give the folder that holds the heads.")
    try:
        file = folder / "config.json"
        config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (OSError, ValueError, RecursionError) as problem:
        raise ModelUnavailable(f"The config.json of {name} cannot be read ({problem}). Download it again.") from problem
    if not isinstance(config, dict):
        raise ModelUnavailable(f"The config.json of {name} holds no settings. Download it again.")
    files: dict[str, Path] = {}
    for file in stored:
        try:
            with safe_open(file, framework="pt") as opened:
                files.update(dict.fromkeys(opened.keys(), file))
        except (OSError, SafetensorError) as problem:
            raise ModelUnavailable(f"{file.name} of {name} is damaged ({problem}). Download it again.") from problem
    return Repository(name, config, files)


def shaped(stored: Repository, names: Mapping[str, Stored], name: str, shape: Sequence[int]) -> Tensor:
    """Return the tensor ``name``; ``names`` maps the names in our networks to stored names.

    Raises ModelUnavailable if the tensor is missing or does not have this ``shape``.
    """
    if name not in names:
        raise ModelUnavailable(f"{stored.name} lacks the tensor {name}: download the heads again.")
    published, tensor = names[name], stored.tensor(names[name])
    if tuple(tensor.shape) != tuple(shape):
        found, wanted = (" x ".join(map(str, size)) for size in (tensor.shape, shape))
        raise ModelUnavailable(
            f"{published if isinstance(published, str) else name} of {stored.name} is {found} and should be {wanted}: the "
            "heads do not fit this target, or the config.json belongs to different heads."
        )
    return tensor


def tensors_of(
    stored: Repository, names: Mapping[str, Stored], shapes: Mapping[str, Sequence[int]], kind: str, also: Collection[str] = ()
) -> dict[str, Tensor]:
    """Return the tensors named in ``shapes``, each with that shape.

    Raises ModelUnavailable if a tensor is missing, has the wrong shape, or is named neither in ``shapes`` nor in ``also``.
    """
    tensors = {name: shaped(stored, names, name, shape) for name, shape in shapes.items()}
    if strange := sorted(str(own) for name, own in names.items() if name not in shapes and name not in also):
        raise ModelUnavailable(f"{stored.name} holds {strange[0]}, which published {kind} heads do not have. Choose other heads.")
    return tensors


OURS = "Choose other heads, or leave the draft empty."
STRANGE = {
    "quantization_config": "says that the weights are quantised, but only unquantised ones are read",
    "residual_multiplier": "scales each layer's output, which is not supported",
    "embedding_multiplier": "scales the embedding, which is not supported",
}
"""Settings that change the computation in a known way that is not implemented here, each with a description."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "logit_scale": (1,),
    "position_embedding_type": ("rope",),
    "is_causal": (True,),
}
"""Supported values of settings; an unset setting is supported too."""
SIZES = frozenset(
    """hidden_size target_hidden_size num_attention_heads num_key_value_heads head_dim intermediate_size num_hidden_layers
    rms_norm_eps rope_theta rope_scaling rope_parameters partial_rotary_factor max_position_embeddings attention_bias mlp_bias
    layer_types sliding_window use_sliding_window max_window_layers architectures tie_word_embeddings model_type vocab_size
    draft_vocab_size""".split()
)
"""Settings of a decoder that the readers use."""
HARMLESS = frozenset(
    """_attn_implementation _name_or_path attention_dropout auto_map chunk_size_feed_forward decoder_sparse_step dtype
    embed_requires_grad id2label initializer_range is_decoder is_encoder_decoder label2id length_penalty max_length
    min_length modal_type num_beam_groups num_beams num_return_sequences output_attentions output_hidden_states
    output_router_logits pretraining_tp problem_type repetition_penalty return_dict router_aux_loss_coef
    speculators_version target_model_type temperature top_k top_p torch_dtype transformers_version typical_p use_cache""".split()
)
"""Settings that do not affect a forward pass: names, ids, training, generation, chunking."""

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
"""For each type of setting: what an error message says of an invalid value, and the default."""


@dataclass(frozen=True)
class Settings:
    """Settings of the heads called ``name``, read with type checks."""

    name: str
    values: Mapping[str, Any]

    def get(self, field: str, kind: Any, otherwise: Any = None) -> Any:
        """Return a setting of type ``kind``; if unset, ``otherwise`` or the type's default. Raises ModelUnavailable if it is
        invalid."""
        value, (problem, default) = self.values.get(field), _KINDS[kind]
        value = next((one for one in (value, otherwise, default) if one is not None), None)
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError:
            raise self.refusal(f"has {field} {shown(value)}, which is {problem}") from None

    def section(self, field: str) -> Settings:
        """Return a nested group of settings, empty by default."""
        return Settings(self.name, self.get(field, dict[str, Any]))

    def refusal(self, what: str) -> ModelUnavailable:
        """Return the error whose message is the heads' name followed by ``what``."""
        return ModelUnavailable(f"{self.name} {what}. {OURS}")

    def refuse_unknown(self, read: Collection[str], values: Mapping[str, Sequence[Any]]) -> None:
        """Raise ModelUnavailable for the first setting that may change the computation.

        These are settings neither in ``read`` nor in ``values``, and settings whose value is not listed in ``values``.
        """
        values = {**NEUTRAL, **values}
        for field, value in self.values.items():
            names_a_token = field.endswith("_token_id") and field != "mask_token_id"  # a block drafter's mask token does matter
            if field in HARMLESS or names_a_token or value is None or (field in read and field not in values):
                continue
            if field in values and value not in values[field]:
                known = " or ".join(str(good) for good in values[field])
                raise self.refusal(f"has {field} {shown(value)}, but only {known or 'none'} is supported")
            if field not in values and value and field in STRANGE:
                raise self.refusal(f"sets {field}: it {STRANGE[field]}")
            if field not in values and value:
                raise ModelUnavailable(
                    f"{self.name} sets {field} to {str(value)[:60]!r} in its config.json, a setting that is unknown here and "
                    f"may change the computation. {OURS} If the setting changes nothing, remove it from a copy of config.json."
                )

    def layers(self, most: int) -> int:
        """Return the number of layers of a head, 1 by default.

        ``most``: upper limit, such as the number of stored tensors. Raises ModelUnavailable above it, because a huge head would
        be built before its missing weights are noticed.
        """
        layers: int = self.get("num_hidden_layers", SIZE, 1)
        if layers > most:
            raise self.refusal(f"sets num_hidden_layers to {shown(layers)}, but at most {most} are possible")
        return layers

    def windows(self, layers: int) -> tuple[int, ...]:
        """Return the sliding window of each layer (0: no window), or () if no layer has one. Raises ModelUnavailable if
        ambiguous."""
        kinds, width = self.get("layer_types", WORDS), self.values.get("sliding_window")
        if not kinds:
            if width and self.values.get("use_sliding_window") is not False:
                raise ModelUnavailable(
                    f"{self.name} has a sliding_window of {shown(width)} but no layer_types, and engines disagree on which "
                    "layers then use it. Add layer_types to a copy of its config.json, or use_sliding_window: false "
                    "if no layer has a window."
                )
            return ()
        if len(kinds) != layers or set(kinds) - {"full_attention", "sliding_attention"}:
            raise self.refusal(f"has layer_types {shown(kinds)} for {layers} layers, which is not supported")
        if "sliding_attention" not in kinds:
            return ()
        width = self.get("sliding_window", SIZE)
        return tuple(width if kind == "sliding_attention" else 0 for kind in kinds)

    def rotary(self, size: int, woven: bool = False) -> dict[str, Any]:
        """Return the rotary conventions: ``theta``, and ``rates``, ``rotary_scale`` and ``sections`` where they differ from the
        default.

        ``woven``: default of ``mrope_interleaved``, which says whether frequencies alternate between time, height and width.
        """
        nested = self.section("rope_parameters" if self.values.get("rope_parameters") else "rope_scaling")
        if "sliding_attention" in nested.values:  # one group per layer type; trainers and engines use this one
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
            raise self.refusal(f"has {what}, which is not supported")
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
        except Exception as problem:  # transformers does not check the parameters of each type
            what = f"has {kind} rotary positions that cannot be computed ({type(problem).__name__}: {problem})"
            raise self.refusal(what) from problem
        if not bool(torch.isfinite(rates).all()):
            raise self.refusal(f"has {kind} rotary positions that are not finite")
        return {**said, "rates": tuple(rates.double().tolist()), "rotary_scale": float(scale)}


_EXTRA = re.compile(r"(?:model\.)?(?:language_model\.)?layers\.(\d{1,6})\.(?:eh_proj|enorm)\.weight")
_EXPERT = re.compile(r"(layers\.\d+\.mlp\.experts)\.(\d+)\.(?:gate|up|down)_proj\.weight")
_LAYER = re.compile(r"^(?:language_model\.)?layers\.(\d{1,6})\.")


class Layout(Struct, frozen=True, forbid_unknown_fields=True):
    """Layout of published heads; fields as in ``head_layouts.toml``. ``method`` is empty if no method reads the layout."""

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
        """Return whether a folder has this layout, provided that no earlier layout in the table fits."""
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
        """Return the config flags that a head's settings or tensor names set."""
        found = {field: max(said.get(flag, bool) for flag in flags) for field, flags in self.switches.items()}
        return found | {field: found.get(field, False) or tensor in names for field, tensor in self.present.items()}

    def names_in(self, stored: Repository) -> dict[str, Stored]:
        """Map tensor names in our networks to stored names. Experts stored one by one are stacked.

        Raises ModelUnavailable if an expert lacks a matrix.
        """
        first = min(_extra_layers(stored), default=-1)
        names: dict[str, Stored] = {}
        for original in stored.files:
            name = original.removeprefix("model.")
            if first >= 0:  # MTP layers follow the model's own layers; number them from 0
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
                raise ModelUnavailable(f"{stored.name} lacks the tensor {missing[0]}: download it again.")
            gate, up, down = ([names.pop(part) for part in kind] for kind in parts)
            names |= {f"{start}.gate_up_proj": list(zip(gate, up, strict=True)), f"{start}.down_proj": down}
        return names


_FILE = ASSETS / "head_layouts.toml"
LAYOUTS = {
    name: row_of(Layout, fields, f"{_FILE.name}: {name}") for name, fields in tomllib.loads(_FILE.read_text("utf-8")).items()
}
METHODS = tuple(sorted({layout.method for layout in LAYOUTS.values() if layout.method}))
"""Methods with a reader for published heads."""


def layout_of(stored: Repository) -> Layout:
    """Return the first layout in the table that fits a folder."""
    return next(layout for layout in LAYOUTS.values() if layout.fits(stored))


def drafting(stored: Repository) -> Repository:
    """Return a folder of MTP layers without the target's own tensors. Any other folder is returned unchanged."""
    if layout_of(stored) is not LAYOUTS["mtp"]:
        return stored
    extra = _extra_layers(stored)

    def drafts(name: str) -> bool:
        layer = _LAYER.match(name)
        return name.startswith("mtp.") or (layer is not None and int(layer[1]) in extra)

    return replace(stored, files={name: file for name, file in stored.files.items() if drafts(name.removeprefix("model."))})


def _extra_layers(stored: Repository) -> set[int]:
    """Return the numbers of the MTP layers, which follow the model's own layers."""
    return {int(found[1]) for name in stored.files if (found := _EXTRA.fullmatch(name))}

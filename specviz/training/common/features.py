"""What the target thinks of every token of the dialogues, computed on first use and kept on disk as float16.

One store serves every recipe whose drafter reads the target's hidden states. Dialogues are kept by their content, so a
data file that grows keeps what was computed; each process appends to files of its own, so several may use one store.
Axis names: ``token``, ``tap``, ``hidden``.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.models.hub.cache_dir import cache_folder, ensure_folder
from specviz.training.common.data import Dialogues, Markers
from specviz.training.common.parallel import evenly

CHUNK_TOKENS = 1 << 16
MEMORY = 0.5
"""Share of a GPU's free memory for hidden states: 4.6 kB a token of SmolLM2."""
BATCH_TOKENS, PADDED = 2048, 1.25
"""Tokens that a processor reads in one pass, padding included, and how much longer than another a text beside it may be."""
BATCH_TOKENS_GPU, PADDED_GPU = 32768, 2.5
_LARGEST = 65504.0


def fused_taps(layers: int) -> tuple[int, int, int]:
    """The early, middle and late hidden states a fused drafter reads, of a target with ``layers`` layers."""
    return min(2, layers - 1), layers // 2, max(layers - 3, 0)


@dataclass(frozen=True)
class DialogueFeatures:
    """One dialogue, the fixed prefix included: ``tokens`` [token], ``features`` [token, tap, hidden] (float32), and the
    index of the answer's first token.

    :func:`joined` sets several behind each other: ``others`` are then where the dialogues after the first begin, and where
    their answers do.
    """

    tokens: Tensor
    features: Tensor
    first: int
    others: tuple[tuple[int, int], ...] = field(default=(), kw_only=True)

    @property
    def spans(self) -> list[tuple[int, int, int]]:
        """Of each dialogue where it begins, where its answer does, and where it ends."""
        begins = [0, *(begin for begin, _ in self.others)]
        firsts = [self.first, *(first for _, first in self.others)]
        return list(zip(begins, firsts, [*begins[1:], len(self.tokens)], strict=True))

    @property
    def lengths(self) -> list[int]:
        """Tokens of each dialogue."""
        return [end - begin for begin, _, end in self.spans]


def joined(dialogues: Sequence[DialogueFeatures]) -> DialogueFeatures:
    """Several dialogues behind each other, for losses that read them in one pass."""
    if len(dialogues) == 1:
        return dialogues[0]
    begins = np.cumsum([0, *(len(dialogue.tokens) for dialogue in dialogues)]).tolist()
    others = [(begin, begin + dialogue.first) for begin, dialogue in zip(begins[1:], dialogues[1:], strict=False)]
    tokens, features = (torch.cat([getattr(one, name) for one in dialogues]) for name in ("tokens", "features"))
    return DialogueFeatures(tokens, features, dialogues[0].first, others=tuple(others))


@torch.no_grad()
def target_distribution(head: Tensor, dialogue: DialogueFeatures) -> tuple[Tensor, Tensor]:
    """The target's distribution of each answer token, [answer, support], and which row is whose, int64 [token]. ``head``
    [support, hidden] has the rows of the draft vocabulary, to which the distribution is restricted and renormalised."""
    answers = torch.cat([torch.arange(first, end) for _, first, end in dialogue.spans])
    at = torch.zeros(len(dialogue.tokens), dtype=torch.long).index_copy(0, answers, torch.arange(len(answers)))
    before = dialogue.features[answers.to(head.device) - 1, -1]
    return evenly(partial(F.linear, weight=head), before).softmax(-1), at.to(head.device)


@dataclass(frozen=True)
class _Place:
    file: Path
    start: int
    length: int


class FeatureStore:
    """Hidden states ``taps`` (transformers' numbering: the last one is normalised) of the dialogues' tokens."""

    def __init__(
        self, model: Any, dialogues: Dialogues, markers: Markers, taps: Sequence[int], folder: Path | None = None,
        chunk_tokens: int = CHUNK_TOKENS, memory: int = 0,
    ) -> None:  # fmt: skip
        """``folder`` None keeps nothing on disk: on a GPU computing anew is faster than any. It keeps ``memory`` bytes beside
        the model."""
        self.dialogues, self.markers = dialogues, markers
        self._kept: dict[int, Tensor] = {}
        self._memory = memory
        self.taps = tuple(taps)
        self.device = model.device
        self.hidden = int(model.config.get_text_config().hidden_size)
        self._model = model
        self._given: set[int] = set()
        self._shelf = None if folder is None else _Shelf(folder, len(self.taps) * self.hidden, chunk_tokens)

    @property
    def keeps(self) -> bool:
        """Whether what was computed once is there the next time."""
        return self._shelf is not None

    def ids(self, number: int) -> np.ndarray:
        """The dialogue's tokens behind the fixed prefix."""
        return np.concatenate((np.asarray(self.markers.prefix, dtype=np.int64), self.dialogues.of(number)))

    def has(self, number: int) -> bool:
        """Whether this dialogue need not be computed any more."""
        return number in self._kept or (self._shelf is not None and _key(self.ids(number)) in self._shelf.places)

    def known(self, number: int) -> bool:
        """Whether the target has read this dialogue: it was given out in this sitting, or it lies on the shelf."""
        return number in self._given or self.has(number)

    def get(self, numbers: Sequence[int]) -> list[DialogueFeatures]:
        """The dialogues with their features, on the target's device; what is missing is computed first."""
        computed: dict[int, Tensor] = {}
        missing = sorted({number for number in numbers if not self.has(number)}, key=lambda number: len(self.ids(number)))
        lengths = [len(self.ids(number)) for number in missing]
        for bucket in _buckets(missing, lengths, self.device.type == "cpu"):
            computed |= self._compute(bucket)
        self._keep(computed)
        self._given.update(numbers)
        prefix = len(self.markers.prefix)
        return [
            DialogueFeatures(
                torch.from_numpy(self.ids(number)).to(self.device),
                computed[number].float() if number in computed else self._read(number),
                prefix + int(self.dialogues.prompt[number]),
            )
            for number in numbers
        ]

    def put(self, dialogue: Sequence[int], features: Tensor) -> None:
        """Keep what was computed elsewhere: ``features`` [token, tap, hidden] of the prefix and ``dialogue`` behind it."""
        if self._shelf is not None:
            ids = np.asarray((*self.markers.prefix, *dialogue), dtype=np.int64)
            self._shelf.write(_key(ids), features.flatten(1).numpy())

    def _keep(self, computed: Mapping[int, Tensor]) -> None:
        """Remember as much as there is memory for."""
        for number, features in computed.items():
            if (size := features.nbytes) > self._memory:
                return
            self._kept[number] = features
            self._memory -= size

    def _read(self, number: int) -> Tensor:
        if number in self._kept:
            return self._kept[number].float()
        assert self._shelf is not None
        features = torch.from_numpy(self._shelf.read(_key(self.ids(number))))
        return features.float().view(-1, len(self.taps), self.hidden).to(self.device)

    @torch.no_grad()
    def _compute(self, numbers: Sequence[int]) -> dict[int, Tensor]:
        """Features of similarly long dialogues in one pass, padded on the right, where a causal model does not look."""
        texts = [self.ids(number) for number in numbers]
        ids = np.zeros((len(texts), max(map(len, texts))), dtype=np.int64)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = text
        base = self._model.base_model
        passed = base(
            input_ids=torch.from_numpy(ids).to(self.device),
            output_hidden_states=sorted(set(self.taps)),
            use_cache=False,
        )
        # Stored and fresh features must not differ, so both go through float16.
        stacked = torch.stack([passed.hidden_states[tap] for tap in self.taps], dim=2)
        stacked = stacked.clamp(-_LARGEST, _LARGEST).half()
        features = {
            number: stacked[row, : len(text)].clone() for row, (number, text) in enumerate(zip(numbers, texts, strict=True))
        }
        if self._shelf is not None:
            for number, text in zip(numbers, texts, strict=True):
                self._shelf.write(_key(text), features[number].cpu().flatten(1).numpy())
        return features


class _Shelf:
    """Rows of float16 in chunk files of fixed size, and beside each chunk an index line per finished dialogue."""

    def __init__(self, folder: Path, width: int, chunk_tokens: int) -> None:
        self.places: dict[str, _Place] = {}
        self._folder, self._width, self._chunk_tokens = ensure_folder(folder), width, chunk_tokens
        self._maps: dict[Path, np.memmap[Any, Any]] = {}
        self._lock = threading.Lock()
        self._chunk: Path | None = None
        self._index: BinaryIO | None = None
        self._filled = 0
        for index in sorted(folder.glob("*.index")):
            self._learn(index)

    def _learn(self, index: Path) -> None:
        """What a chunk holds; a last line that was cut off in the middle counts for nothing."""
        file = index.with_suffix(".f16")
        if not file.is_file() or file.stat().st_size != self._chunk_tokens * self._width * 2:
            return
        for line in index.read_bytes().split(b"\n")[:-1]:
            key, start, length = json.loads(line)
            self.places[key] = _Place(file, start, length)

    def read(self, key: str) -> np.ndarray:
        """[token, width] of a dialogue that is here."""
        place = self.places[key]
        with self._lock:
            if place.file not in self._maps:
                shape = (self._chunk_tokens, self._width)
                self._maps[place.file] = np.memmap(place.file, np.float16, "r", shape=shape)
            return np.array(self._maps[place.file][place.start : place.start + place.length])

    def write(self, key: str, rows: np.ndarray) -> None:
        """Append a dialogue. One longer than a whole chunk is not kept."""
        with self._lock:
            if key in self.places or len(rows) > self._chunk_tokens:
                return
            if self._chunk is None or self._filled + len(rows) > self._chunk_tokens:
                self._begin()
            assert self._chunk is not None and self._index is not None
            with self._chunk.open("rb+") as file:
                file.seek(self._filled * self._width * 2)
                file.write(np.ascontiguousarray(rows, dtype=np.float16).tobytes())
            self._index.write(json.dumps([key, self._filled, len(rows)]).encode() + b"\n")
            self.places[key] = _Place(self._chunk, self._filled, len(rows))
            self._filled += len(rows)

    def _begin(self) -> None:
        """Open the next chunk that no process has taken yet."""
        if self._index is not None:
            self._index.close()
        number = 0
        while True:
            index = self._folder / f"{number:05d}.index"
            try:
                self._index = index.open("xb", buffering=0)
                break
            except FileExistsError:
                number += 1
        self._chunk, self._filled = index.with_suffix(".f16"), 0
        with self._chunk.open("wb") as file:
            file.truncate(self._chunk_tokens * self._width * 2)


def store_for(
    model: Any, name: str, dialogues: Dialogues, markers: Markers, identity: Mapping[str, Any] | None = None
) -> FeatureStore:
    """The store of this target and data: on disk where the target runs on a processor."""
    layers = int(model.config.get_text_config().num_hidden_layers)
    taps = (*fused_taps(layers), layers)
    if model.device.type != "cpu":
        free, _ = torch.cuda.mem_get_info(model.device)
        return FeatureStore(model, dialogues, markers, taps, memory=int(MEMORY * free))
    weights = model.get_input_embeddings().weight[:64].float().cpu().numpy().tobytes()
    facts = json.dumps([name, taps, markers.prefix, str(model.dtype), dict(identity or {})]).encode()
    digest = hashlib.sha256(weights + facts).hexdigest()[:16]
    return FeatureStore(model, dialogues, markers, taps, cache_folder() / "features" / digest)


def _key(ids: np.ndarray) -> str:
    return hashlib.blake2b(np.ascontiguousarray(ids, dtype=np.int64).tobytes(), digest_size=10).hexdigest()


def _buckets(numbers: Sequence[int], lengths: Sequence[int], on_cpu: bool = True) -> list[list[int]]:
    """Numbers sorted by length in groups of so many tokens, padding included, as the device reads best in one pass."""
    most, padded = (BATCH_TOKENS, PADDED) if on_cpu else (BATCH_TOKENS_GPU, PADDED_GPU)
    groups: list[list[int]] = []
    shortest = 0
    for number, length in zip(numbers, lengths, strict=True):
        fits = groups and (len(groups[-1]) + 1) * length <= most and length <= padded * shortest
        if fits:
            groups[-1].append(number)
        else:
            groups.append([number])
            shortest = length
    return groups

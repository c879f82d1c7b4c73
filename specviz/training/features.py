"""The target's hidden states at every token of the dialogues, computed on first use and stored on disk as float16.

All feature drafters share one store. Each dialogue has a file named by a hash of its content. So features stay valid when the
dialogue file grows, and several processes may share the store. Axis names: ``token``, ``tap``, ``hidden``.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.errors import ModelUnavailable
from specviz.models.hub.cache_dir import cache_folder, ensure_folder
from specviz.models.text.load import LoadedText, load_causal_lm
from specviz.training import data
from specviz.training.data import ANSWER, PREFIX, TURN, Dialogues, Markers
from specviz.training.parallel import apply_padded

if TYPE_CHECKING:
    from specviz.training.driver import Job, Schedule

MEMORY = 0.5
"""Share of a GPU's free memory for hidden states; SmolLM2 needs 4.6 kB per token."""
BATCH_TOKENS, PADDED = 2048, 1.25
"""Maximum number of tokens in a pass on a CPU, with padding, and maximum ratio of text lengths in a pass."""
BATCH_TOKENS_GPU, PADDED_GPU = 32768, 2.5
LARGEST = 65504.0
SUPPORT = 8192
"""Maximum size of a draft vocabulary in tokens."""
FITTED_DIALOGUES = 96


@dataclass(frozen=True)
class DialogueFeatures:
    """A dialogue with features, or several dialogues concatenated by :func:`joined`.

    ``tokens`` [token]: tokens with the prefix. ``features`` [token, tap, hidden]: float32. ``first``: index of the first answer
    token. ``others``: (first index of the dialogue, first index of the answer) for each later dialogue.
    """

    tokens: Tensor
    features: Tensor
    first: int
    others: tuple[tuple[int, int], ...] = field(default=(), kw_only=True)

    @property
    def spans(self) -> list[tuple[int, int, int]]:
        """(Start of the dialogue, start of the answer, end) for each dialogue."""
        begins = [0, *(begin for begin, _ in self.others)]
        firsts = [self.first, *(first for _, first in self.others)]
        return list(zip(begins, firsts, [*begins[1:], len(self.tokens)], strict=True))

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of each dialogue."""
        return [end - begin for begin, _, end in self.spans]


def joined(dialogues: Sequence[DialogueFeatures]) -> DialogueFeatures:
    """Concatenate dialogues, so that a loss can read all in one pass."""
    if len(dialogues) == 1:
        return dialogues[0]
    begins = np.cumsum([0, *(len(dialogue.tokens) for dialogue in dialogues)]).tolist()
    others = [(begin, begin + dialogue.first) for begin, dialogue in zip(begins[1:], dialogues[1:], strict=False)]
    tokens, features = (torch.cat([getattr(one, name) for one in dialogues]) for name in ("tokens", "features"))
    return DialogueFeatures(tokens, features, dialogues[0].first, others=tuple(others))


@torch.no_grad()
def target_distribution(head: Tensor, dialogue: DialogueFeatures) -> tuple[Tensor, Tensor]:
    """Return the target's distributions [answer, support] for all answer tokens, and the row of each token, int64 [token].

    ``head`` [support, hidden]: rows of the target's head for the draft vocabulary; distributions are normalised over these.
    """
    answers = torch.cat([torch.arange(first, end) for _, first, end in dialogue.spans])
    at = torch.zeros(len(dialogue.tokens), dtype=torch.long).index_copy(0, answers, torch.arange(len(answers)))
    before = dialogue.features[answers.to(head.device) - 1, -1]
    return apply_padded(partial(F.linear, weight=head), before).softmax(-1), at.to(head.device)


class FeatureStore:
    """Store of hidden states. ``taps``: hidden states in transformers' numbering, in which the last one is normalised."""

    def __init__(
        self, model: Any, dialogues: Dialogues, markers: Markers, taps: Sequence[int], folder: Path | None = None,
        memory: int = 0,
    ) -> None:  # fmt: skip
        """``folder``: folder for the files; None: no files, since a GPU recomputes faster than a disk reads. ``memory``: maximum
        bytes of features to keep on the device."""
        self.dialogues, self.markers = dialogues, markers
        self._kept: dict[int, Tensor] = {}
        self._memory = memory
        self.taps = tuple(taps)
        self.device = model.device
        self._model = model
        self._folder = None if folder is None else ensure_folder(folder)

    @property
    def keeps(self) -> bool:
        """Whether features are stored on disk."""
        return self._folder is not None

    def ids(self, number: int) -> np.ndarray:
        """Return the prefix of the chat template and the tokens of a dialogue."""
        return np.concatenate((np.asarray(self.markers.prefix, dtype=np.int64), self.dialogues.of(number)))

    def has(self, number: int) -> bool:
        """Whether the features of a dialogue are stored."""
        return number in self._kept or (self._folder is not None and self._file(self.ids(number)).exists())

    def get(self, numbers: Sequence[int]) -> list[DialogueFeatures]:
        """Return dialogues with features on the target's device; missing features are computed first."""
        missing = sorted({number for number in numbers if not self.has(number)}, key=lambda number: len(self.ids(number)))
        computed = dict[int, Tensor]()
        for bucket in self._buckets(missing):
            computed |= self._compute(bucket)
        for number, features in computed.items():
            if features.nbytes <= self._memory:
                self._kept[number] = features
                self._memory -= features.nbytes
        known = computed | {
            number: self._kept[number]
            if number in self._kept
            else torch.from_numpy(np.load(self._file(self.ids(number)))).to(self.device)
            for number in numbers
            if number not in computed
        }
        prefix, prompt = len(self.markers.prefix), self.dialogues.prompt
        return [
            DialogueFeatures(
                torch.from_numpy(self.ids(number)).to(self.device), known[number].float(), prefix + int(prompt[number])
            )
            for number in numbers
        ]

    def put(self, dialogue: Sequence[int], features: Tensor) -> None:
        """Store ``features`` [token, tap, hidden] of the prefix and ``dialogue``, computed elsewhere."""
        if self._folder:
            self._write(np.asarray((*self.markers.prefix, *dialogue), dtype=np.int64), features)

    def _file(self, ids: np.ndarray) -> Path:
        """Return the path for the features of a text. Subfolders limit the number of files per folder."""
        assert self._folder
        key = hashlib.blake2b(np.ascontiguousarray(ids).tobytes(), digest_size=10).hexdigest()
        return self._folder / key[:2] / f"{key}.npy"

    def _write(self, ids: np.ndarray, features: Tensor) -> None:
        """Write features atomically, since other processes may write the same file."""
        file = self._file(ids)
        ensure_folder(file.parent)
        fresh = file.with_name(f"{file.stem}.{os.getpid()}.{threading.get_ident()}.npy")
        np.save(fresh, features.cpu().numpy())
        os.replace(fresh, file)

    def _buckets(self, numbers: Sequence[int]) -> list[list[int]]:
        """Group ``numbers``, sorted by length, into passes within the limits on tokens and padding."""
        most, padded = (BATCH_TOKENS, PADDED) if self.device.type == "cpu" else (BATCH_TOKENS_GPU, PADDED_GPU)
        groups, shortest = list[list[int]](), 0
        for number in numbers:
            length = len(self.ids(number))
            if groups and (len(groups[-1]) + 1) * length <= most and length <= padded * shortest:
                groups[-1].append(number)
            else:
                groups.append([number])
                shortest = length
        return groups

    @torch.no_grad()
    def _compute(self, numbers: Sequence[int]) -> dict[int, Tensor]:
        """Return the features of dialogues, computed in one pass. Causality masks the padding on the right."""
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
        # New features are rounded too, so that they equal stored features.
        stacked = torch.stack([passed.hidden_states[tap] for tap in self.taps], dim=2)
        stacked = stacked.clamp(-LARGEST, LARGEST).half()
        features = {
            number: stacked[row, : len(text)].clone() for row, (number, text) in enumerate(zip(numbers, texts, strict=True))
        }
        if self._folder:
            for number, text in zip(numbers, texts, strict=True):
                self._write(text, features[number])
        return features


def store_for(model: Any, name: str, dialogues: Dialogues, markers: Markers, taps: tuple[int, ...] = ()) -> FeatureStore:
    """Return the store for a target and dialogues, on disk if the target runs on a CPU. ``taps``: hidden states, see
    :class:`FeatureStore`."""
    layers = int(model.config.get_text_config().num_hidden_layers)
    # By default the early, middle and late hidden state that an EAGLE-3 drafter reads, and the last one.
    taps = taps or (min(2, layers - 1), layers // 2, max(layers - 3, 0), layers)
    if model.device.type != "cpu":
        free, _ = torch.cuda.mem_get_info(model.device)
        return FeatureStore(model, dialogues, markers, taps, memory=int(MEMORY * free))
    weights = model.get_input_embeddings().weight[:64].float().cpu().numpy().tobytes()
    facts = json.dumps([name, taps, markers.prefix, str(model.dtype), {}]).encode()  # {}: keeps the digest of earlier stores
    digest = hashlib.sha256(weights + facts).hexdigest()[:16]
    return FeatureStore(model, dialogues, markers, taps, cache_folder() / "features" / digest)


TARGET = "smollm2-135m-instruct"


class TargetAssets(NamedTuple):
    """The target and parts for training.

    ``embedding``: float32 [vocab, hidden]. ``answer``: token ids between turn and answer.
    """

    target: LoadedText
    embedding: Tensor
    markers: Markers
    answer: tuple[int, ...]


def target_assets(device: str) -> TargetAssets:
    """Load the target and parts for training. Raises ModelUnavailable if the tokenizer is not SmolLM2's."""
    loaded = load_causal_lm(TARGET, "auto", device, lambda message, fraction: print(message, flush=True))
    ids = {part: _ids(loaded.tokenizer, part) for part in (PREFIX, ANSWER, TURN)}
    end = _ids(loaded.tokenizer, "<|im_end|>")
    if len(end) != 1 or end[0] not in loaded.eos_ids or ids[ANSWER][0] != end[0]:
        raise ModelUnavailable(
            f"The tokenizer of {TARGET} does not end turns with <|im_end|>, as SmolLM2's does: restore the tokenizer."
        )
    embedding = loaded.model.get_input_embeddings().weight.detach().to(torch.float32)
    return TargetAssets(loaded, embedding, Markers(ids[PREFIX], ids[TURN], end[0]), ids[ANSWER])


def _ids(tokenizer: Any, text: str) -> tuple[int, ...]:
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


@dataclass(frozen=True)
class TrainInputs:
    """Target, data and features for training.

    ``training`` and ``held_out``: numbers of dialogues. ``draft_ids`` [support]: draft vocabulary. ``unread``: numbers of
    the dialogues reserved for fine-tuning.
    """

    assets: TargetAssets
    files: list[Path]
    store: FeatureStore
    training: list[int]
    held_out: list[int]
    draft_ids: Tensor
    unread: Sequence[int] = ()

    @property
    def device(self) -> torch.device:
        """Device of the target and of training."""
        return self.assets.target.device

    @property
    def dialogues(self) -> Dialogues:
        return self.store.dialogues

    @property
    def head(self) -> Tensor:
        """The target's head, float32 [vocab, hidden]."""
        weight: Tensor = self.assets.target.model.get_output_embeddings().weight
        return weight.detach().float()

    @property
    def evaluation_set(self) -> list[int]:
        """Numbers of the held-out dialogues for metrics, see :func:`~specviz.training.data.greedy_only`."""
        return data.greedy_only(self.dialogues, self.held_out)

    @property
    def place(self) -> Tensor:
        """Index of each token in the draft vocabulary, or IGNORED, int64 [vocab]."""
        return data.draft_index(self.draft_ids, self.assets.embedding.shape[0])

    def fitting_set(self, settings: Schedule) -> list[int]:
        """Return dialogues for fitting an initialisation, after computing their features."""
        generator = np.random.default_rng(0)
        chosen = generator.permutation(np.asarray(self.training))[:FITTED_DIALOGUES].tolist()
        read_all(self.store, chosen, settings.workers)
        return chosen


def gather(job: Job) -> TrainInputs:
    """Load the target and the data for a job."""
    files, assets = data.find(job.data), target_assets(job.device)
    dialogues, vocab = data.read_all(files), assets.embedding.shape[0]
    both, held_out = data.split(dialogues)
    training, unread = data.split_unread(dialogues, both)
    store = store_for(assets.target.model, assets.target.name, dialogues, assets.markers)
    ids, _ = data.draft_vocabulary(dialogues, training, min(SUPPORT, vocab), vocab, [assets.markers.end])
    return TrainInputs(assets, files, store, training, held_out, torch.from_numpy(ids).to(assets.target.device), unread)


def read_all(store: FeatureStore, numbers: Sequence[int], workers: int) -> None:
    """Compute the missing features of the dialogues ``numbers`` with ``workers`` threads, if the store is on disk."""
    missing = [number for number in numbers if not store.has(number)]
    if store.keeps and missing:
        groups = [missing[place : place + 4] for place in range(0, len(missing), 4)]
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(store.get, groups))

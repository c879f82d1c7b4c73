"""Image prompts as token rows: a conditional and an unconditional one for classifier-free guidance, in each model's format."""

from __future__ import annotations

import difflib
import hashlib
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoTokenizer, T5EncoderModel

from specviz.errors import BadInput, ModelUnavailable
from specviz.models.cache import exclusive_loading
from specviz.models.hub.opening import LOCAL, opening
from specviz.models.text.text import quoted, tokenizer_hash
from specviz.paths import ASSETS

PAD, BEGIN, PICTURE = 0, 1, 2
SPECIAL = ("<pad>", "<begin>", "<picture>")
PROMPT_TOKENS = 16
LONGEST_PROMPT = 2000
_CLASS_NAMES = ASSETS / "words" / "imagenet.txt"
"""One ImageNet class per line, in ImageNet's order: its WordNet names, separated by commas."""
_IMAGENET = 1000
WORDS = ASSETS / "words"
"""Folder with a file per family of shipped models, such as ``emoji.txt`` for emoji-64.

A file has a line of name and keywords per training picture, then styles ("noto style") and backgrounds ("on blue"). The family's
recipes write it.
"""
_WORD = re.compile(r"[^\W\d_]+")
_PICTOGRAPH = re.compile(r"[\u2600-\u27bf\U0001f000-\U0001faff]")
BY_NAME = frozenset({"sprites-32"})
"""Shipped models that draw well only what they are asked for by its name."""
STRANGER, ALIKE = "robot", 0.75
"""Picture for a prompt without a known word, and minimum likeness of a word to the word of a name with the same first letters."""
_FILLERS = frozenset("a an and in is of on style that the with".split())


@dataclass(frozen=True)
class PromptRows:
    """Token rows of one prompt, of equal length; -1 in the unconditional row is masked padding.

    ``unread``: rest of a prompt that did not fit, or "". ``embedded`` [row, position, hidden]: embeddings of the rows if token
    ids do not determine them. ``unseen``: number of leading positions that no later position attends to.
    """

    conditional: tuple[int, ...]
    unconditional: tuple[int, ...]
    unread: str = ""
    embedded: Tensor | None = None
    unseen: int = 0


class WordPrompts:
    """Byte-level word pieces for the shipped models.

    Prompts have a fixed length: [begin, words …, pad …, picture]. Padding is attended to like any token, so no mask is needed,
    and the first image code always has the same position.
    """

    def __init__(self, description: str) -> None:
        """``description``: JSON of a ``tokenizers.Tokenizer`` whose first three ids are the special tokens."""
        self.description = description
        self._tokenizer = Tokenizer.from_str(description)

    @property
    def size(self) -> int:
        """Number of tokens in the prompt vocabulary."""
        return self._tokenizer.get_vocab_size()

    @property
    def digest(self) -> str:
        """Identification of the tokenizer by content."""
        return hashlib.sha256(self.description.encode("utf-8")).hexdigest()[:16]

    def rows(self, prompt: str) -> PromptRows:
        encoded = self._tokenizer.encode(valid_prompt(prompt))
        room = PROMPT_TOKENS - 2
        words = encoded.ids[:room]
        unread = prompt.strip()[encoded.offsets[room][0] :].strip() if len(encoded.ids) > room else ""
        padded = [*words, *[PAD] * (room - len(words))]
        return PromptRows((BEGIN, *padded, PICTURE), (BEGIN, *[PAD] * room, PICTURE), unread)

    def of(self, token: int) -> str:
        return SPECIAL[token] if token < len(SPECIAL) else self._tokenizer.decode([token])


def valid_prompt(prompt: str) -> str:
    """Return the prompt without surrounding whitespace. Raises BadInput if it is too long."""
    text = prompt.strip()
    if len(text) > LONGEST_PROMPT:
        raise BadInput(f"The prompt has {len(text)} characters; a picture's prompt may have {LONGEST_PROMPT}.")
    return text


class ChatPrompts:
    """Prompts of a model that has its own tokenizer and special tokens that start an image."""

    marks: tuple[str, ...]
    """Required special tokens; the last one starts the image."""

    def __init__(self, tokenizer: Any, name: str) -> None:
        self._tokenizer = tokenizer
        self._marks = [tokenizer.convert_tokens_to_ids(mark) for mark in self.marks]
        for mark, token in zip((*self.marks, "beginning of a text"), (*self._marks, tokenizer.bos_token_id), strict=True):
            if token is None or token == tokenizer.unk_token_id:
                raise ModelUnavailable(
                    f"The tokenizer of {name} has no {mark}, so it cannot be asked to draw; choose another model."
                )
        self._begin = int(tokenizer.bos_token_id)
        self.digest = tokenizer_hash(tokenizer)

    def of(self, token: int) -> str:
        return str(self._tokenizer.decode([token]))


class JanusPrompts(ChatPrompts):
    """Chat turns answered with an image. As in Janus, the unconditional row is padding except for its ends."""

    marks = ("<begin_of_image>",)

    def rows(self, prompt: str) -> PromptRows:
        words = list(
            self._tokenizer(f"<|User|>: {valid_prompt(prompt)}\n\n<|Assistant|>:", add_special_tokens=False)["input_ids"]
        )
        padding = [self._tokenizer.pad_token_id or 0] * len(words)
        return PromptRows((self._begin, *words, *self._marks), (self._begin, *padding, *self._marks))


class AnolePrompts(ChatPrompts):
    """Anole's prompts: [begin, words, separator, image start], unconditionally [begin, image start], as in LANTERN's code."""

    marks = ("<reserved08706>", "<racm3:break>")

    def rows(self, prompt: str) -> PromptRows:
        words = list(self._tokenizer(valid_prompt(prompt), add_special_tokens=False)["input_ids"])
        padding = (-1,) * (len(words) + 1)
        return PromptRows((self._begin, *words, *self._marks), (*padding, self._begin, self._marks[-1]))


class ClassPrompts:
    """Prompts that name one of ``classes`` classes; one additional class is the empty prompt."""

    def __init__(self, classes: int) -> None:
        self._classes = classes
        lines = _CLASS_NAMES.read_text("utf-8").splitlines() if classes == _IMAGENET else ()
        self._names = tuple(tuple(name.strip() for name in line.split(",")) for line in lines)
        self.digest = hashlib.sha256(repr((classes, self._names)).encode()).hexdigest()[:16]

    def rows(self, prompt: str) -> PromptRows:
        return PromptRows((self._number(valid_prompt(prompt)),), (self._classes,))

    def of(self, token: int) -> str:
        if token == self._classes:
            return "<no class>"
        return self._names[token][0] if self._names else f"class {token}"

    def _number(self, prompt: str) -> int:
        """Return the class that a prompt names. Raises BadInput unless the prompt names exactly one."""
        wanted = " ".join(prompt.lower().split())
        if wanted.isascii() and wanted.isdigit():
            if int(wanted) >= self._classes:
                raise BadInput(f"There is no class {prompt}; this model draws classes 0 to {self._classes - 1}.")
            return int(wanted)
        numbers_of: dict[str, list[int]] = {}
        for number, names in enumerate(self._names):
            for name in dict.fromkeys(name.lower() for name in names):
                numbers_of.setdefault(name, []).append(number)
        if not numbers_of:
            raise BadInput(f"This model draws classes, but has no names for them: give a number from 0 to {self._classes - 1}.")
        if len(found := numbers_of.get(wanted, [])) > 1:
            which = " or ".join(f"{number} ({', '.join(self._names[number])})" for number in found)
            raise BadInput(f"{prompt!r} names several classes: give a number, {which}.")
        if not found:
            near = difflib.get_close_matches(wanted, numbers_of, 3, 0.5) or [name for name in numbers_of if wanted in name][:3]
            hint = f", such as {', '.join(near)}" if near else ', such as "golden retriever"'
            raise BadInput(f"{prompt[:60]!r} is not a class of ImageNet, and this model draws nothing else: name one{hint}.")
        return found[0]


class CaptionPrompts:
    """Captions as features from transformers' T5 encoder, in LlamaGen's format.

    A caption is left-padded with zeros to the length of the empty prompt; both rows mask the padded positions. Captions are
    lower-cased and whitespace is collapsed. The authors' code also strips web addresses and file names.

    ``empty`` [position, feature]: the empty prompt. ``projection``: two matrices [hidden, ..] that project features to
    embeddings.
    """

    def __init__(self, tokenizer: Any, encoder: Any, empty: Tensor, projection: Sequence[Tensor]) -> None:
        self._tokenizer, self._encoder, self._empty = tokenizer, encoder, empty
        self._first, self._second = projection
        self.digest = tokenizer_hash(tokenizer)

    @torch.inference_mode()
    def rows(self, prompt: str) -> PromptRows:
        text, places = " ".join(valid_prompt(prompt).lower().split()), len(self._empty)
        every = self._tokenizer(text)["input_ids"]
        ids = self._tokenizer(text, truncation=True, max_length=places)["input_ids"]
        device = self._encoder.device
        features = self._encoder(input_ids=torch.tensor([ids], device=device)).last_hidden_state[0].to(self._empty)
        unseen = places - len(ids)
        padded = torch.cat((features.new_zeros(unseen, features.shape[1]), features))
        unread = "" if len(every) <= places else str(self._tokenizer.decode(every[len(ids) - 1 : -1]))
        nothing = (self._padding,) * places
        inner = F.gelu(F.linear(torch.stack((padded, self._empty)), self._first), approximate="tanh")
        embedded = F.linear(inner, self._second)  # [row, position, hidden]
        return PromptRows((*nothing[:unseen], *ids), nothing, unread, embedded, unseen)

    def of(self, token: int) -> str:
        return "<pad>" if token == self._padding else str(self._tokenizer.decode([token]))

    @property
    def size(self) -> int:
        """Size of the tokenizer's vocabulary."""
        return len(self._tokenizer)

    @property
    def _padding(self) -> int:
        return int(self._tokenizer.pad_token_id)


PromptReader = WordPrompts | JanusPrompts | AnolePrompts | ClassPrompts | CaptionPrompts
"""Class that turns a prompt into rows and a token id into text. ``digest`` identifies the tokenizer."""


def load_captions(name: str, folder: Path, empty: Tensor, projection: Sequence[Tensor]) -> CaptionPrompts:
    """Load the T5 encoder in ``folder``. Raises ModelUnavailable if it is missing or its width does not fit."""
    if not (folder / "config.json").is_file():
        raise ModelUnavailable(
            f"{name} draws from captions, which a T5 encodes first: put google/flan-t5-xl into {folder} (`hf download "
            f"google/flan-t5-xl --local-dir {folder}`)."
        )
    # T5's feed-forward overflows in float16.
    dtype = torch.float32 if empty.dtype == torch.float16 else empty.dtype
    with opening(f"the T5 of {name}", folder), exclusive_loading():
        tokenizer = AutoTokenizer.from_pretrained(folder, **LOCAL)
        encoder: Any = T5EncoderModel.from_pretrained(folder, dtype=dtype, use_safetensors=True, **LOCAL)
    if encoder.config.d_model != empty.shape[1] or tokenizer.pad_token_id is None:
        raise ModelUnavailable(
            f"The T5 in {folder} gives {encoder.config.d_model} features, and {name} reads {empty.shape[1]}: flan-t5-xl has 2048."
        )
    return CaptionPrompts(tokenizer, encoder.to(empty.device).eval().requires_grad_(False), empty, projection)


def words_of(text: str) -> list[str]:
    """Return the distinct lower-case words of a text, in order."""
    return list(dict.fromkeys(_WORD.findall(unicodedata.normalize("NFKC", text).lower())))


def words_file(model: str) -> Path:
    """Return the file with the words that the shipped ``model`` learned."""
    return WORDS / f"{model.partition('-')[0]}.txt"


@cache
def _learned(file: Path) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    """Return the words of each training picture by its name, and the styles and backgrounds."""
    lines = file.read_text("utf-8").splitlines()
    looks = tuple(line for line in lines if line.endswith(" style") or line.startswith("on "))
    return {line.partition(",")[0]: words_of(line) for line in lines if line not in looks}, looks


def reading(model: str, prompt: str) -> tuple[str, str]:
    """Return the prompt as the shipped ``model`` reads it, and a warning about unknown words or combinations of words, or "".

    Pictographs are read by their Unicode names. A model in :data:`BY_NAME` reads other words, or more words, as the nearest
    picture's name: words count by rarity, and more in a name. Of equally near names, the one whose other words are the most
    common wins. Only names may be misspelled, since most unknown words resemble a keyword that means something else.
    """
    if _PICTOGRAPH.search(prompt):
        spelled = _PICTOGRAPH.sub(lambda one: f" {unicodedata.name(one[0], one[0]).lower()} ", prompt.replace("\ufe0f", ""))
        prompt = " ".join(spelled.split()).replace("heavy black heart", "red heart")  # Unicode's black means filled
    (pictures, looks), every = _learned(words_file(model)), words_of(prompt)
    asked = [look for look in looks if re.search(rf"\b{look}\b", " ".join(every))]
    subject = [word for word in every if word not in _FILLERS.union(*map(str.split, asked))]
    counts = Counter(word for words in pictures.values() for word in words)
    if model in BY_NAME and subject:
        found, names = counts.keys() & set(subject), words_of(" ".join(pictures))
        nearest = "the nearest picture" if found else "the nearest by spelling"
        for word in subject[:PROMPT_TOKENS]:
            found.update(difflib.get_close_matches(word, [one for one in names if one[:3] == word[:3]], 1, ALIKE))
        if not found:
            return f"{STRANGER}, {looks[0]}", f"{model} knows no word of this prompt, so it draws a {STRANGER}."

        def nearness(name: str) -> tuple[float, float, int]:
            named, rarity = words_of(name), {word: math.log(1 + len(pictures) / counts[word]) for word in pictures[name]}
            shared = sum(rarity[word] * (1.25 if word in named else 1) for word in found.intersection(rarity))
            return shared, -max((rarity[word] for word in named if word not in found), default=0), -len(rarity)

        name = max(pictures, key=nearness)
        alone = set(asked) <= {looks[0]} and set(words_of(name)) <= set(subject) <= set(pictures[name])
        if not alone:
            return f"{name}, {looks[0]}", f"{model} draws one thing that it learned, on white: “{name}”, {nearest}."
    known = counts.keys() | words_of(" ".join(looks))
    if unknown := [word for word in every if word not in known | _FILLERS]:
        phrase = "any word of this prompt" if len(unknown) == len(every) else "these words of the prompt"
        guess = "It reads them in pieces, and what it draws is a guess."
        return prompt, f"{model} learned no picture with {phrase}: {quoted(unknown)}. {guess}"
    if (subject or not asked) and any(set(subject) <= set(words) for words in pictures.values()):
        return prompt, ""
    what = "the words of this prompt, but no picture with all of them" if subject else "no picture without a thing"
    return prompt, f"{model} learned {what}: what it draws is a guess."

"""The request of a run, and the memory that one user's runs share. Nothing here imports torch."""

from __future__ import annotations

import math
import operator
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

from specviz.errors import BadInput, shown
from specviz.methods.registry import build, get

MOST_NEW_TOKENS = 4096
MAX_PROMPT_CHARACTERS = 1_000_000
"""Maximum length of a prompt, set by the trace format."""
MOST_ENTRIES = 8
"""Maximum number of values in one user's memory."""
_WHOLE = {"max_new_tokens": (1, MOST_NEW_TOKENS), "top_k": (0, 2**31 - 1), "seed": (0, 2**63 - 1)}
_TEXTS = ("method", "prompt", "target", "dtype", "device", "tier", "record")
_SWITCHES = ("raw", "baseline")
_REAL = dict.fromkeys(("temperature", "top_p", "guidance"), (-math.inf, math.inf))


@dataclass(frozen=True)
class Request:
    """Settings of a run. "auto" chooses dtype, device and tier for the machine.

    ``raw``: skip the chat template. ``image``: path or bytes of a PNG or JPEG, for vision-language targets. ``parameters``: the
    method's parameters as a mapping, converted to the method's dataclass. ``guidance``: guidance scale of an image model; default
    set by the model. ``temperature``: by default 1 for image models and 0 for others.
    """

    method: str
    prompt: str
    target: str = "smollm2-135m-instruct"
    draft: str | None = None
    raw: bool = False
    max_new_tokens: int = 128
    temperature: float | None = None
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    dtype: str = "auto"
    device: str = "auto"
    tier: str = "auto"
    parameters: Any = field(default_factory=dict)
    baseline: bool = False
    record: str = "tree"
    image: bytes | str | None = None
    guidance: float | None = None

    def __post_init__(self) -> None:
        """Check the fields. Raises BadInput that names the invalid field."""
        for name in _TEXTS:
            _text(name, getattr(self, name))
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise BadInput.of_field(name, name, f"is {shown(getattr(self, name))}; give True or False.")
        for name, (low, high) in (_WHOLE | _REAL).items():
            value = getattr(self, name)
            if value is None and name in ("temperature", "guidance"):
                continue
            convert = operator.index if name in _WHOLE else float  # index also accepts NumPy integers, but not 1.5
            try:
                number = math.nan if isinstance(value, bool | str | bytes) else convert(value)
            except (TypeError, ValueError, OverflowError):
                number = math.nan
            if not low <= number <= high or math.isinf(number):
                kind = f"whole number from {low} to {high}" if name in _WHOLE else "finite number"
                raise BadInput.of_field(name, name, f"is {shown(value)}; choose a {kind}.")
            object.__setattr__(self, name, number)
        _text("draft", "" if self.draft is None else self.draft)
        pictures = self.image if isinstance(self.image, list | tuple) else (self.image,)
        if not all(isinstance(picture, bytes | str | PathLike | None) for picture in pictures):
            raise BadInput(f"image is {shown(self.image)}; give the path of a picture, or the bytes of a PNG or JPEG.")
        method = get(self.method)
        if not isinstance(self.parameters, Mapping | method.parameters):
            raise BadInput(f'parameters is {shown(self.parameters)}; give a dict of method parameters, such as {{"nodes": 8}}.')
        if isinstance(self.parameters, Mapping):
            object.__setattr__(self, "parameters", build(method.parameters, self.parameters, method.title))
        if not self.prompt.strip():
            raise BadInput("The prompt is empty; enter a text.")
        if len(self.prompt) > MAX_PROMPT_CHARACTERS:
            raise BadInput(f"The prompt has {len(self.prompt):,} characters; the maximum is {MAX_PROMPT_CHARACTERS:,}.")


def refuse_unused(request: Request, reasons: Mapping[str, str]) -> None:
    """Raise BadInput if a field is set that the target does not accept. ``reasons``: explanation by field name."""
    for name, sentence in reasons.items():
        if getattr(request, name) not in (None, False):
            raise BadInput(f"{request.target} takes no {name}: {sentence}; leave {name} out.")


def _text(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise BadInput.of_field(name, name, f"is {shown(value)}; give text.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadInput.of_field(name, name, "contains half of a surrogate pair, which is not a character; remove it.") from None


@dataclass
class _Entry:
    """A stored value and the next generation for a run that uses the value."""

    value: Any
    generation: int = 0


class Memory:
    """Values that one user's runs share, such as n-gram stores. Bounded; evicts the least recently used value."""

    def __init__(self) -> None:
        self._entries: OrderedDict[tuple[Any, ...], _Entry] = OrderedDict()
        self._lock = threading.Lock()

    def entry(self, key: tuple[Any, ...], make: Callable[[], Any]) -> _Entry:
        """Return the entry of ``key``, with a value built by ``make`` if absent."""
        with self._lock:
            if key not in self._entries:
                self._entries[key] = _Entry(make())
            self._entries.move_to_end(key)
            while len(self._entries) > MOST_ENTRIES:
                self._entries.popitem(last=False)
            return self._entries[key]

    def next_generation(self, entries: Sequence[_Entry]) -> int:
        """Return the generation of a new run that uses ``entries``: 0 for the first run, then increasing.

        Two runs that share an entry never get the same generation, even if decoded concurrently.
        """
        with self._lock:
            generation = max((entry.generation for entry in entries), default=0)
            for entry in entries:
                entry.generation = generation + 1
            return generation


class RunMemory:
    """The memory as seen by one run; lists the entries that the run uses."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._entries = list[_Entry]()

    def remember(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """Return the value of ``key``, built by ``make`` if absent."""
        self._entries.append(self._memory.entry(key, make))
        return self._entries[-1].value

    def generation(self) -> int:
        """Return the run's generation (:meth:`Memory.next_generation`). To be called once, after the last ``remember``."""
        return self._memory.next_generation(self._entries)

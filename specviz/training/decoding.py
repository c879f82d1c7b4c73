"""Continuous batching of many short texts, optionally after a picture.

Rows of a batch differ in length, and a finished row admits the next request at once. The decoder stores the target's hidden
states, which feature drafters are trained on. Axis names: ``row`` (of the batch), ``token``, ``tap``, ``hidden``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AttentionInterface

from specviz.engine.cache import CACHE_ARGUMENT
from specviz.training.features import LARGEST

TOP_K = 64
GRAM = 8
REPEATS = 2
GROUP = 32
"""Rows per group on a CPU. The keys of a group are padded to a common width."""
ROOM = 16
"""On a GPU, new requests wait until one row in this many is free, because prefilling dozens takes as long as prefilling one."""
EVEN = 32
"""On a GPU, the width of a pass is a multiple of this number: for other widths, cuBLAS chose kernels for older GPUs."""
TOKENS = 1024
"""Maximum number of prefill tokens in one pass on a CPU: more activations would exceed the CPU's cache."""
_ATTENTION = "specviz_rows"


@dataclass(frozen=True)
class Request:
    """A text to continue.

    ``longest``: maximum length of the answer in tokens. ``tag``: any value, returned with the answer. ``before``
    [place, hidden]: embeddings in front of the text, such as a picture's.
    """

    ids: tuple[int, ...]
    temperature: float
    longest: int
    tag: Any = None
    before: Tensor | None = None

    def __len__(self) -> int:
        return len(self.ids) + (0 if self.before is None else len(self.before))


class Finished(NamedTuple):
    """A finished request.

    ``features`` [token, tap, hidden]: hidden states of prefix, request and answer, float16. ``looped``: whether decoding stopped
    because the answer repeated itself.
    """

    request: Request
    answer: tuple[int, ...]
    features: Tensor
    looped: bool


@dataclass
class _Row:
    """A request in progress. ``start``: position of the first answer token."""

    request: Request
    start: int
    answer: list[int] = field(default_factory=list)
    grams: dict[tuple[int, ...], int] = field(default_factory=dict)

    @property
    def length(self) -> int:
        return self.start + len(self.answer)

    def looped(self) -> bool:
        """Count the n-gram of the last ``GRAM`` tokens; return whether the answer now has it more than ``REPEATS`` times."""
        if len(self.answer) < GRAM:
            return False
        last = tuple(self.answer[-GRAM:])
        self.grams[last] = self.grams.get(last, 0) + 1
        return self.grams[last] > REPEATS


class _Slots:
    """Key-value cache of all rows, [layer][row, kv head, place, size].

    On a CPU, a pass splits the rows into groups of similar length, which saves padding. On a GPU, all rows form one group, since
    padding costs less than many small products.
    """

    rows: Tensor
    places: Tensor
    _groups: list[tuple[Tensor, int]]

    def __init__(self, config: Any, rows: int, places: int, like: Tensor) -> None:
        self._group = GROUP if like.device.type == "cpu" else rows
        shape = (config.num_hidden_layers, rows, config.num_key_value_heads, places, config.head_dim)
        self.keys, self.values = like.new_zeros(shape), like.new_zeros(shape)

    def at(self, rows: Tensor, places: Tensor, width: int) -> None:
        """Set the rows [row] and positions [row, token] of the next pass.

        Positions are below ``width``, rows sorted by length.
        """
        self.rows, self.places = rows, places
        parts = zip(rows.split(self._group), places.split(self._group), strict=True)
        self._groups = [(part, width if len(part) == len(rows) else int(where.max()) + 1) for part, where in parts]

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[list[Tensor], list[Tensor]]:
        """Store keys and values [row, kv head, token, size] of a layer; called by transformers.

        Returns the keys and the values [row, kv head, place, size] of each group of rows, for :func:`_attend`.
        """
        states = []
        for cache, fresh in ((self.keys[layer], keys), (self.values[layer], values)):
            cache[self.rows[:, None], :, self.places] = fresh.transpose(1, 2).to(cache.dtype)  # rotary embeddings are float32
            # A contiguous copy: otherwise each product would make a transposed one, which takes five times as long.
            states.append([cache[:, :, :width].index_select(0, rows) for rows, width in self._groups])
        return states[0], states[1]

    def get_seq_length(self, layer: int = 0) -> int:
        """Return 0; called by transformers. Rows differ in length, so positions are always passed explicitly."""
        return 0


def _attend(
    module: Any, queries: Tensor, keys: list[Tensor], values: list[Tensor], mask: Tensor, scaling: float = 1.0, **_: Any
) -> tuple[Tensor, None]:
    """Grouped-query attention by two matrix products per group of rows.

    For one query per row, torch's fused kernels take thirteen times as long on a CPU (bfloat16, 32 rows, 300 places).
    """
    outputs = []
    sizes = [len(visible) for visible in keys]
    for query, visible, state, hidden in zip((queries * scaling).split(sizes), keys, values, mask.split(sizes), strict=True):
        rows, heads, tokens, size = query.shape
        kv_heads, width = visible.shape[1:3]
        scores = query.reshape(rows, kv_heads, heads // kv_heads * tokens, size) @ visible.transpose(-1, -2)
        scores = scores.view(rows, kv_heads, heads // kv_heads, tokens, width) + hidden[:, :, None, :, :width]
        attention = scores.softmax(-1).view(rows, kv_heads, heads // kv_heads * tokens, width) @ state
        outputs.append(attention.view(rows, heads, tokens, size))
    return torch.cat(outputs).transpose(1, 2), None


AttentionInterface.register(_ATTENTION, _attend)


class Decoder:
    """Decoder of many requests at once.

    ``end``: token that ends an answer. ``taps``: hidden states to store, in transformers' numbering; may be empty. ``rows``:
    batch size. ``places``: maximum length of a row in tokens.
    """

    @torch.inference_mode()
    def __init__(
        self, model: Any, end: int, prefix: Sequence[int], taps: Sequence[int], rows: int = 64, places: int = 768
    ) -> None:
        """Prefill ``prefix``, which precedes every request, in all rows."""
        self._base = getattr(model.base_model, "text_model", model.base_model)
        self._model, self._end, self._taps = model, end, tuple(taps)
        self._embedding = model.get_input_embeddings()
        self._device, self._dtype = model.device, self._embedding.weight.dtype
        config = model.config.get_text_config()
        self._places, self._prefix = places, len(prefix)
        # Under autocast, keys and values have autocast's dtype instead of the weights'.
        if torch.is_autocast_enabled(self._device.type):
            self._dtype = torch.get_autocast_dtype(self._device.type)
        self._slots = _Slots(config, rows, places, torch.empty(0, dtype=self._dtype, device=self._device))
        shape = (rows, places, len(self._taps), int(config.hidden_size))
        self._features = torch.zeros(shape, dtype=torch.float16, device=self._device)
        self._rows, self._count = dict[int, _Row](), rows
        if prefix:
            embedded = self._embedding(torch.tensor([prefix], device=self._device)).expand(rows, -1, -1)
            at = torch.arange(len(prefix), device=self._device).expand(rows, -1)
            self._pass(embedded, at, torch.arange(rows, device=self._device), len(prefix))

    @torch.inference_mode()
    def run(self, requests: Iterable[Request], generator: torch.Generator | None = None) -> Iterator[Finished]:
        """Decode ``requests``, admitted as rows become free, and yield answers as they finish."""
        waiting, more = iter(requests), True
        while more or self._rows:
            free = [place for place in range(self._count) if place not in self._rows]
            if self._device.type != "cpu" and len(free) * ROOM < self._count:
                free = []
            admitted = [request for _, request in zip(free, waiting, strict=False)]
            more = more and len(admitted) == len(free)
            if admitted:
                self._admit(free[: len(admitted)], admitted, generator)
            if self._rows:
                yield from self._step(generator)

    def _admit(self, free: Sequence[int], requests: Sequence[Request], generator: torch.Generator | None) -> None:
        """Prefill the requests into free rows, grouped by length. Padding on the right is masked by causality."""
        most = TOKENS if self._device.type == "cpu" else len(requests) * self._places
        waiting = sorted(zip(free, requests, strict=True), key=lambda pair: len(pair[1]))
        while waiting:
            count = max(1, most // len(waiting[-1][1]))
            waiting, part = waiting[:-count], waiting[-count:]
            self._read([row for row, _ in part], [request for _, request in part], generator)

    def _read(self, free: Sequence[int], requests: Sequence[Request], generator: torch.Generator | None) -> None:
        """Prefill requests in one pass and sample the first token of each answer."""
        lengths = torch.tensor([len(request) for request in requests])
        longest = int(lengths.max())
        ids = torch.full((len(requests), longest), self._end)
        for row, request in zip(ids, requests, strict=True):
            row[len(request) - len(request.ids) : len(request)] = torch.tensor(request.ids)
        embedded = self._embedding(ids.to(self._device))
        for row, request in zip(embedded, requests, strict=True):
            if request.before is not None:
                row[: len(request.before)] = request.before
        places = (self._prefix + torch.arange(longest, device=self._device)).expand(len(requests), -1)
        hidden = self._pass(embedded, places, torch.tensor(free, device=self._device), self._prefix + longest)
        last = hidden[torch.arange(len(requests)), lengths - 1]
        for row, request in zip(free, requests, strict=True):
            self._rows[row] = _Row(request, self._prefix + len(request))
        self._draw_next(list(free), last, generator)

    def _step(self, generator: torch.Generator | None) -> Iterator[Finished]:
        """Decode one token in every row and yield the answers that finish."""
        rows = dict(sorted(self._rows.items(), key=lambda item: item[1].length))
        busy, on = list(rows), list[int]()
        ids = torch.tensor([[row.answer[-1]] for row in rows.values()], device=self._device)
        at = torch.tensor([[row.length - 1] for row in rows.values()], device=self._device)
        hidden = self._pass(self._embedding(ids), at, torch.tensor(busy, device=self._device), rows[busy[-1]].length)[:, 0]
        for number, (place, row) in enumerate(rows.items()):
            looped = row.looped()
            if looped or row.answer[-1] == self._end or len(row.answer) >= row.request.longest:
                del self._rows[place]
                yield Finished(row.request, tuple(row.answer), self._features[place, : row.length].clone(), looped)
            else:
                on.append(number)
        if on:
            self._draw_next([busy[number] for number in on], hidden[on], generator)

    def _draw_next(self, places: Sequence[int], hidden: Tensor, generator: torch.Generator | None) -> None:
        """Sample the next token of the rows ``places`` from their last hidden states ``hidden`` [row, hidden]."""
        rows = [self._rows[place] for place in places]
        logits = self._model.get_output_embeddings()(hidden).float()
        best, ids = logits.topk(min(TOP_K, logits.shape[-1]))
        # In bfloat16 several tokens often share the top logit; like argmax, take the lowest token id.
        greedy = ids.masked_fill(best < best[:, :1], logits.shape[-1]).min(-1).values
        temperature = torch.tensor([row.request.temperature for row in rows], device=logits.device)
        distribution = (best / temperature.clamp_min(1e-3)[:, None]).softmax(-1)
        drawn = ids.gather(1, torch.multinomial(distribution, 1, generator=generator))[:, 0]
        for row, token in zip(rows, torch.where(temperature > 0, drawn, greedy).tolist(), strict=True):
            row.answer.append(token)

    def _pass(self, embedded: Tensor, places: Tensor, rows: Tensor, width: int) -> Tensor:
        """Run the model on embeddings [row, token, hidden] and store the taps. Returns the last hidden states, same shape.

        ``places`` [row, token]: positions, all below ``width``. ``rows`` [row]: rows of the cache.
        """
        if self._device.type != "cpu":
            width = min(width + -width % EVEN, self._places)
        self._slots.at(rows, places, width)
        visible = torch.arange(width, device=self._device) <= places[:, None, :, None]
        mask = torch.zeros(visible.shape, dtype=self._dtype, device=self._device).masked_fill(~visible, float("-inf"))
        config = self._base.config
        attention, config._attn_implementation = config._attn_implementation, _ATTENTION
        try:
            passed = self._base(
                inputs_embeds=embedded, attention_mask=mask, position_ids=places, use_cache=True, **{CACHE_ARGUMENT: self._slots},
                output_hidden_states=sorted(set(self._taps)) or False,
            )  # fmt: skip
        finally:
            config._attn_implementation = attention
        if self._taps:
            stacked = torch.stack([passed.hidden_states[tap] for tap in self._taps], dim=2)
            self._features[rows[:, None], places] = stacked.clamp(-LARGEST, LARGEST).half()
        return passed.last_hidden_state


def answers(
    model: Any,
    end: int,
    prefix: Sequence[int],
    requests: Sequence[Request],
    rows: int = 64,
    generator: torch.Generator | None = None,
) -> list[tuple[int, ...]]:
    """Return the answers to ``requests`` in order, decoding at most ``rows`` requests at once."""
    places = len(prefix) + max(len(request) + request.longest for request in requests)
    decoder = Decoder(model, end, prefix, (), min(rows, len(requests)), places)
    numbered = [replace(request, tag=number) for number, request in enumerate(requests)]
    found = {finished.request.tag: finished.answer for finished in decoder.run(numbered, generator)}
    return [found[number] for number in range(len(requests))]

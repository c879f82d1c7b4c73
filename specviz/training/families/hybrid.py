"""``train hybrid`` and ``train hybrid_draft``: a small hybrid target and a Mamba-2 drafter distilled from the target."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import AutoTokenizer, BambaConfig, BambaForCausalLM, Mamba2Config, Mamba2ForCausalLM

from specviz.errors import ModelUnavailable
from specviz.models.device import choose_device
from specviz.models.hub.packed_model import TEACHER_KEY, named, read_model, write_model
from specviz.models.hub.prepare import prepare
from specviz.targets.state_layers import anatomy
from specviz.training import acceptance, data, driver, parallel
from specviz.training.driver import Job, Schedule, Step, TrainState
from specviz.training.features import TARGET
from specviz.training.phrases import byte_pairs
from specviz.training.registry import WEIGHTS, recipes

LENGTH = 384
"""Tokens per row."""
SLOWEST, FASTEST = 0.002, 0.2


def target_config(vocab_size: int) -> BambaConfig:
    """Return the target's config: five Mamba-2 layers and one attention layer, 2.8 million weights."""
    return BambaConfig(vocab_size=vocab_size, pad_token_id=None, **recipes()["hybrid"].shape)


def draft_config(vocab_size: int) -> Mamba2Config:
    """Return the drafter's config: two Mamba-2 layers, half a million weights."""
    return Mamba2Config(vocab_size=vocab_size, **recipes()[DRAFT].shape)


def new_model(config: Any) -> Any:
    """Return a network with random weights whose layers add zero, and time steps from slow to fast."""
    torch.manual_seed(0)
    model: Any = BambaForCausalLM(config) if isinstance(config, BambaConfig) else Mamba2ForCausalLM(config)
    model.get_input_embeddings().weight.data.normal_(std=0.02)
    for block in anatomy(model).blocks:
        for part in (block.mixer, block.attention, block.feed):
            for name, layer in part.named_modules() if part else ():
                if isinstance(layer, nn.Linear):
                    layer.weight.data.normal_(std=layer.in_features**-0.5)
                    if name in {"out_proj", "o_proj", "down_proj"}:
                        layer.weight.data.zero_()
        if block.mixer:  # log-spaced time steps, decays from 1 to 8
            step = torch.exp(torch.linspace(math.log(SLOWEST), math.log(FASTEST), block.mixer.num_heads))
            block.mixer.dt_bias.data.copy_(step + torch.log(-torch.expm1(-step)))
            block.mixer.A_log.data.copy_(torch.log(torch.linspace(1, 8, block.mixer.num_heads)))
            block.mixer.D.data.fill_(1.0)
    return model


START = "<|im_start|>"
END = "<|im_end|>"
OPENING = f"{START}user\n"
VOCABULARY = 2048
HOTTEST = 0.8
LOOPING = 0.6
LONGEST = 360


class Split(NamedTuple):
    """Training and held-out dialogues, as texts that start with ``OPENING`` or as token ids."""

    training: list[Any]
    held_out: list[Any]


def texts(dialogues: data.Dialogues, tokenizer: Any) -> Split:
    """Return the usable dialogues as text with marked turns. ``tokenizer``: tokenizer of the dialogue file."""

    def usable(numbers: Sequence[int]) -> Iterator[str]:
        for number in numbers:
            if dialogues.temperature[number] > HOTTEST or loops(dialogues.answer(number).tolist()):
                continue
            spoken = tokenizer.decode(dialogues.of(number).tolist())
            if not spoken.endswith(END):  # keep the answer's complete sentences
                question, separator, reply = spoken.rpartition(f"{START}assistant\n")
                reply = reply[: 1 + max(reply.rfind(mark) for mark in ".!?")]
                if len(reply) < 40:
                    continue
                spoken = f"{question}{separator}{reply}{END}"
            yield f"{OPENING}{spoken}\n"

    return Split(*(list(usable(part)) for part in data.split(dialogues)))


def loops(answer: Sequence[int]) -> bool:
    """Whether less than ``LOOPING`` of an answer's 4-grams are distinct."""
    runs = [tuple(answer[place : place + 4]) for place in range(len(answer) - 3)]
    return bool(runs) and len(set(runs)) < LOOPING * len(runs)


def small_tokenizer(training: Sequence[str], size: int = VOCABULARY) -> Tokenizer:
    """Return a byte-level BPE tokenizer, trained on the training texts, with the markers of the chat template."""
    return byte_pairs(training, size, [START, END])


def corpus(dialogue_texts: Split, tokenizer: Tokenizer) -> Split:
    """Return the dialogues as token ids, truncated to ``LONGEST``."""
    encoded = (tokenizer.encode_batch(part) for part in (dialogue_texts.training, dialogue_texts.held_out))
    return Split(*([np.asarray(one.ids[:LONGEST], dtype=np.int64) for one in part] for part in encoded))


def rows(spoken: Sequence[np.ndarray], length: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield endless rows of ``length + 1`` tokens, each from the start of a dialogue, reshuffled in every pass.

    A dialogue cut off by the end of a row is repeated at the start of the next row.
    """
    waiting: list[np.ndarray] = []
    filled = 0
    while True:
        for number in generator.permutation(len(spoken)):
            waiting.append(spoken[number])
            filled += len(spoken[number])
            if filled > length:
                yield np.concatenate(waiting)[: length + 1]
                again = len(waiting) > 1
                waiting, filled = ([spoken[number]], len(spoken[number])) if again else ([], 0)


Loss = Callable[[Tensor], Tensor]
"""Function from tokens [batch, token + 1] to the summed loss."""
SHOWN_ROWS = 24
"""Number of held-out rows at a milestone."""
MEASURED_ROWS = 60
DRAFT = "hybrid_draft"
TEACHER = WEIGHTS / "hybrid.safetensors"


class StateSpaceTraining(TrainState):
    """Training of a model with state-space layers. ``teacher``: target of a drafter. ``tokens_a_byte``: tokens per text byte."""

    unit = "tokens"

    def __init__(
        self, model: Any, corpus: Split, loss: Loss, settings: Schedule, teacher: Any = None,
        tokens_a_byte: float = math.nan,
    ) -> None:  # fmt: skip
        self.model, self.corpus, self.loss, self.teacher, self.tokens_a_byte = model, corpus, loss, teacher, tokens_a_byte
        super().__init__(settings, model)
        self.begin()

    def shaped(self, name: str, value: Tensor) -> Tensor:
        """Flatten all but the layers' matrices, so that Adam updates the embedding, too."""
        return value if value.ndim == 2 and "embed" not in name else value.reshape(-1)

    def begin(self) -> None:
        """Start a stream of rows. A resumed run has a new seed instead of skipping rows."""
        generator = np.random.default_rng([0, self.progress.updates])
        every = rows(self.corpus.training, LENGTH, generator)
        self.stream = iter(lambda: list(islice(every, self.settings.batch)), [])

    def learn_from(self, batch: Sequence[np.ndarray]) -> Step:
        """Return the mean loss per token and gradients, clipped to norm 1."""
        count = sum(len(row) - 1 for row in batch)

        def loss(part: Sequence[np.ndarray]) -> Tensor:
            return self.loss(torch.from_numpy(np.stack(part)).to(self.device)) / count

        step = self.learn(batch, loss, count)
        norm = torch.stack([gradient.norm() for gradient in step.gradients.values()]).norm().clamp_min(1.0)
        return step._replace(gradients={name: gradient / norm for name, gradient in step.gradients.items()})

    def measure(self) -> dict[str, float]:
        return {"held_out": self.held_out_loss(SHOWN_ROWS)}

    @torch.no_grad()
    def held_out_loss(self, many: int) -> float:
        """Return the mean loss per token over ``many`` held-out rows."""
        return float(np.mean([float(self.loss(tokens)) for tokens in self._held_out(many)])) / LENGTH

    @torch.no_grad()
    def agreement(self, teacher: Any, many: int) -> dict[str, float]:
        """Return how often the teacher's top token is the drafter's top token, and how often it is in the drafter's top four."""
        rows = self._held_out(many)
        ranks = [acceptance.ranks_of(_logits(self.model, tokens), _logits(teacher, tokens).argmax(-1)) for tokens in rows]
        return {f"top{breadth}": float((torch.cat(ranks) < breadth).float().mean()) for breadth in (1, 4)}

    def metrics(self) -> dict[str, float]:
        """Return nats per token, with bits per byte for a target, and with the agreement for a drafter."""
        nats = self.held_out_loss(MEASURED_ROWS)
        if self.teacher:
            return {"held_out_kl": nats, **self.agreement(self.teacher, MEASURED_ROWS)}
        return {"held_out_nats": nats, "held_out_bits_a_byte": nats / math.log(2) * self.tokens_a_byte}

    def _held_out(self, many: int) -> list[Tensor]:
        stream = rows(self.corpus.held_out, LENGTH, np.random.default_rng(0))
        return [torch.from_numpy(next(stream))[None].to(self.device) for _ in range(many)]


def next_token_loss(model: Any, tokens: Tensor) -> Tensor:
    """Return the cross-entropy in nats, summed over tokens."""
    return F.cross_entropy(_logits(model, tokens).flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")


def distillation_loss(model: Any, teacher: Any, tokens: Tensor) -> Tensor:
    """Return the KL divergence from the teacher's distribution at temperature 1, summed over tokens."""
    with torch.no_grad():
        distribution = _logits(teacher, tokens).log_softmax(-1)
    return F.kl_div(_logits(model, tokens).log_softmax(-1), distribution, log_target=True, reduction="sum")


def _logits(model: Any, tokens: Tensor) -> Tensor:
    """Return the float32 logits [batch, token, vocab] of the next tokens, from ``tokens`` [batch, token + 1]."""
    with parallel.arithmetic(tokens.device):
        hidden = model.base_model(tokens[:, :-1], use_cache=False).last_hidden_state
        return F.linear(hidden.float(), model.get_output_embeddings().weight).float()


def make(job: Job) -> None:
    """Train, measure on held-out dialogues, and write the weights."""
    device, files, drafts = choose_device(job.device), data.find(job.data), job.recipe.name == DRAFT
    dialogue_texts = _read(files)
    teacher, tokenizer = _teacher(device) if drafts else (None, small_tokenizer(dialogue_texts.training))
    ids = corpus(dialogue_texts, tokenizer)
    settings = driver.settings_for(job, device)
    model = new_model((draft_config if drafts else target_config)(tokenizer.get_vocab_size())).to(device)
    loss = partial(distillation_loss, model, teacher) if drafts else partial(next_token_loss, model)
    # Of the text that the tokens spell, without what ``corpus`` cut off.
    letters = sum(len(tokenizer.decode(row.tolist(), skip_special_tokens=False).encode()) for row in ids.held_out)
    state = StateSpaceTraining(model, ids, loss, settings, teacher, sum(map(len, ids.held_out)) / letters)
    line = data.dialogues_line(files, f"{len(ids.training)} dialogues")
    more = {TEACHER_KEY: named(TEACHER)} if drafts else {}
    driver.run(job, state, line, lambda path, card: write_model(path, model, tokenizer, card), **more)


def _read(files: list[Path]) -> Split:
    """Return the dialogues as text, decoded with SmolLM2's tokenizer."""
    folder = prepare(TARGET, lambda message, fraction: print(message, flush=True))
    return texts(data.read_all(files), AutoTokenizer.from_pretrained(folder, local_files_only=True))


def _teacher(device: torch.device) -> tuple[Any, Tokenizer]:
    """Return the shipped target, frozen, and the target's tokenizer."""
    if not TEACHER.is_file():
        raise ModelUnavailable(
            "The drafter is distilled from the hybrid target, which is missing: first run `python -m specviz train hybrid`."
        )
    packed = read_model(TEACHER)
    return packed.model.to(device).eval().requires_grad_(False), packed.tokenizer

"""``train hybrid`` and ``train hybrid_draft``: a small hybrid target, and by distillation its Mamba-2 drafter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoTokenizer

from specviz.errors import ModelUnavailable
from specviz.models.device import choose_device
from specviz.models.drafters.lora_heads import IMITATES, named
from specviz.models.hub.packed_model import read_model, write_model
from specviz.models.hub.prepare import prepare
from specviz.training.common import data, parallel
from specviz.training.common.card import card, dialogues_line, print_card
from specviz.training.common.loop import Progress, Schedule, Step, TrainState, checkpoint_of, train
from specviz.training.common.optimizer import Optimizer
from specviz.training.common.parallel import cores
from specviz.training.common.target_assets import TARGET
from specviz.training.hybrid.state_space_data import Corpus, Texts, corpus, rows, small_tokenizer, texts
from specviz.training.hybrid.state_space_net import CHUNK, draft_config, fresh, hidden_states, target_config
from specviz.training.registry import WEIGHTS, Job

Loss = Callable[[Tensor], Tensor]
"""Tokens [batch, token + 1] to the summed loss."""
SHOWN_ROWS = 24
"""Held-out rows of a milestone's figure."""
MEASURED_ROWS = 60
DRAFT = "hybrid_draft"
TEACHER = WEIGHTS / "hybrid.safetensors"


@dataclass(frozen=True)
class Settings(Schedule):
    """An update reads ``batch`` rows of ``length`` tokens, ``part`` rows at a time on each of ``workers`` cores."""

    minutes: float = 24.0
    peak: float = 0.006
    decay: float = 0.02
    batch: int = 6
    part: int = 6
    length: int = 6 * CHUNK


class HalfOptimizer(Optimizer):
    """Orthogonalises in bfloat16 where the device is made for it, and reads all that is no matrix of a layer as a vector."""

    def __init__(self, model: Any) -> None:
        self.device = next(model.parameters()).device
        embedding = model.get_input_embeddings().weight
        parts = {}
        for name, value in model.named_parameters():
            plain = value.detach() if value.ndim == 2 and value is not embedding else value.detach().view(-1)
            parts[name] = plain
        super().__init__(parts)

    def _muon(self, name: str, gradient: Tensor) -> Tensor:
        with parallel.arithmetic(self.device):
            return super()._muon(name, gradient).float()


class StateSpaceTraining(TrainState):
    """A model of state-space layers, the tokens it learns from and those kept out, and its loss."""

    settings: Settings

    def __init__(self, model: Any, corpus: Corpus, loss: Loss, settings: Settings) -> None:
        super().__init__(settings, HalfOptimizer(model))
        self.model, self.corpus, self.loss = model, corpus, loss
        self.device = next(model.parameters()).device
        self.begin()

    def begin(self) -> None:
        """Rows from where a resumed training stopped: another seed rather than skipping."""
        generator = np.random.default_rng([self.settings.seed, self.progress.updates])
        self.stream = rows(self.corpus.training, self.settings.length, generator)

    def step(self, share: float) -> Step:
        """The next rows' loss and gradients."""
        return self.learn_from([next(self.stream) for _ in range(self.settings.batch)])

    def learn_from(self, batch: Sequence[np.ndarray]) -> Step:
        """Mean loss over the tokens, and its gradients, clipped to length one."""
        tokens = torch.from_numpy(np.stack(batch)).to(self.device)
        scale, part = 1.0 / tokens[:, 1:].numel(), self.settings.part
        named, own = dict(self.model.named_parameters()), self.optimizer.parameters
        starts = range(0, len(batch), part)
        leaf_gradients, value = parallel.gradients(
            starts, lambda start: self.loss(tokens[start : start + part]) * scale, list(named.values()), self.settings.workers
        )
        gradients = {name: gradient.view_as(own[name]) for name, gradient in zip(named, leaf_gradients, strict=True)}
        norm = torch.stack([gradient.norm() for gradient in gradients.values()]).norm().clamp_min(1.0)
        return Step(value, tokens[:, 1:].numel(), {name: gradient / norm for name, gradient in gradients.items()})

    def measure(self) -> dict[str, float]:
        return {"held_out": self.held_out_loss(SHOWN_ROWS)}

    @torch.no_grad()
    def held_out_loss(self, many: int) -> float:
        """Mean loss a token over ``many`` rows of held-out dialogues."""
        return float(np.mean([float(self.loss(tokens)) for tokens in self._held_out(many)])) / self.settings.length

    @torch.no_grad()
    def agreement(self, teacher: Any, many: int) -> dict[str, float]:
        """How often the teacher's likeliest next token is the drafter's, or among its four likeliest, on held-out rows."""
        best = four = 0.0
        for tokens in self._held_out(many):
            teacher_token = _logits(teacher, tokens).argmax(-1, keepdim=True)
            drafted_tokens = _logits(self.model, tokens).topk(4, dim=-1).indices
            best += float((drafted_tokens[..., :1] == teacher_token).float().mean())
            four += float((drafted_tokens == teacher_token).any(-1).float().mean())
        return {"top1": best / many, "top4": four / many}

    def _held_out(self, many: int) -> list[Tensor]:
        stream = rows(self.corpus.held_out, self.settings.length, np.random.default_rng(0))
        return [torch.from_numpy(next(stream))[None].to(self.device) for _ in range(many)]


def next_token_loss(model: Any) -> Loss:
    """Cross-entropy in nats, summed over tokens."""

    def loss(tokens: Tensor) -> Tensor:
        return F.cross_entropy(_logits(model, tokens).flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")

    return loss


def distillation_loss(model: Any, teacher: Any) -> Loss:
    """Kullback-Leibler divergence from the teacher's distribution at temperature 1, summed over tokens: weight 1, and no other
    term."""

    def loss(tokens: Tensor) -> Tensor:
        with torch.no_grad():
            distribution = _logits(teacher, tokens).log_softmax(-1)
        own = _logits(model, tokens).log_softmax(-1)
        return F.kl_div(own, distribution, log_target=True, reduction="sum")

    return loss


def _logits(model: Any, tokens: Tensor) -> Tensor:
    """tokens [batch, token + 1] to float32 logits [batch, token, vocab] of the next token."""
    with parallel.arithmetic(tokens.device):
        hidden = hidden_states(model, tokens[:, :-1])
        return F.linear(hidden, model.get_output_embeddings().weight).float()


def make(job: Job) -> None:
    """Train, measure on held-out dialogues, write the weights and print the card's line."""
    device = choose_device(job.device)
    if device.type == "cpu":
        torch.set_num_threads(1)  # cores are shared out by rows
    files = data.find(job.data)
    dialogue_texts = _read(files)
    teacher, tokenizer = (None, small_tokenizer(dialogue_texts.training)) if job.recipe.name != DRAFT else _teacher(device)
    ids = corpus(dialogue_texts, tokenizer)
    settings = settings_for(job, device)
    config = (target_config if teacher is None else draft_config)(tokenizer.get_vocab_size())
    model = fresh(config, settings.seed).to(device)
    loss = next_token_loss(model) if teacher is None else distillation_loss(model, teacher)
    state = StateSpaceTraining(model, ids, loss, settings)
    print(f"{len(ids.training)} dialogues to learn from, {len(ids.held_out)} kept out; {settings}", flush=True)
    progress = train(state, checkpoint_of(job.recipe.name))
    finish(job, files, state, progress, tokenizer, measured(state, dialogue_texts, ids, teacher))


def settings_for(job: Job, device: torch.device) -> Settings:
    """A GPU takes all rows at once, many to an update; a processor shares them out to its cores."""
    common = {"minutes": job.minutes, "resume": job.resume}
    if device.type == "cuda":
        return Settings(batch=32, part=32, **common)
    workers = cores()
    return Settings(part=max(1, 6 // workers), workers=workers, **common)


def _read(files: list[Path]) -> Texts:
    """The dialogues as text: only SmolLM2's tokenizer is needed, not the model."""
    folder = prepare(TARGET, lambda message, fraction: print(message, flush=True))
    return texts(data.read_all(files), AutoTokenizer.from_pretrained(folder, local_files_only=True))


def _teacher(device: torch.device) -> tuple[Any, Tokenizer]:
    """The target that ships, frozen, and its tokenizer."""
    if not TEACHER.is_file():
        raise ModelUnavailable("The drafter imitates the hybrid target: make it first with `python -m specviz train hybrid`.")
    packed = read_model(TEACHER)
    return packed.model.to(device).eval().requires_grad_(False), packed.tokenizer


def measured(state: StateSpaceTraining, dialogue_texts: Texts, ids: Corpus, teacher: Any) -> dict[str, float]:
    """Held-out figures: nats a token; of a target also bits a byte, of a drafter how often it agrees with its target."""
    nats = state.held_out_loss(MEASURED_ROWS)
    if teacher is not None:
        return {"held_out_kl": nats, **state.agreement(teacher, MEASURED_ROWS)}
    tokens, letters = sum(map(len, ids.held_out)), sum(len(text.encode()) for text in dialogue_texts.held_out)
    return {"held_out_nats": nats, "held_out_bits_a_byte": nats / 0.6931 * tokens / letters}


def finish(
    job: Job, files: list[Path], state: StateSpaceTraining, progress: Progress, tokenizer: Tokenizer, metrics: Mapping[str, float]
) -> None:  # fmt: skip
    """Write the file with its card."""
    print("held-out:", "  ".join(f"{name} {value:.4f}" for name, value in metrics.items()), flush=True)
    name = job.recipe.name
    facts = card(
        name, state.settings, dialogues_line(files, f"{len(state.corpus.training)} dialogues"),
        progress.spent(state.device.type, "tokens"), metrics, "Apache-2.0, as SmolLM2's, whose dialogues it learned",
        **({IMITATES: named(TEACHER)} if name == DRAFT else {}),
    )  # fmt: skip
    path = WEIGHTS / f"{name}.safetensors"
    write_model(path, state.model, tokenizer, facts)
    print_card(path, facts)

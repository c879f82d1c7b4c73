"""``train hybrid`` and ``train hybrid_draft``: a small hybrid target and its two-layer Mamba-2 drafter, each in one file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from specviz.errors import ModelUnavailable
from specviz.models.device import choose_device
from specviz.models.drafters.lora_heads import IMITATES, named
from specviz.models.hub.packed_model import read_model, write_model
from specviz.models.hub.prepare import prepare
from specviz.training.common import data
from specviz.training.common.card import card, dialogues_line, print_card
from specviz.training.common.loop import Progress, checkpoint_of, train
from specviz.training.common.parallel import cores
from specviz.training.common.target_assets import TARGET
from specviz.training.hybrid.state_space import Settings, StateSpaceTraining, distillation_loss, next_token_loss
from specviz.training.hybrid.state_space_data import Corpus, Texts, corpus, small_tokenizer, texts
from specviz.training.hybrid.state_space_net import draft_config, fresh, target_config
from specviz.training.registry import WEIGHTS, Job

MEASURED_ROWS = 60
DRAFT = "hybrid_draft"
TEACHER = WEIGHTS / "hybrid.safetensors"


def make(job: Job) -> None:
    """Train, measure on held-out dialogues, write the weights and print the card's line."""
    device = choose_device(job.device)
    if device.type == "cpu":
        torch.set_num_threads(1)  # cores are shared out by rows
    file = data.find(job.data)
    found = _read(file)
    teacher, tokenizer = (None, small_tokenizer(found.training)) if job.recipe.name != DRAFT else _teacher(device)
    ids = corpus(found, tokenizer)
    settings = settings_for(job, device)
    config = (target_config if teacher is None else draft_config)(tokenizer.get_vocab_size())
    model = fresh(config, settings.seed).to(device)
    loss = next_token_loss(model) if teacher is None else distillation_loss(model, teacher)
    state = StateSpaceTraining(model, ids, loss, settings)
    print(f"{len(ids.training)} dialogues to learn from, {len(ids.held_out)} kept out; {settings}", flush=True)
    progress = train(state, checkpoint_of(job.recipe.name))
    finish(job, file, state, progress, tokenizer, measured(state, found, ids, teacher))


def settings_for(job: Job, device: torch.device) -> Settings:
    """A GPU takes all rows at once, many to an update; a processor shares them out to its cores."""
    common = {"minutes": job.minutes, "resume": job.resume}
    if device.type == "cuda":
        return Settings(batch=32, part=32, **common)
    workers = cores()
    return Settings(part=max(1, 6 // workers), workers=workers, **common)


def _read(file: Path) -> Texts:
    """The dialogues as text: only SmolLM2's tokenizer is needed, not the model."""
    folder = prepare(TARGET, lambda message, fraction: print(message, flush=True))
    return texts(data.read(file), AutoTokenizer.from_pretrained(folder, local_files_only=True))


def _teacher(device: torch.device) -> tuple[Any, Tokenizer]:
    """The target that ships, frozen, and its tokenizer."""
    if not TEACHER.is_file():
        raise ModelUnavailable("The drafter imitates the hybrid target: make it first with `python -m specviz train hybrid`.")
    packed = read_model(TEACHER)
    return packed.model.to(device).eval().requires_grad_(False), packed.tokenizer


def measured(state: StateSpaceTraining, found: Texts, ids: Corpus, teacher: Any) -> dict[str, float]:
    """Held-out figures: nats a token; of a target also bits a byte, of a drafter how often it agrees with its target."""
    nats = state.held_out_loss(MEASURED_ROWS)
    if teacher is not None:
        return {"held_out_kl": nats, **state.agreement(teacher, MEASURED_ROWS)}
    tokens, letters = sum(map(len, ids.held_out)), sum(len(one.encode()) for one in found.held_out)
    return {"held_out_nats": nats, "held_out_bits_a_byte": nats / 0.6931 * tokens / letters}


def finish(
    job: Job, file: Path, state: StateSpaceTraining, progress: Progress, tokenizer: Tokenizer, metrics: Mapping[str, float]
) -> None:  # fmt: skip
    """Write the file with its card."""
    print("held-out:", "  ".join(f"{name} {value:.4f}" for name, value in metrics.items()), flush=True)
    name = job.recipe.name
    facts = card(
        name, state.settings, dialogues_line(file, f"{len(state.corpus.training)} dialogues"),
        progress.spent(state.device.type, "tokens"), metrics, "Apache-2.0, as SmolLM2's, whose dialogues it learned",
        **({IMITATES: named(TEACHER)} if name == DRAFT else {}),
    )  # fmt: skip
    path = WEIGHTS / f"{name}.safetensors"
    write_model(path, state.model, tokenizer, facts)
    print_card(path, facts)

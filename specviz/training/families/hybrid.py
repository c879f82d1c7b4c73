"""``train hybrid`` and ``train hybrid_draft``: a small hybrid target, and by distillation its Mamba-2 drafter."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import AutoTokenizer, BambaConfig, BambaForCausalLM, Mamba2Config, Mamba2ForCausalLM
from transformers.models.bamba.modeling_bamba import apply_rotary_pos_emb

from specviz.errors import ModelUnavailable
from specviz.models.device import choose_device
from specviz.models.drafters.lora_heads import IMITATES, named
from specviz.models.hub.packed_model import read_model, write_model
from specviz.models.hub.prepare import prepare
from specviz.targets.state_layers import Anatomy, Block, anatomy
from specviz.training import acceptance, data, driver, parallel
from specviz.training.driver import Schedule, Step, TrainState
from specviz.training.features import TARGET
from specviz.training.registry import WEIGHTS, Job

CHUNK = 64
SLOWEST, FASTEST = 0.002, 0.2


def target_config(vocab_size: int) -> BambaConfig:
    """Five Mamba-2 layers and one of attention, 2.8 million weights."""
    return BambaConfig(
        vocab_size=vocab_size, hidden_size=192, intermediate_size=320, num_hidden_layers=6, attn_layer_indices=[3],
        num_attention_heads=6, num_key_value_heads=2, mamba_n_heads=6, mamba_d_head=64, mamba_d_state=64,
        mamba_n_groups=1, mamba_chunk_size=CHUNK, tie_word_embeddings=True, max_position_embeddings=2048,
        bos_token_id=0, eos_token_id=1, pad_token_id=None,
    )  # fmt: skip


def draft_config(vocab_size: int) -> Mamba2Config:
    """Two Mamba-2 layers, half a million weights."""
    return Mamba2Config(
        vocab_size=vocab_size, hidden_size=128, num_hidden_layers=2, expand=2, num_heads=4, head_dim=64, state_size=32,
        n_groups=1, conv_kernel=4, chunk_size=CHUNK, tie_word_embeddings=True, residual_in_fp32=True,
        bos_token_id=0, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip


def fresh(config: Any, seed: int) -> Any:
    """A network that is silent behind every layer, with time steps from slow to fast: it starts as its own embedding."""
    torch.manual_seed(seed)
    model: Any = BambaForCausalLM(config) if isinstance(config, BambaConfig) else Mamba2ForCausalLM(config)
    model.get_input_embeddings().weight.data.normal_(std=0.02)
    for block in anatomy(model).blocks:
        for part in (block.mixer, block.attention, block.feed):
            for name, layer in part.named_modules() if part is not None else ():
                if isinstance(layer, nn.Linear):
                    layer.weight.data.normal_(std=layer.in_features**-0.5)
                    if name in {"out_proj", "o_proj", "down_proj"}:
                        layer.weight.data.zero_()
        if block.mixer is not None:
            _spread(block.mixer)
    return model


def _spread(mixer: Any) -> None:
    """Time steps spread evenly in their logarithm, decays from 1 to 16, as Mamba-2 starts."""
    heads = mixer.num_heads
    step = torch.exp(torch.linspace(math.log(SLOWEST), math.log(FASTEST), heads))
    mixer.dt_bias.data.copy_(step + torch.log(-torch.expm1(-step)))
    mixer.A_log.data.copy_(torch.log(torch.linspace(1, 8, heads)))
    mixer.D.data.fill_(1.0)


def hidden_states(model: Any, ids: Tensor) -> Tensor:
    """ids [batch, token] to what the head reads, [batch, token, hidden]; the number of tokens is whole chunks."""
    body = anatomy(model)
    x = body.embed(ids).float()
    places = torch.arange(ids.shape[1], device=ids.device)[None]
    turns = None if body.rotary is None else body.rotary(x, places)
    for block in body.blocks:
        x = _layer(body, block, x, turns)
    return _norm(x, body.norm)


def _layer(body: Anatomy, block: Block, x: Tensor, turns: Any) -> Tensor:
    inner = _norm(x, block.norm)
    x = x + (_mix(block.mixer, inner) if block.mixer is not None else _attend(block.attention, inner, turns))
    if block.feed is None:
        return x
    return x + block.feed(_norm(x, block.feed_norm))


def _norm(x: Tensor, norm: Any) -> Tensor:
    return F.rms_norm(x.float(), (x.shape[-1],), norm.weight, norm.variance_epsilon)


def _attend(layer: Any, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    shape = (*x.shape[:-1], -1, layer.head_dim)
    query, key, value = (part(x).view(shape).transpose(1, 2) for part in (layer.q_proj, layer.k_proj, layer.v_proj))
    query, key = (part.to(value.dtype) for part in apply_rotary_pos_emb(query, key, *turns))
    attention = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    return layer.o_proj(attention.transpose(1, 2).reshape(*x.shape[:-1], -1))


def _mix(mixer: Any, inner: Tensor) -> Tensor:
    """One Mamba-2 mixer over whole rows."""
    batch, token, _ = inner.shape
    gate, u, raw = mixer.in_proj(inner).split([mixer.intermediate_size, mixer.conv_dim, mixer.num_heads], -1)
    before = mixer.conv1d.kernel_size[0] - 1
    convolved = F.conv1d(F.pad(u.transpose(1, 2), (before, 0)), mixer.conv1d.weight, mixer.conv1d.bias, groups=u.shape[-1])
    side = mixer.n_groups * mixer.ssm_state_size
    x, b, c = F.silu(convolved.transpose(1, 2)).split([mixer.intermediate_size, side, side], -1)
    x = x.reshape(batch, token, mixer.num_heads, mixer.head_dim)
    b, c = (part.reshape(batch, token, mixer.n_groups, mixer.ssm_state_size) for part in (b, c))
    step = F.softplus(raw.float() + mixer.dt_bias).clamp(*mixer.time_step_limit)
    y = scan(x, step, -torch.exp(mixer.A_log.float()), b, c) + mixer.D[:, None].to(x.dtype) * x
    gated = y.reshape(batch, token, -1) * F.silu(gate)
    return mixer.out_proj(_group_norm(gated, mixer.norm, mixer.n_groups))


def _group_norm(x: Tensor, norm: Any, groups: int) -> Tensor:
    if groups == 1:
        return _norm(x, norm)
    parted = x.float().unflatten(-1, (groups, -1))
    return F.rms_norm(parted, (parted.shape[-1],), None, norm.variance_epsilon).flatten(-2) * norm.weight


def scan(x: Tensor, step: Tensor, rate: Tensor, b: Tensor, c: Tensor, chunk: int = CHUNK) -> Tensor:
    """x [batch, n, head, size], step [batch, n, head], rate [head] (negative), b and c [batch, n, group, state] to y like x.

    ``n`` is a multiple of ``chunk``; states start at zero. Decays are float32, products in the dtype of ``x``.
    """
    batch, n, heads, size = x.shape
    shape, heads_per_group = (batch, n // chunk, chunk), heads // b.shape[2]
    fade = (step * rate).view(*shape, heads).transpose(2, 3).cumsum(-1)
    below = torch.ones(chunk, chunk, dtype=torch.bool, device=x.device).tril()
    decay = (fade[..., :, None] - fade[..., None, :]).masked_fill(~below, -math.inf).exp()
    b, c = (part.view(*shape, *part.shape[2:]).transpose(2, 3).repeat_interleave(heads_per_group, 2) for part in (b, c))
    inputs = (x * step[..., None].to(x.dtype)).view(*shape, heads, size).transpose(2, 3)
    inside = (decay.to(x.dtype) * (c @ b.transpose(-1, -2))) @ inputs
    late = (fade[..., -1:] - fade).exp()[..., None].to(x.dtype)
    before = _handed_on((inputs * late).transpose(-1, -2) @ b, fade[..., -1].exp()[..., None, None])
    across = fade.exp()[..., None].to(x.dtype) * (c @ before.transpose(-1, -2).to(c.dtype))
    return (inside + across).transpose(2, 3).reshape(batch, n, heads, size)


def _handed_on(additions: Tensor, decays: Tensor) -> Tensor:
    """The state before each chunk, [batch, chunk, head, size, state], from what each chunk adds and how much it keeps."""
    state, before = torch.zeros_like(additions[:, 0], dtype=torch.float32), []
    for place in range(additions.shape[1]):
        before.append(state)
        state = decays[:, place] * state + additions[:, place]
    return torch.stack(before, 1)


START = "<|im_start|>"
END = "<|im_end|>"
OPENING = f"{START}user\n"
VOCABULARY = 2048
HOTTEST = 0.8
LOOPING = 0.6
LONGEST = 360
Item = TypeVar("Item")


@dataclass(frozen=True)
class Split(Generic[Item]):
    """What is learned from and what is kept out: dialogues as text, each starting with ``OPENING``, or as token ids."""

    training: list[Item]
    held_out: list[Item]


def texts(dialogues: data.Dialogues, tokenizer: Any) -> Split[str]:
    """The usable dialogues, read with the tokenizer they were written in."""
    training, held_out = data.split(dialogues)
    parts = ([_text(dialogues, number, tokenizer) for number in part] for part in (training, held_out))
    return Split(*([text for text in part if text] for part in parts))


def _text(dialogues: data.Dialogues, number: int, tokenizer: Any) -> str:
    """One dialogue with its turns marked, empty where it is of no use here."""
    answer = dialogues.answer(number)
    if dialogues.temperature[number] > HOTTEST or loops(answer.tolist()):
        return ""
    spoken = tokenizer.decode(dialogues.of(number).tolist())
    if not spoken.endswith(END):
        question, separator, reply = spoken.rpartition(f"{START}assistant\n")
        reply = reply[: 1 + max(reply.rfind(mark) for mark in ".!?")]
        if len(reply) < 40:
            return ""
        spoken = f"{question}{separator}{reply}{END}"
    return f"{OPENING}{spoken}\n"


def loops(answer: Sequence[int]) -> bool:
    """Whether fewer than six in ten of an answer's runs of four tokens are different ones."""
    runs = [tuple(answer[place : place + 4]) for place in range(len(answer) - 3)]
    return bool(runs) and len(set(runs)) < LOOPING * len(runs)


def small_tokenizer(training: Sequence[str], size: int = VOCABULARY) -> Tokenizer:
    """Byte-level pairs on the training text alone, with the chat template's two markers."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        training,
        trainers.BpeTrainer(vocab_size=size, special_tokens=[START, END], initial_alphabet=alphabet, show_progress=False),
    )
    return tokenizer


def corpus(dialogue_texts: Split[str], tokenizer: Tokenizer) -> Split[np.ndarray]:
    """Both parts as ids."""
    both = (dialogue_texts.training, dialogue_texts.held_out)
    encoded = (tokenizer.encode_batch(list(part)) for part in both)
    return Split(*([np.asarray(one.ids[:LONGEST], dtype=np.int64) for one in part] for part in encoded))


def rows(spoken: Sequence[np.ndarray], length: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
    """Endless rows of ``length + 1`` tokens, each opening with the start of a dialogue, shuffled each time round.

    A dialogue that the end of a row cut off opens the next one.
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
"""Tokens [batch, token + 1] to the summed loss."""
SHOWN_ROWS = 24
"""Held-out rows of a milestone's figure."""
MEASURED_ROWS = 60
DRAFT = "hybrid_draft"
TEACHER = WEIGHTS / "hybrid.safetensors"


@dataclass(frozen=True)
class Settings(Schedule):
    """An update reads ``batch`` rows of ``length`` tokens."""

    peak: float = 0.006
    decay: float = 0.02
    batch: int = 6
    part: int = 1
    length: int = 6 * CHUNK


class StateSpaceTraining(TrainState):
    """A model of state-space layers, the tokens it learns from and those kept out, and its loss."""

    unit = "tokens"
    settings: Settings

    def __init__(self, model: Any, corpus: Split[np.ndarray], loss: Loss, settings: Settings) -> None:
        self.model, self.corpus, self.loss = model, corpus, loss
        super().__init__(settings, dict(model.named_parameters()))
        self.begin()

    def shaped(self, name: str, value: Tensor) -> Tensor:
        """All that is no matrix of a layer is moved as a vector, the embedding too."""
        return value if value.ndim == 2 and "embed" not in name else value.reshape(-1)

    def begin(self) -> None:
        """Rows from where a resumed training stopped: another seed rather than skipping."""
        generator = np.random.default_rng([self.settings.seed, self.progress.updates])
        self.stream = rows(self.corpus.training, self.settings.length, generator)

    def step(self, share: float) -> Step:
        """The next rows' loss and gradients."""
        return self.learn_from(list(islice(self.stream, self.settings.batch)))

    def learn_from(self, batch: Sequence[np.ndarray]) -> Step:
        """Mean loss over the tokens, and its gradients, clipped to length one."""
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
        """Mean loss a token over ``many`` rows of held-out dialogues."""
        return float(np.mean([float(self.loss(tokens)) for tokens in self._held_out(many)])) / self.settings.length

    @torch.no_grad()
    def agreement(self, teacher: Any, many: int) -> dict[str, float]:
        """How often the teacher's likeliest next token is the drafter's, or among its four likeliest, on held-out rows."""
        shares = np.zeros(2)
        for tokens in self._held_out(many):
            ranks = acceptance.ranks_of(_logits(self.model, tokens), _logits(teacher, tokens).argmax(-1))
            shares += [float((ranks < breadth).float().mean()) for breadth in (1, 4)]
        return {"top1": shares[0] / many, "top4": shares[1] / many}

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
    device, files, drafts = choose_device(job.device), data.find(job.data), job.recipe.name == DRAFT
    dialogue_texts = _read(files)
    teacher, tokenizer = _teacher(device) if drafts else (None, small_tokenizer(dialogue_texts.training))
    ids = corpus(dialogue_texts, tokenizer)
    settings = driver.settings_for(job, device, Settings)
    model = fresh((draft_config if drafts else target_config)(tokenizer.get_vocab_size()), settings.seed).to(device)
    loss = distillation_loss(model, teacher) if drafts else next_token_loss(model)
    state = StateSpaceTraining(model, ids, loss, settings)
    print(f"{len(ids.training)} dialogues to learn from, {len(ids.held_out)} kept out; {settings}", flush=True)
    driver.train(state, driver.checkpoint_of(job.recipe.name))
    line = data.dialogues_line(files, f"{len(ids.training)} dialogues")
    figures, more = measured(state, dialogue_texts, ids, teacher), {IMITATES: named(TEACHER)} if drafts else {}
    licence = "Apache-2.0, as SmolLM2's, whose dialogues it learned"
    driver.finish(job, state, figures, line, lambda path, facts: write_model(path, model, tokenizer, facts), licence, **more)


def _read(files: list[Path]) -> Split[str]:
    """The dialogues as text: only SmolLM2's tokenizer is needed, not the model."""
    folder = prepare(TARGET, lambda message, fraction: print(message, flush=True))
    return texts(data.read_all(files), AutoTokenizer.from_pretrained(folder, local_files_only=True))


def _teacher(device: torch.device) -> tuple[Any, Tokenizer]:
    """The target that ships, frozen, and its tokenizer."""
    if not TEACHER.is_file():
        raise ModelUnavailable("The drafter imitates the hybrid target: make it first with `python -m specviz train hybrid`.")
    packed = read_model(TEACHER)
    return packed.model.to(device).eval().requires_grad_(False), packed.tokenizer


def measured(state: StateSpaceTraining, dialogue_texts: Split[str], ids: Split[np.ndarray], teacher: Any) -> dict[str, float]:
    """Held-out figures: nats a token; of a target also bits a byte, of a drafter how often it agrees with its target."""
    nats = state.held_out_loss(MEASURED_ROWS)
    if teacher is not None:
        return {"held_out_kl": nats, **state.agreement(teacher, MEASURED_ROWS)}
    tokens, letters = sum(map(len, ids.held_out)), sum(len(text.encode()) for text in dialogue_texts.held_out)
    return {"held_out_nats": nats, "held_out_bits_a_byte": nats / 0.6931 * tokens / letters}

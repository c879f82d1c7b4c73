"""Making image models: what they draw and learn, in which order, their codes and how these look, and what is never learned."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from specviz.models.image.image import janus_config, tiles
from specviz.models.image.image_score import ImageScore
from specviz.models.image.prompts import PROMPT_TOKENS
from specviz.training.driver import Schedule, Step, TrainState
from specviz.training.families import emoji, image_ar
from specviz.training.families.emoji import misread
from specviz.training.families.image_ar import TIMES, Curriculum, draw, drawing, fresh, guided, hidden_states, loss, stack
from specviz.training.families.image_vq import Codebook, patches
from tests.support.tiny.images import tiny_image

GRID = 4


def model(layers: int = 2, seed: int = 0) -> Any:
    shape = {"width": 16, "inner": 24, "layers": layers, "heads": 2, "codes": 20, "multiplier": (1, 1), "latent": 32}
    codebook = F.normalize(torch.randn(20, 8, generator=torch.Generator().manual_seed(0)), dim=-1)
    return fresh(janus_config(GRID, prompts=30, **shape), codebook, seed)


def prompts_and_codes() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 30, (3, 5), generator=generator), torch.randint(0, 20, (3, 16), generator=generator)


@torch.no_grad()
def logits(net: Any, prompts: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    return net.model.generation_head(hidden_states(net, prompts, codes))


@torch.no_grad()
def test_drawing_with_guidance_draws_from_the_guided_distribution() -> None:
    net, prompts = model(), torch.tensor([[1, 7, 9, 2], [1, 4, 4, 2]])
    net.model.generation_head.vision_head.weight.mul_(1e6)  # the likeliest code is all there is
    found = draw(net, prompts, torch.tensor([[1, 0, 0, 2]] * 2), GRID * GRID, 2.0, seed=0)
    for place in range(GRID * GRID):
        before = found[:, :place]
        one, other = (logits(net, words, before)[:, -1] for words in (prompts, torch.tensor([[1, 0, 0, 2]] * 2)))
        assert torch.equal(found[:, place], guided((one, other), 2.0).argmax(-1))


def test_a_stacked_network_starts_as_the_one_it_came_from() -> None:
    small, large = model(), model(layers=4, seed=5)
    stack(drawing(small), large)
    prompts, codes = prompts_and_codes()
    torch.testing.assert_close(hidden_states(large, prompts, codes), hidden_states(small, prompts, codes))
    loss(large, prompts, codes).backward()
    assert large.model.language_model.layers[1].mlp.down_proj.weight.grad.abs().max() > 0


def test_a_codebook_finds_what_there_is() -> None:
    torch.manual_seed(0)
    centres = F.normalize(torch.randn(6, 8), dim=-1)
    places = F.normalize(centres[torch.randint(0, 6, (4000,))] + 0.02 * torch.randn(4000, 8), dim=-1)
    book = Codebook(F.normalize(torch.randn(12, 8), dim=-1))
    book.start(places)
    error = 1 - (places * book.vectors[book.nearest(places)]).sum(-1)
    assert error.max() < 0.02
    torch.testing.assert_close(book.vectors.norm(dim=-1), torch.ones(12))


def test_unused_codes_come_back() -> None:
    torch.manual_seed(0)
    book = Codebook(F.normalize(torch.randn(4, 8), dim=-1))
    places = F.normalize(torch.randn(50, 8), dim=-1)
    book.counts[2] = 0.0
    book.revive(places, book.nearest(places), below=0.1)
    assert (places @ book.vectors[2]).max() > 0.999


def test_codes_that_are_misread_are_another_pictures_at_that_place() -> None:
    codes = torch.arange(40)[:, None].repeat(1, 256) * 256 + torch.arange(256)
    read = misread(codes, 0.5, torch.Generator().manual_seed(0))
    assert torch.equal(read % 256, codes % 256)
    wrong = (read != codes).float().mean(1)
    assert wrong.max() < 0.6 and wrong.std() > 0.08 and 0.18 < wrong.mean() < 0.3
    assert torch.equal(misread(codes, 0.0, torch.Generator()), codes)


def test_what_is_learned_is_the_true_code_whatever_was_read() -> None:
    net, (prompts, codes) = model(), prompts_and_codes()
    net.model.generation_head.vision_head.weight.data.mul_(2000)  # or every code would be as likely as any other
    read = codes.flip(0)
    before = logits(net, prompts, read)[:, prompts.shape[1] - 1 : -1]
    own = F.cross_entropy(before.flatten(0, 1), codes.flatten())
    assert torch.allclose(loss(net, prompts, codes, read), own, atol=1e-3)
    assert abs(float(own - F.cross_entropy(before.flatten(0, 1), read.flatten()))) > 0.01
    assert torch.equal(loss(net, prompts, codes, codes), loss(net, prompts, codes))


class Toy(TrainState):
    """Weights drawn to nothing by their own powers."""

    def step(self, share: float) -> Step:
        whole = list(self.leaves.values())
        return self.learn(whole, lambda part: sum((one**4).sum() for one in part) + 0 * sum(one.sum() for one in whole), 5)


def test_convolutions_are_moved_as_matrices() -> None:
    weight = nn.Parameter(torch.randn(3, 2, 3, 3, generator=torch.Generator().manual_seed(0)))
    training = Toy(Schedule(1.0, peak=0.1), {"w": weight})
    before = weight.detach().clone()
    training.update(0.1)
    assert training.optimizer.parameters["w"].shape == (3, 18) and weight.grad is None and not torch.equal(weight, before)


def test_held_out_concepts_are_held_out_in_every_style() -> None:
    rows = {style: number for number, style in enumerate(emoji.STYLES)}
    concepts = [emoji.Concept(f"1f{number:03x}", "x", (), 3, rows) for number in range(2000)]
    share = sum(one.held_out for one in concepts) / len(concepts)
    assert 0.03 < share < 0.07
    art = emoji.Emoji(tuple(concepts), np.zeros((3, 2, 2, 4), np.uint8))
    learning, kept_out = art.part(False), art.part(True)
    assert len(learning) + len(kept_out) == 2000 and not {one.code for one in learning} & {one.code for one in kept_out}


def test_a_tarball_that_is_another_one_is_set_aside(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path))
    folder = tmp_path / "files" / "emoji"
    folder.mkdir(parents=True)
    (folder / emoji.NAMES.file).write_bytes(b"something else")
    with pytest.raises(emoji.ModelUnavailable, match="sha256"):
        emoji.fetched(emoji.NAMES)
    assert (folder / (emoji.NAMES.file + ".corrupt")).exists()


def test_without_npm_one_is_told_what_to_do(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path))
    monkeypatch.setattr(emoji.shutil, "which", lambda name: None)
    with pytest.raises(emoji.ModelUnavailable, match="install Node.js"):
        emoji.fetched(emoji.NAMES)


def test_a_picture_is_found_when_few_prompts_are_nearer(monkeypatch: pytest.MonkeyPatch) -> None:
    near = np.array([[0.9, 0.1, 0.2], [0.8, 0.5, 0.1], [0.9, 0.8, 0.3]])
    monkeypatch.setattr(ImageScore, "of", lambda self, pictures, prompts: near)
    score = ImageScore(None, None, "")  # type: ignore[arg-type]
    found = [score.retrieval_rate([], [], many) for many in (1, 2, 3)]
    assert found == pytest.approx([1 / 3, 2 / 3, 1.0])


class Shelf:
    """Pictures whose codes say which one they are of; the prompt says it too."""

    def __init__(self) -> None:
        self.next = 0

    def guided_batch(self, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        names = torch.arange(self.next, self.next + count)
        self.next += count
        words = torch.stack((torch.ones(count, dtype=torch.long), names), dim=1)
        return words, torch.zeros_like(words), names[:, None].expand(-1, 16).contiguous()

    def draw(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        words, _, codes = self.guided_batch(count)
        return words, codes


def lessons(monkeypatch: pytest.MonkeyPatch, places: int, own: bool, grid: int = 4, count: int = 3) -> Curriculum:
    monkeypatch.setattr(image_ar, "length", lambda share, probability, grid: (places, own))

    def draw(prompts: torch.Tensor, empty: torch.Tensor, places: int, seed: int) -> torch.Tensor:
        assert own and not empty.any(), "nothing is drawn for lessons as they are given"
        return prompts[:, 1:].expand(-1, places) + 100

    return Curriculum(Shelf(), draw, grid, count)  # type: ignore[arg-type]


def test_lessons_as_given_are_short_and_their_words_are_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    words, codes, read = lessons(monkeypatch, 4, False).next(0.0)
    assert codes.shape == read.shape == (3 * (PROMPT_TOKENS + 16) // (PROMPT_TOKENS + 4), 4)
    assert torch.equal(words[:, 1], codes[:, 0]) and (read == codes).float().mean() > 0.75


def test_short_beginnings_cost_what_whole_pictures_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for places in (16, 32, 64, 128, 256):
        count = len(lessons(monkeypatch, places, False, 16, 12).next(0.0)[0])
        assert count >= 12 and count * (16 + places) == pytest.approx(12 * 272, rel=0.05)


def test_own_drawings_stand_beside_what_was_right_and_come_so_many_times(monkeypatch: pytest.MonkeyPatch) -> None:
    made = lessons(monkeypatch, 8, True)
    seen = Counter[int]()
    for _ in range(2 * TIMES * TIMES):
        words, right, own = made.next(0.9)
        assert torch.equal(own, right + 100) and torch.equal(words[:, 1], right[:, 0])
        seen.update(words[:, 1].tolist())
    assert set(seen.values()) == {TIMES} and len(seen) == made.drawn[8] == made.batches.next == 2 * TIMES * (3 * 32 // 24)


def test_a_patch_is_the_mean_of_the_cells_that_hold_its_code() -> None:
    loaded = tiny_image(dtype=torch.float32)
    codes = torch.randint(loaded.codes - 1, (3, loaded.cells), generator=torch.Generator().manual_seed(1))
    mean, figures = patches(loaded, codes)
    pixels = loaded.model.decode_image_tokens(codes).clamp(-1, 1)
    side = pixels.shape[1] // loaded.grid
    chosen = int(codes[0, 7])
    cells = [
        pixels[picture, row * side : (row + 1) * side, column * side : (column + 1) * side]
        for picture, place in (codes == chosen).nonzero().tolist()
        for row, column in [divmod(place, loaded.grid)]
    ]
    torch.testing.assert_close(mean[chosen], torch.stack(cells).mean(0), atol=1e-5, rtol=0)
    whole = mean[codes].unflatten(1, (loaded.grid, -1)).transpose(2, 3).reshape(pixels.shape)
    assert figures["patch"] == pytest.approx(float((whole - pixels).square().mean().sqrt() * 127.5), rel=1e-4)


def test_a_code_that_no_picture_holds_is_read_among_its_like() -> None:
    loaded = tiny_image(dtype=torch.float32)
    mean, figures = patches(loaded, torch.zeros(1, loaded.cells, dtype=torch.long))
    assert figures["unseen"] == loaded.codes - 1
    torch.testing.assert_close(mean[1:], tiles(loaded)[1:])

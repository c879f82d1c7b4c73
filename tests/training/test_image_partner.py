"""The partner's lessons: what the target draws, made coarse by the down-sampler; prompts that meet nothing held out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from specviz.models.image import LoadedImage
from specviz.preparing import image
from specviz.request import Memory, Request
from specviz.training import emoji, make_image_partner
from specviz.training.image_codes import Coded
from specviz.training.make_image_partner import Asking, OwnPictures
from tests.tiny_images import tiny_image, tiny_pair, tiny_samplers


@pytest.fixture(scope="module")
def target() -> LoadedImage:
    return tiny_image(dtype=torch.float32)


def concepts() -> Coded:
    rows = {style: number for number, style in enumerate(emoji.STYLES)}
    labels = ("red apple", "house cat", "secret word", "green tree")
    made = [emoji.Concept(f"1f{number:03x}", label, ("tag",), 3, rows) for number, label in enumerate(labels)]
    hidden = next(f"1f{number:03x}" for number in range(500) if emoji.Concept(f"1f{number:03x}", "x", (), 3, rows).held_out)
    open_ = [
        f"1f{number:03x}" for number in range(500)
        if not emoji.Concept(f"1f{number:03x}", "x", (), 3, rows).held_out
    ]  # fmt: skip
    codes = (open_[0], open_[1], hidden, open_[2])
    return Coded(tuple(replace(one, code=code) for one, code in zip(made, codes, strict=True)), np.zeros((3, 2, 9)), "")


def pictures(target: LoadedImage, workers: int = 1) -> OwnPictures:
    return OwnPictures(target, tiny_samplers(target), workers)


def rows(target: LoadedImage, count: int) -> list[make_image_partner.Rows]:
    return Asking(target, concepts(), 0).rows(count)


def test_lessons_are_what_the_down_sampler_makes_of_the_targets_pictures(target: LoadedImage) -> None:
    drawn = []
    held = pictures(target)
    original = held._draw
    held._draw = lambda *given: drawn.append(original(*given)) or drawn[-1]  # type: ignore[method-assign,func-returns-value]
    asked = rows(target, 4)
    held.add(asked)
    words, codes = held.some(32, np.random.default_rng(0))
    down = tiny_samplers(target).down
    known = {
        (pair[0], tuple(down(fine.view(6, 6)).flatten().tolist()))
        for pair, fine in zip(asked, drawn[0], strict=True)
    }  # fmt: skip
    found = {(tuple(word), tuple(code)) for word, code in zip(words.tolist(), codes.tolist(), strict=True)}
    assert found <= known and len(found) > 1


def test_every_picture_is_drawn_anew_and_workers_share_them(target: LoadedImage) -> None:
    held = pictures(target, workers=2)
    asked = rows(target, 1) * 5
    held.add(asked)
    held.add(asked)
    assert held.drawn == 10
    assert len({tuple(one) for one in held.kept["codes"][:10].tolist()}) == 10, "one prompt, ten different pictures"


def test_the_oldest_pictures_go_first(target: LoadedImage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_image_partner, "MOST", 4)
    held = pictures(target)
    asked = rows(target, 6)
    held.add(asked[:3])
    first = held.kept["words"].clone()
    held.add(asked[3:])
    assert held.drawn == 6
    wanted = [asked[4][0], asked[5][0], asked[2][0], asked[3][0]]
    assert held.kept["words"].tolist() == [list(one) for one in wanted]
    assert first[2].tolist() == list(asked[2][0])


def test_what_was_drawn_goes_on_with_the_checkpoint(target: LoadedImage) -> None:
    first, second = pictures(target), pictures(target)
    first.add(rows(target, 4))
    for name, tensor in second.kept.items():
        tensor.copy_(first.kept[name])
    assert second.drawn == 4
    one, other = (held.some(6, np.random.default_rng(1)) for held in (first, second))
    assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])


def test_prompts_use_no_word_of_what_is_held_out(target: LoadedImage) -> None:
    asking = Asking(target, concepts(), 0)
    said = [asking.prompt() for _ in range(300)]
    assert not any("secret" in one or "word" in one for one in said)
    labels = {"red apple", "house cat", "green tree"}
    firsts = {one.split(",")[0] for one in said}
    assert firsts & labels and firsts - labels - {"tag"}, "names as they are, and words put together anew"
    pairs = asking.rows(400)
    assert 0.05 < sum(one == other for one, other in pairs) / 400 < 0.16, "one in ten says nothing"


@pytest.mark.parametrize(("guidance", "wanted"), [(2.0, 2), (1.0, 1)])
def test_a_partner_that_learned_the_guided_law_reads_one_row(
    guidance: float, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, small = tiny_pair()
    known = {"emoji-64": replace(large, name="emoji-64"), "emoji-32": replace(small, name="emoji-32", guidance=guidance)}
    monkeypatch.setattr(image, "load_image_model", lambda name, *_: known[name])
    monkeypatch.setattr(image, "image_samplers", tiny_samplers)
    request = Request(method="mulo_sd", prompt="red apple", target="emoji-64", temperature=1.0, guidance=3.0)
    ready = image.prepare(request, Memory(), lambda *_: None)
    session = ready.parts.coarse().open()
    assert ready.target.rows == 2 and session.target.rows == wanted
    session.close()

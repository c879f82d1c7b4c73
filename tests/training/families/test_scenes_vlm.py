"""Teaching the small vision-language model: conversations in one row do not mix, and each part has its weight."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from specviz.models.hub.packed_model import write_model
from specviz.models.vision import vision_language
from specviz.models.vision.scenes import load
from specviz.training.driver import Schedule
from specviz.training.families import scenes
from specviz.training.families.scenes import FRESH
from specviz.training.families.scenes_vlm import (
    LONG,
    READ,
    SHORT,
    SPEAKING,
    Learner,
    ScenesTraining,
    answers,
    ask,
    figures,
)
from specviz.training.families.scenes_words import KINDS, Batch, Writer, batch_of, exchanges, pages, patches_of, train_tokenizer
from specviz.training.registry import WEIGHTS
from tests.support.training.tiny_scenes import tiny_scenes

GRID = 8


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(60, 600)


def opened(tokenizer: Any) -> Learner:
    """A learner whose layers are not silent."""
    learner = tiny_scenes(2, len(tokenizer))
    with torch.no_grad():
        for name, value in learner.model.named_parameters():
            if value.ndim == 2 and "embed" not in name:
                value.normal_(std=value.shape[1] ** -0.5)
    return learner


def some(tokenizer: Any, count: int = 3) -> Batch:
    return batch_of([scenes.compose(seed) for seed in range(count)], Writer(tokenizer), GRID, 3)


def test_patches_are_told_what_stands_there() -> None:
    scene = scenes.compose(4)
    told = patches_of(scene, 8)
    for thing in scene.things:
        place = int(thing.y // 16) * 8 + int(thing.x // 16)
        in_front = [other for other in scene.things if scenes.gap(thing, other) < 0]
        assert told["kind"][place] > 0 and (in_front or told["region"][place] == 1 + thing.region)
    assert (told["kind"] == 0).sum() > 15


def test_a_packed_conversation_is_what_it_would_be_alone(tokenizer: Any) -> None:
    learner, batch = opened(tokenizer), some(tokenizer)
    with torch.no_grad():
        visual = learner.visual_tokens(batch.pixels)
        packed = learner.read(visual, batch)
        for scene in range(3):
            start = 0
            for tokens in (batch.long[scene], *batch.short[scene]):
                alone = alone_in_the_row(learner, visual[scene], tokens)
                assert torch.allclose(packed[scene, start : start + len(tokens)], alone, atol=2e-4)
                start += len(tokens)


def alone_in_the_row(learner: Learner, visual: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The model's own pass over user's mark, picture and one conversation."""
    text = learner.model.model.text_model
    user = text.embed_tokens(torch.tensor([1]))
    rows = torch.cat((user, visual, text.embed_tokens(tokens)))[None]
    return text(inputs_embeds=rows, use_cache=False).last_hidden_state[0, 1 + len(visual) :]


def test_descriptions_answers_and_pages_have_their_weights(tokenizer: Any) -> None:
    learner, batch = opened(tokenizer), some(tokenizer)
    read, read_labels = pages([scenes.compose(seed) for seed in range(3)], Writer(tokenizer), 4)
    cut = batch.long.shape[1]
    with torch.no_grad():
        visual = learner.visual_tokens(batch.pixels)
        hidden = learner.read(visual, batch)
        without = learner.word_loss(visual, batch)
        found = learner.word_loss(visual, replace(batch, read=read, read_labels=read_labels))
        told = learner.read_pages(read)
    parts = (
        (hidden[:, :cut], batch.long_labels), (hidden[:, cut:], batch.short_labels.flatten(1)), (told, read_labels),
    )  # fmt: skip
    own = [F.cross_entropy(learner.model.lm_head(h[y != -100]), y[y != -100]) for h, y in parts]
    assert torch.allclose(without, LONG * own[0] + SHORT * own[1], atol=1e-5)
    assert torch.allclose(found, without + READ * own[2], atol=1e-5)


def test_a_page_is_read_in_order_and_teaches_last_sentences(tokenizer: Any) -> None:
    learner, writer = opened(tokenizer), Writer(tokenizer)
    read, labels = pages([scenes.compose(seed) for seed in range(12)], writer, 4)
    with torch.no_grad():
        found = learner.read_pages(read)
        text = learner.model.model.text_model
        alone = text(inputs_embeds=text.embed_tokens(read), use_cache=False).last_hidden_state
    assert torch.allclose(found, alone, atol=2e-4)
    for tokens, known in zip(read.tolist(), labels.tolist(), strict=True):
        taught = [place for place, label in enumerate(known) if label != -100]
        assert all(known[place] in (tokens[place + 1], writer.end) for place in taught)
        if tokens[1] == writer.assistant:  # a drill
            continue
        answers = "".join(tokenizer.decode([known[place]]) for place in taught).split("<|end|>")[:-1]
        assert len(answers) >= 2 and all(answer.endswith(".") and answer.count(".") == 1 for answer in answers)
    looks = [row.index(next(label for label in row if label != -100)) for row in labels.tolist()]
    assert max(looks) > 30  # the look itself is given
    assert 0 < sum(row[1] == writer.assistant for row in read.tolist()) < 12  # some drills, some conversations


def test_patches_learn_the_words_for_what_they_show(tokenizer: Any) -> None:
    learner, batch = opened(tokenizer), some(tokenizer)
    words = learner.model.get_input_embeddings().weight
    without = learner.patch_loss(learner.visual_tokens(batch.pixels), batch)
    assert torch.autograd.grad(without, words, allow_unused=True)[0] is None
    learner.learn_names(tokenizer)
    single = [kind for kind in KINDS if len(tokenizer.encode(f" {kind}", add_special_tokens=False)) == 1]
    assert len(single) > 0.8 * len(KINDS) and (learner.names >= 0).sum() == len(single)
    found = learner.patch_loss(learner.visual_tokens(batch.pixels), batch)
    moved = torch.autograd.grad(found, words)[0].abs().sum(1)
    assert found > without and moved[learner.names[learner.names >= 0]].min() > 0


def state_of(tokenizer: Any) -> ScenesTraining:
    state = ScenesTraining(tiny_scenes(2, len(tokenizer)), tokenizer, Schedule(batch=2, later=2))
    state.measure = lambda: {"stage": float(state.advanced)}  # type: ignore[method-assign]
    return state


def test_seeing_leaves_language_alone_and_speaking_moves_all(tokenizer: Any) -> None:
    made, parts = state_of(tokenizer), [some(tokenizer)]
    before = {name: value.detach().clone() for name, value in made.learner.named_parameters()}
    made.apply(made.learn_from(parts), 0.01)
    moved = {name for name, value in made.learner.named_parameters() if not torch.equal(value, before[name])}
    assert moved and not any(".text_model." in name for name in moved)
    made.enter(SPEAKING)
    for _ in range(2):
        made.apply(made.learn_from(parts), 0.01)
    moved = {name for name, value in made.learner.named_parameters() if not torch.equal(value, before[name])}
    assert any("embed_tokens" in name for name in moved) and any("layers.1.mlp.gate_proj" in name for name in moved)


def test_answers_in_a_batch_are_those_the_shipped_model_gives_alone(tokenizer: Any, tmp_path: Path) -> None:
    learner = opened(tokenizer)
    write_model(tmp_path / "m.safetensors", learner.model, tokenizer.backend_tokenizer, {})
    loaded = vision_language.load_scenes(tmp_path / "m.safetensors", torch.float32, torch.device("cpu"))
    learner.model = loaded.model
    pictures = [scenes.draw(scenes.compose(seed)) for seed in range(3)]
    asked = ["What is at the top?", "How many things are there in the picture?", "Where?"]
    ids = [tokenizer(one)["input_ids"] for one in asked]
    with torch.no_grad():
        visual = learner.visual_tokens(torch.stack([torch.from_numpy(one) for one in pictures]))
        said = answers(learner, visual, ids, Writer(tokenizer), 12)
        for picture, question, found in zip(pictures, asked, said, strict=True):
            assert list(found) == greedy(loaded, picture, question)[: len(found)]


def greedy(loaded: Any, picture: Any, question: str) -> list[int]:
    """One question through the model's own forward, token by token."""
    from PIL import Image

    prompt = loaded.read(Image.fromarray(picture), question)
    ids = list(prompt.ids)
    for _ in range(12):
        logits = loaded.model(input_ids=torch.tensor([ids]), **prompt.inputs).logits[0, -1]
        ids.append(int(F.softmax(logits, -1).argmax()))
    return ids[len(prompt.ids) :]


def test_a_look_is_learned_once_a_scene_and_every_answer_each_time(tokenizer: Any) -> None:
    writer = Writer(tokenizer)
    many = (exchanges(scenes.compose(seed), 6) for seed in range(50))
    every = next(said for said in many if sum(bool(one.look) for one in said) > 2)
    learned = [sum(label >= 0 for label in labels) for _, labels in writer.conversations(every)]
    first = next(place for place, one in enumerate(every) if one.look)
    for place, one in enumerate(every):
        tokens, labels = writer.conversations(every)[place]
        said = one.spoken.removeprefix(one.look)
        answer = len(tokenizer(said)["input_ids"]) + 1
        look = len(tokenizer(one.look)["input_ids"]) if one.look else 0
        assert learned[place] == answer + (look if place == first else min(look, 3))
        begin = tokens.index(writer.assistant)
        following = [*tokens[begin + 1 :], writer.end]
        assert all(label in (-100, token) for label, token in zip(labels[begin:], following, strict=True))


@pytest.mark.model
def test_the_model_that_ships_answers_most_of_what_it_is_asked() -> None:
    model, own = load(WEIGHTS / "scenes_vlm.safetensors")
    found = figures(ask(Learner(model), own, FRESH, range(40, 56), 4))
    assert found["questions"] > 0.5 and found["colour"] > 0.6

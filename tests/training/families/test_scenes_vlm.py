"""Teaching the small vision-language model: conversations in one row do not mix, and each part has its weight."""

import pytest
import torch
import torch.nn.functional as F

from specviz.drafting.networks.weights import read_weights
from specviz.models.hub.packed_model import write_model
from specviz.models.vision import vision_language
from specviz.training.driver import Schedule
from specviz.training.families import scenes_vlm
from specviz.training.families.scenes_vlm import SPEAKING, Lessons, ScenesTraining, answers, batch_of
from specviz.training.families.scenes_words import Writer, train_tokenizer
from tests.support.training.tiny_scenes import noisy_renderer, tiny_scenes

GRID = 8


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(60, 600)


def opened(tokenizer):
    """A learner whose layers are not silent."""
    learner = tiny_scenes(2, len(tokenizer))
    with torch.no_grad():
        for name, value in learner.model.named_parameters():
            if value.ndim == 2 and "embed" not in name:
                value.normal_(std=value.shape[1] ** -0.5)
    return learner


def some(tokenizer, count=3):
    lessons = Lessons(Writer(tokenizer), GRID, count, count, 3, 0, 0)
    return batch_of(next(iter(lessons))[0], noisy_renderer())


def test_a_packed_conversation_is_what_it_would_be_alone(tokenizer):
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


def alone_in_the_row(learner, visual, tokens):
    """The model's own pass over user's mark, picture and one conversation."""
    text = learner.model.model.text_model
    user = text.embed_tokens(torch.tensor([1]))
    rows = torch.cat((user, visual, text.embed_tokens(tokens)))[None]
    return text(inputs_embeds=rows, use_cache=False).last_hidden_state[0, 1 + len(visual) :]


def state_of(tokenizer, **shape):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scenes_vlm, "Renderer", noisy_renderer)
        state = ScenesTraining(tiny_scenes(2, len(tokenizer)), tokenizer, Schedule(batch=2, later=2), shape)
    state.measure = lambda: {"stage": float(state.in_second_stage)}
    return state


def test_seeing_leaves_language_alone_and_speaking_moves_all(tokenizer):
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


def test_the_file_holds_the_mean_of_the_first_weights_and_the_last(tokenizer, tmp_path):
    state = state_of(tokenizer, kept=0.5)
    state.enter(SPEAKING)
    first = {name: value.detach().clone() for name, value in state.optimizer.parameters.items()}
    state.use({name: value + 1 for name, value in first.items()})
    state.save(tmp_path / "m.safetensors", {})
    stored = read_weights(tmp_path / "m.safetensors")[0]
    for name, value in stored.items():
        assert torch.allclose(value, first[f"model.{name}"].view_as(value) + 0.5, atol=0.02)
    assert all(torch.equal(value, first[name] + 1) for name, value in state.optimizer.parameters.items())


def test_answers_in_a_batch_are_those_the_shipped_model_gives_alone(tokenizer, tmp_path):
    learner = opened(tokenizer)
    write_model(tmp_path / "m.safetensors", learner.model, tokenizer.backend_tokenizer, {})
    loaded = vision_language.load_scenes(tmp_path / "m.safetensors", torch.float32, torch.device("cpu"))
    learner.model = loaded.model
    pictures = list(some(tokenizer).pixels.numpy())
    asked = ["What is at the top?", "How many things are there in the picture?", "Where?"]
    ids = [tokenizer(one)["input_ids"] for one in asked]
    with torch.no_grad():
        visual = learner.visual_tokens(torch.stack([torch.from_numpy(one) for one in pictures]))
        said = answers(learner, visual, ids, Writer(tokenizer), 12)
        for picture, question, found in zip(pictures, asked, said, strict=True):
            assert list(found) == greedy(loaded, picture, question)[: len(found)]


def greedy(loaded, picture, question):
    """One question through the model's own forward, token by token."""
    from PIL import Image

    prompt = loaded.read(Image.fromarray(picture), question)
    ids = list(prompt.ids)
    for _ in range(12):
        logits = loaded.model(input_ids=torch.tensor([ids]), **prompt.inputs).logits[0, -1]
        ids.append(int(F.softmax(logits, -1).argmax()))
    return ids[len(prompt.ids) :]

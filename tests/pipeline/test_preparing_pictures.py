"""A picture and a question from a request to a trace, on a tiny model that sees; and what is refused on the way."""

import base64
import io
from dataclasses import replace

import pytest
import torch
from PIL import Image

from specviz.drafting.networks.weights import write_weights
from specviz.errors import BadInput, ContextFull, ModelUnavailable
from specviz.models.heads import heads
from specviz.models.vision.picture_question import square_reader
from specviz.models.vision.vision_language import LoadedVisionLanguage
from specviz.pipeline import vision_language as preparing
from specviz.pipeline.request import Request
from specviz.pipeline.runner import prepare, run
from specviz.trace import store
from tests.support.tiny.scenes import tiny_scenes, tiny_tokenizer


def scene(mode="RGB"):
    made = Image.new("RGB", (48, 48), (250, 250, 250))
    made.paste((200, 30, 30), (4, 4, 24, 24))
    out = io.BytesIO()
    made.convert(mode).save(out, "JPEG" if mode == "CMYK" else "PNG")
    return out.getvalue()


@pytest.fixture
def tiny(monkeypatch):
    """A tiny random model in the place of the one that ships."""
    model, tokenizer = tiny_scenes(), tiny_tokenizer()
    reader = square_reader(tokenizer, "scenes-vlm", model)
    loaded = LoadedVisionLanguage.of("scenes-vlm", model, tokenizer, read=reader)
    monkeypatch.setattr(preparing, "load_vision_language", lambda *_: loaded)
    monkeypatch.setattr(preparing, "vision_heads", _none)
    return loaded


def _none(kind, *_):
    raise ModelUnavailable(f"There is no {kind} network here.")


def ran(**fields):
    asked = {"method": "prompt_lookup", "prompt": "what is it", "target": "scenes-vlm", "image": scene()}
    return run(**{**asked, "max_new_tokens": 40, **fields})


def test_a_run_about_a_picture_is_a_trace_like_any_other(tiny, tmp_path):
    trace = ran(baseline=True)
    assert trace.end.baseline.equal
    assert (trace.run.modality, trace.run.target, trace.run.chat_template) == ("vision_language", "scenes-vlm", True)
    assert trace.run.prompt_pieces.count("<image>") == 16
    store.write(trace, tmp_path / "seen.spectrace.jsonl")
    assert store.read(tmp_path / "seen.spectrace.jsonl").steps[0].notes == trace.steps[0].notes


def test_the_first_step_brings_the_picture_along(tiny):
    trace = ran()
    told = {note.type: note.data for note in trace.steps[0].notes}["picture"]
    back = Image.open(io.BytesIO(base64.b64decode("".join(told["png"]))))
    assert back.size == (32, 32) == tuple(told["size"])
    assert (told["grid"], told["spans"], "boxes" in told) == ([4, 4], [[1, 16]], False)
    assert told["prompt"] == len(trace.run.prompt_pieces) and told["encoding_ns"] > 0
    assert not any(note.type == "picture" for step in trace.steps[1:] for note in step.notes)
    assert not any(step.notes for step in ran(record="path").steps)


def test_the_picture_is_encoded_once_for_every_method_and_the_baseline(tiny, monkeypatch):
    calls, forward = [], tiny.model.model.vision_model.forward

    def counted(*args, **kwargs):
        calls.append(1)
        return forward(*args, **kwargs)

    monkeypatch.setattr(tiny.model.model.vision_model, "forward", counted)
    texts = {ran(method=name, baseline=True).end.text for name in ("autoregressive", "token_recycling", "prompt_lookup")}
    assert len(calls) == 1 and len(texts) == 1


def test_another_picture_is_another_prompt(tiny):
    first, second, third = (
        prepare(Request("stand", "what is it", "scenes-vlm", image=picture, max_new_tokens=20))
        for picture in (scene(), scene("L"), scene())
    )
    assert first.prompt_ids == second.prompt_ids
    assert first.resources.prompt_key == third.resources.prompt_key != second.resources.prompt_key


def test_what_was_done_to_the_picture_is_a_warning_of_the_run(tiny):
    assert any("printer" in word for word in ran(image=scene("CMYK")).run.warnings)
    assert not any("printer" in word for word in ran().run.warnings)


@pytest.mark.spread(4)
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"image": None}, "There is no picture. Choose one"),
        ({"image": "a" * 300}, "There is no picture"),
        ({"raw": True}, "takes no raw: .* leave raw out"),
        ({"draft": "smollm2-draft"}, "takes no draft, .* leave draft out"),
        ({"pictures": scene()}, "A request has no field pictures; the fields are .*image"),
        ({"max_tokens": 9}, "A request has no field max_tokens; the fields are .*max_new_tokens"),
        ({"guidance": 2.0}, "takes no guidance: .* leave guidance out"),
        ({"method": "medusa"}, "does not run on scenes-vlm.* Methods that do: .+"),
    ],
)
def test_what_cannot_be_run_is_refused_in_a_sentence(tiny, fields, said):
    with pytest.raises(BadInput, match=said):
        ran(**fields)


def test_a_draft_whose_layout_nobody_reads_is_refused(tiny):
    with pytest.raises(ModelUnavailable, match="cannot be used as hivis: published heads are read for"):
        ran(draft="someone/heads", method="hivis")


def test_too_long_a_question_or_answer_is_refused(tiny):
    with pytest.raises(ContextFull, match="Request fewer tokens"):
        ran(max_new_tokens=110)
    with pytest.raises(ContextFull, match="shorten the question"):
        ran(prompt="why " * 60)


def test_a_picture_for_a_target_that_reads_none_is_refused():
    with pytest.raises(BadInput, match="does not read pictures. Leave the picture out"):
        prepare(Request("prompt_lookup", "what is it", image=scene()))
    with pytest.raises(BadInput, match="takes no guidance: .* leave guidance out"):
        prepare(Request("prompt_lookup", "what is it", guidance=7))


@pytest.fixture
def weights_folder(tiny, tmp_path, monkeypatch):
    """An empty folder where the networks beside the tiny model are looked for."""
    monkeypatch.setattr(preparing, "vision_heads", heads.vision_heads)
    monkeypatch.setattr(heads, "WEIGHTS", tmp_path)
    return tmp_path


def test_a_missing_network_says_what_to_do(weights_folder):
    for name, weights in (("hivis", "vlm_hivis"), ("eagle2", "vlm_eagle"), ("language_only", "vlm_text_only")):
        with pytest.raises(ModelUnavailable, match=f"python -m specviz train {weights}"):
            ran(method=name, parameters={} if name == "language_only" else {"nodes": 8})


def test_a_network_of_another_training_of_the_target_is_refused(weights_folder, tiny):
    (weights_folder / "scenes_vlm.safetensors").write_bytes(b"trained today")
    cards = ({}, {"target": "scenes_vlm.safetensors 0123456789abcdef"})
    for name, weights in (("hivis", "vlm_hivis"), ("dream", "vlm_dream"), ("language_only", "vlm_text_only")):
        for card in cards:
            path = weights_folder / f"{weights}.safetensors"
            write_weights(path, {"one": torch.ones(2)}, {"tokenizer_hash": tiny.tokenizer_hash, **card})
            with pytest.raises(ModelUnavailable, match=f"another version of scenes_vlm.*python -m specviz train {weights}"):
                ran(method=name)


def test_the_token_that_ends_an_answer_is_emitted_and_not_shown(tiny, monkeypatch):
    free = ran(temperature=1.0)
    ids = free.end.output_ids
    ending = next(token for place, token in enumerate(ids) if place > 2 and ids.index(token) == place)
    ended = replace(tiny, eos_ids=frozenset({ending}))
    monkeypatch.setattr(preparing, "load_vision_language", lambda *_: ended)
    for method in ("autoregressive", "prompt_lookup", "token_recycling"):
        trace = ran(method=method, temperature=1.0)
        assert trace.end.reason == "eos" and trace.end.output_ids == ids[: ids.index(ending) + 1]
        assert trace.steps[-1].emitted[-1] == ending and trace.steps[-1].pieces[-1] == ""
        assert trace.end.text == "".join(piece for step in trace.steps for piece in step.pieces)
        assert trace.end.text == "".join(tiny.text.pieces([], ids[: ids.index(ending)]))

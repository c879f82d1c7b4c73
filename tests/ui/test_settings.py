"""The environment variables mean what the table in settings.py says."""

from pathlib import Path

import pytest

from specviz.errors import BadInput
from specviz.ui import settings


def test_every_variable_is_read():
    found = settings.read(
        {
            "SPECVIZ_TARGET": "a/b", "SPECVIZ_DEVICE": "cpu", "SPECVIZ_MAX_NEW_TOKENS": "64", "SPECVIZ_MAX_WAITING": "3",
            "SPECVIZ_MAX_UPLOAD_MB": "5", "SPECVIZ_MAX_SECONDS": "45", "SPECVIZ_ANY_MODEL": "0", "SPECVIZ_TRACES": "/t",
            "SPECVIZ_LESSONS": "/l", "PORT": "8080", "SPACES_ZERO_GPU": "true", "SPECVIZ_PROXIED": "1",
            "SPECVIZ_SERVERS": "http://h:1", "SPECVIZ_MAX_PREPARING": "30", "SPECVIZ_MODELS": "qwen3-0.6b, a/b",
            "GRADIO_SERVER_NAME": "0.0.0.0", "SPECVIZ_SHARE_DAYS": "0",
        }
    )  # fmt: skip
    folders = Path("/t"), Path("/l")
    assert found == settings.Settings(
        "a/b",
        "cpu",
        64,
        3,
        45,
        5,
        False,
        *folders,
        8080,
        True,
        True,
        ("http://h:1",),
        30,
        ("qwen3-0.6b", "a/b"),
        0,
        "0.0.0.0",
        private=False,
    )


def test_a_space_keeps_visitors_to_the_list_unless_told_otherwise():
    assert not settings.read({"SPACE_ID": "me/app"}).any_model
    assert settings.read({"SPACE_ID": "me/app", "SPECVIZ_ANY_MODEL": "1"}).any_model


def test_runs_have_a_time_limit_where_strangers_ask_for_them():
    assert settings.read({}).max_seconds is None
    assert settings.read({"SPACE_ID": "me/app"}).max_seconds == 120
    assert settings.read({"GRADIO_SERVER_NAME": "0.0.0.0"}).max_seconds == 120
    assert settings.read({"SPECVIZ_MAX_SECONDS": "9"}).max_seconds == 9


def test_on_a_zero_gpu_space_a_run_has_less_time_than_the_gpu_is_lent_for():
    space = {"SPACE_ID": "me/app", "SPACES_ZERO_GPU": "true"}
    assert settings.most_seconds(settings.read(space)) == 40 < settings.GPU_SECONDS
    assert settings.most_seconds(settings.read({**space, "SPECVIZ_MAX_SECONDS": "15"})) == 15
    assert settings.most_seconds(settings.read({"SPACE_ID": "me/app"})) == 120
    assert settings.most_seconds(settings.read({})) is None


def test_strangers_are_offered_what_any_machine_can_run():
    assert settings.read({}).models == ()
    public = settings.read({"GRADIO_SERVER_NAME": "0.0.0.0"}).models
    assert "smollm2-135m-instruct" in public and "emoji-64" in public and "scenes-vlm" in public and "qwen3-8b" not in public
    assert settings.read({"SPACE_ID": "me/app", "SPECVIZ_MODELS": "qwen3-0.6b"}).models == ("qwen3-0.6b",)


def test_a_space_stands_behind_a_proxy_that_names_visitors_and_others_say_so():
    assert settings.read({"SPACE_ID": "me/app"}).proxied and not settings.read({"GRADIO_SERVER_NAME": "0.0.0.0"}).proxied
    assert settings.read({"GRADIO_SERVER_NAME": "0.0.0.0", "SPECVIZ_PROXIED": "1"}).proxied


@pytest.mark.parametrize(
    ("address", "private"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("[::1]", True), ("127.8.8.8", True)]
    + [("0.0.0.0", False), ("::", False), ("192.168.1.4", False), ("class.example.org", False)],
)
def test_strangers_choose_no_models_unless_asked_for(address, private):
    assert settings.read({"GRADIO_SERVER_NAME": address}).any_model is private
    assert settings.read({"GRADIO_SERVER_NAME": address, "SPECVIZ_ANY_MODEL": "1"}).any_model


def test_the_port_of_gradio_counts_where_there_is_no_other():
    assert settings.read({"GRADIO_SERVER_PORT": "7000"}).port == 7000
    assert settings.read({"GRADIO_SERVER_PORT": "7000", "PORT": "80"}).port == 80


@pytest.mark.parametrize(
    ("variable", "value"),
    [("SPECVIZ_MAX_WAITING", value) for value in ("many", "0", "-1", "1.5", "²", "9" * 5000)]
    + [("SPECVIZ_MAX_SECONDS", "two"), ("SPECVIZ_MAX_PREPARING", "0"), ("SPECVIZ_MAX_UPLOAD_MB", "20MB")]
    + [("PORT", value) for value in ("abc", "null", "70000", "65536", "-1")] + [("GRADIO_SERVER_PORT", "http")]
    + [("SPECVIZ_MAX_SECONDS", "null"), ("SPECVIZ_ANY_MODEL", "yes"), ("SPECVIZ_PROXIED", "2"), ("SPECVIZ_DEVICE", "tpu")],
)  # fmt: skip
def test_a_value_that_makes_no_sense_is_named(variable, value):
    with pytest.raises(BadInput, match=f"{variable} is ") as refused:
        settings.read({variable: value})
    assert len(str(refused.value)) < 200

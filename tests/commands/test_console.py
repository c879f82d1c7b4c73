"""What commands print: words of models, files and servers never steer the terminal."""

import json

import pytest

from specviz.__main__ import main
from specviz.commands.console import ProgressLine, print_message, print_result, table
from tests.support.fakes import rude_server

HOSTILE = "\x1b]52;c;QQ==\x07\x1b[2J\r\x9b31m\u202eabc"


def test_every_way_of_printing_spells_control_characters_out(capsys):
    print_message(HOSTILE)
    print_result(HOSTILE)
    print_result(table([(HOSTILE, HOSTILE)]))
    ProgressLine()(HOSTILE)
    main(["validate", HOSTILE])
    said = "".join(capsys.readouterr())
    assert not set(said) & set("\x1b\x07\r\x9b\u202e") and said.count("abc") == 6
    print_message("\x1b[32mours\x1b[0m", raw=True)
    print_result("a\tb", end="\n\n")
    assert tuple(capsys.readouterr()) == ("a\tb\n\n", "\x1b[32mours\x1b[0m\n")


@pytest.mark.parametrize("place", ["model", "text", "error"])
def test_a_server_does_not_steer_the_terminal(place, capsys):
    def told(**fields):
        return b"data: " + json.dumps(fields).encode() + b"\n\ndata: [DONE]\n\n"

    models = json.dumps({"data": [{"id": HOSTILE if place == "model" else "m"}]}).encode()
    events = {"text": told(choices=[{"delta": {"content": HOSTILE}}]), "error": told(error={"message": HOSTILE})}
    pages = {b"GET /v1/models": models, b"POST": events.get(place, told(choices=[{"delta": {"content": "Hi"}}]))}
    with rude_server.paged(pages) as url:
        main(["connect", url, "--prompt", "Hi"])
    said = "".join(capsys.readouterr())
    assert not set(said) & set("\x1b\x07\r\x9b\u202e")
    assert "abc" in said

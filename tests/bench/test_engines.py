"""The engines suite asks everybody the same, and a row says what was measured."""

import pytest

from specviz.bench import engines
from specviz.errors import BadInput
from tests.support.fakes.chat_server import WORDS, Script, piece, serving
from tests.support.traces.samples import sample_trace


@pytest.mark.slow
def test_every_prompt_goes_to_all_and_each_has_a_row(monkeypatch, capsys):
    asked = []

    def run(**fields):
        asked.append((fields["method"], fields["prompt"]))
        return sample_trace(6)

    monkeypatch.setattr(engines, "run", run)
    script = Script([piece([0]), piece([1, 2, 3], "length")])
    with serving(script) as url:
        assert engines.main([f"vLLM={url}"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == len(engines.OWN) + 1 and rows[-1].startswith("vLLM") and "τ 3.00" in rows[-1]
    assert "0 of 12 texts equal" in rows[-1] and "12 of 12" in rows[0] and WORDS[0] not in rows[0]
    assert len(script.asked) == 13 and len({prompt for _, prompt in asked}) == 12
    with pytest.raises(BadInput, match="NAME=URL"):
        engines.main(["http://127.0.0.1"])

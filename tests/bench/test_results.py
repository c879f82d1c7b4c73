"""RESULTS.md and README say what ``assets/results.json`` says, and nothing else of ours."""

import re
from pathlib import Path

import pytest

from specviz.bench import results
from specviz.methods.results import filled, tables
from specviz.paths import WEIGHTS

ROOT = Path(__file__).resolve().parents[2]
HEADLINES = (
    "itself {quick.generate_bf16.value} as fast as `transformers.generate` in bfloat16:",
    "`prompt_lookup` on prompts to copy from: {quick.prompt_lookup.value}, τ {quick.prompt_lookup.tau};",
    "`ddd` on sixty held-out prompts of six kinds: {speed.ddd.greedy}, τ {speed.ddd.tau};",
    "`mulo_sd` drawing pictures (relaxed): {images.mulo_05.speed}, τ {images.mulo_05.tau}.",
)


def test_results_md_is_what_the_command_prints():
    file = ROOT / ".github" / "RESULTS.md"
    assert file.read_text("utf-8") == results.page(), "python -m specviz.bench.results > .github/RESULTS.md"


def test_results_md_has_at_most_2500_words():
    assert len(re.sub(r"---:?|\|", " ", results.page()).split()) <= 2500


@pytest.mark.parametrize("headline", HEADLINES)
def test_readme_states_a_headline_as_it_was_measured(headline):
    assert filled(headline) in " ".join((ROOT / "README.md").read_text("utf-8").split())


def test_the_guide_to_devices_states_what_int8_gains():
    text = " ".join((ROOT / ".github" / "DEVICES.md").read_text("utf-8").split())
    for said in ("{int8.alone.gain} as many tokens", "{int8.drafted.gain} with the 0.5B", "takes {int8.six.gain} as long"):
        assert filled(said) in text


def test_readme_states_no_other_number_of_ours():
    text = " ".join((ROOT / "README.md").read_text("utf-8").split())
    for headline in HEADLINES:
        text = text.replace(filled(headline), "")
    section = re.findall(r"## Measured.*?(?=## )", text)
    assert len(section) == 1 and not re.findall(r"\d\.\d", section[0])


def test_every_file_of_weights_has_a_short_card():
    text = (WEIGHTS / "README.md").read_text("utf-8")
    cards = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, re.S | re.M))
    assert set(cards) == {file.stem for file in WEIGHTS.glob("*.safetensors")} and len(text.split()) <= 3000
    assert [name for name, card in cards.items() if "Commit" not in card or card.count("\n- ") > 9] == []
    assert [name for name in cards if f"[{name}](#{name})" not in text] == []


@pytest.mark.parametrize("name", list(tables()["weights"].rows))
def test_a_card_of_weights_states_what_was_measured(name):
    card = (WEIGHTS / "README.md").read_text("utf-8").partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    assert filled(f"**{{weights.{name}.tau}}**") in card and filled(f"gap {{weights.{name}.gap}}") in card

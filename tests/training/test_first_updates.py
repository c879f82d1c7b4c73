"""Every recipe on tiny stand-ins: its first updates from one seed lose what was written down once, and a whole training of one
update writes weights with a card and can be resumed.

``python -m tests.training.test_first_updates [NAME …]`` from the root writes the losses down anew where a recipe is to change.
"""

import json
import sys
from pathlib import Path

import pytest
import torch

from specviz.drafting.networks.weights import read_weights
from specviz.training import driver, registry
from specviz.training.registry import recipes as known_recipes
from tests.support.training.stand_ins import WORLDS, begun, stand_in

WRITTEN_DOWN = Path(__file__).with_name("first_updates.json")
UPDATES, LAST = 12, 50
"""The first updates of a training as long as this."""
WHOLE = {"eagle3", "medusa", "small_draft", "image_ar", "scenes_vlm"}
"""A recipe of each kind, of which all of these updates are made."""
COUNTED = {"dialogues", "ngrams", "image_patches", "image_codebook"}
"""Recipes without a loss."""
FAMILIES = {known_recipes()[name].family: name for name in reversed(WORLDS) if name != "image_vq"}
STAGES = [*((name, False) for name in FAMILIES.values()), ("deer", True), ("owl", True), ("image_sprites", True)]
"""A recipe of each family, and whether in a later stage that keeps more than the first. The codes of ``image_vq`` want more than
an update."""
FIGURES = {
    "deer": {"start", "deer"},
    "eagle": {"read", "distinct", "gap", "curve"},
    "falcon": {"first2", "alone2", "gap"},
    "image_sprites": {"held_out", "compositions"},
    "medusa": {"tau_8", "gap", "chain"},
}
"""What a card must tell."""


def first_losses(name, folder, patch):
    """The losses of the first updates, as if the time ran evenly."""
    state = begun(name, folder, patch)
    return [state.update(update / LAST).loss for update in range(LAST if name in WHOLE else UPDATES)]


def test_every_recipe_that_learns_is_held():
    assert set(WORLDS) == set(known_recipes()) - COUNTED == set(json.loads(WRITTEN_DOWN.read_text("utf-8")))


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_the_first_updates_lose_what_they_lost(name, tmp_path, monkeypatch):
    known = json.loads(WRITTEN_DOWN.read_text("utf-8"))[name]
    assert first_losses(name, tmp_path, monkeypatch) == pytest.approx(known, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "later"), STAGES)
def test_a_whole_training_writes_weights_with_a_card_and_goes_on_where_it_stopped(name, later, tmp_path, monkeypatch, capsys):
    """Of one update, in the first stage or a ``later`` one."""
    states, train = [], driver.train

    def trained(state, checkpoint):
        states.append(state)
        state.second = (state.second[0], 0.0 if later else 1.0)
        return train(state, checkpoint)

    monkeypatch.setattr(driver, "train", trained)
    stand_in(name, tmp_path, monkeypatch)
    file, written = tmp_path / f"{known_recipes()[name].writes or name}.safetensors", []
    for resume in (False, True):
        registry.train(name, "cpu", 1e-12, resume)
        written.append(read_weights(file))
    (tensors, card), (again, _) = written
    metrics = json.loads(card["metrics"])
    assert metrics and FIGURES.get(name, set()) <= metrics.keys()
    assert card["recipe"].startswith(f"python -m specviz train {name} (")
    assert f"`{file.name}`" in (said := capsys.readouterr().out) and "resumed after" in said
    first, second = states[: len(states) // 2], states[len(states) // 2 :]
    for one, other in zip(first, second, strict=True):
        assert one.progress.stage == other.progress.stage and bool(one.progress.stage) == later
        assert one.progress.updates == other.progress.updates == 1, "the time was over, so nothing is trained"
        assert all(torch.equal(value, other.tensors()[key]) for key, value in one.tensors().items())
    assert tensors.keys() == again.keys() and all(torch.equal(value, again[key]) for key, value in tensors.items())


def write_down(folder, names):
    """Write the losses of these recipes down as they are now, on one thread."""
    torch.set_num_threads(1)
    losses = json.loads(WRITTEN_DOWN.read_text("utf-8"))
    for name in names:
        (folder / name).mkdir()
        with pytest.MonkeyPatch.context() as patch:
            losses[name] = [float(f"{loss:.6g}") for loss in first_losses(name, folder / name, patch)]
    WRITTEN_DOWN.write_text("{\n" + ",\n".join(f'"{name}": {losses[name]}' for name in WORLDS) + "\n}\n", "utf-8")


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        write_down(Path(folder), sys.argv[1:] or list(WORLDS))

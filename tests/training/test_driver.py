"""Recipes and the training loop: names, threads that sum the same, checkpoints, milestones, early stopping, resumption."""

import json
from dataclasses import asdict, replace

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from specviz.drafting.networks.weights import read_weights
from specviz.errors import BadInput, ModelUnavailable
from specviz.training import driver, parallel, registry
from specviz.training.driver import Progress, Schedule, Step, TrainState, train
from specviz.training.registry import Job, recipes


def test_a_failing_part_stops_the_update_and_is_told():
    weight = torch.ones(2, requires_grad=True)

    def loss(part):
        if part == 3:
            raise ArithmeticError("part three")
        return weight.sum()

    with pytest.raises(ArithmeticError, match="part three"):
        parallel.gradients(range(8), loss, [weight], 2)


def test_the_rate_warms_up_stays_and_falls():
    assert driver.rate(1.0, 0.0, 0) < driver.rate(1.0, 0.0, 20) < 1.0
    assert driver.rate(1.0, 0.3, 500) == 1.0
    assert 1.0 > driver.rate(1.0, 0.7, 500) > driver.rate(1.0, 0.9, 500) > 0
    assert driver.rate(1.0, 1.0, 500) == pytest.approx(0.02)


def test_a_checkpoint_comes_back_and_replaces_the_one_before(tmp_path):
    path = tmp_path / "here" / "c.safetensors"
    for update in (1, 2):
        state = Toy()
        state.progress = Progress(updates=update, seconds=1.5, tokens=7, history=[{"loss": 2.0}])
        state.weight.fill_(float(update))
        state.write(path)
    again = Toy()
    again.read(path)
    assert again.weight.tolist() == [[2.0, 2.0]] * 3
    assert driver.progress_in(path) == again.progress == Progress(2, 1.5, 7, [{"loss": 2.0}])
    assert [file.name for file in path.parent.iterdir()] == ["c.safetensors"]


def test_going_on_from_nothing_is_told(tmp_path, capsys):
    settings, file = replace(SETTINGS, resume=True, minutes=1e-12), tmp_path / "medusa.safetensors"
    train(Toy(settings), file, lambda entry: None)
    assert "no checkpoint medusa.safetensors" in capsys.readouterr().out
    train(Toy(settings), file, lambda entry: None)
    assert "resumed after" in capsys.readouterr().out


SETTINGS = Schedule(minutes=60.0, peak=0.05, every=1e-9)


class Toy(TrainState):
    """Numbers by which a weight is pulled, each update's its own; a loss and a held-out figure that are known."""

    def __init__(self, settings=SETTINGS, taus=None, stop=10**9):
        self.weight, self.kept, self.taus, self.stop = torch.ones(3, 2), torch.zeros(1), taus, stop
        super().__init__(settings, {"w": self.weight}, buffers={"count": self.kept})
        self.settled, self.measured = 0, []

    def begin(self):
        self.position = self.progress.updates

    def settle(self):
        self.settled += 1

    def step(self, share):
        self.position, self.kept[0] = self.position + 1, self.kept[0] + 1
        if self.position > self.stop:
            raise KeyboardInterrupt
        generator = torch.Generator().manual_seed(self.position)
        return Step(1.0, 7, {"w": torch.randn(3, 2, generator=generator)})

    def measure(self):
        self.measured.append(self.weight.clone())
        return {"held_out": 3.0, "tau": next(self.taus) if self.taus else 1.0}


def stopped_after(updates, checkpoint, settings=SETTINGS):
    state = Toy(settings, stop=updates)
    with pytest.raises(KeyboardInterrupt):
        train(state, checkpoint, lambda entry: None)
    return state


def test_a_milestone_tells_train_and_held_out_loss_and_the_gap_of_the_averaged_weights(tmp_path):
    told = []
    state = Toy(stop=4)
    with pytest.raises(KeyboardInterrupt):
        train(state, tmp_path / "c.safetensors", lambda entry: told.append(dict(entry)))
    assert [entry["updates"] for entry in told] == [1, 2, 3, 4] and told[-1]["tokens"] == 28
    assert (told[-1]["loss"], told[-1]["held_out"], told[-1]["gap"]) == (1.0, 3.0, 2.0)
    assert torch.equal(state.measured[-1], state.optimizer.averaged()["w"])
    assert not torch.equal(state.weight, state.measured[-1]), "its own weights are back"
    assert state.settled == 3 * 4, "after each update, and when weights are exchanged"


def test_marks_ask_for_milestones_between_those_of_the_clock(tmp_path):
    told = []
    state = Toy(replace(SETTINGS, every=1e9), stop=5)
    state.marks = (10, 14, 21)
    with pytest.raises(KeyboardInterrupt):
        train(state, tmp_path / "c.safetensors", lambda entry: told.append(dict(entry)))
    assert [entry["tokens"] for entry in told] == [14, 21], "one milestone for two marks that an update passed"


def test_a_resumed_training_does_update_by_update_what_an_unbroken_one_does(tmp_path):
    whole = stopped_after(9, tmp_path / "whole")
    stopped_after(4, tmp_path / "c")
    again = stopped_after(9, tmp_path / "c", replace(SETTINGS, resume=True))
    assert again.progress.updates == whole.progress.updates == 9 and again.progress.tokens == 63
    assert torch.equal(again.weight, whole.weight) and again.kept[0] == 10
    for name, value in whole.tensors().items():
        assert torch.equal(again.tensors()[name], value), name


def test_between_milestones_a_checkpoint_is_written_by_the_wall_clock(tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "SAVE_SECONDS", 0.0)
    state = stopped_after(5, tmp_path / "c", replace(SETTINGS, every=50.0))
    assert not state.progress.history and driver.progress_in(tmp_path / "c").updates == 5


def test_without_patience_training_goes_on_and_with_it_the_best_weights_stay(tmp_path):
    taus = [2.0, 2.4, *[2.3] * 50]
    state = Toy(replace(SETTINGS, patience=3), iter(taus))
    progress = train(state, tmp_path / "c", lambda entry: None)
    assert [entry["tau"] for entry in progress.history] == taus[:5]
    assert torch.equal(state.weight, state.measured[1])
    endless = Toy(SETTINGS, iter(taus), stop=20)
    with pytest.raises(KeyboardInterrupt):
        train(endless, tmp_path / "d", lambda entry: None)
    assert endless.progress.updates == 20


def test_milestones_of_a_stage_that_measures_nothing_try_no_patience(tmp_path):
    state = Toy(replace(SETTINGS, patience=2), iter([2.0, 1.5, 1.5, *[9.0] * 9]))
    metrics, silent = state.measure, [{}, {}, {}, {}]
    state.measure = lambda: silent.pop() if silent else metrics()
    progress = train(state, tmp_path / "c", lambda entry: None)
    assert [entry.get("tau") for entry in progress.history] == [None] * 4 + [2.0, 1.5, 1.5]
    assert torch.equal(state.weight, state.measured[0])


def test_a_checkpoint_of_another_network_is_refused(tmp_path):
    other = Toy()
    other.weight = torch.ones(5, 5)
    other.move({"w": other.weight})
    other.write(tmp_path / "c")
    with pytest.raises(BadInput, match="delete the file, or train without --resume"):
        train(Toy(replace(SETTINGS, resume=True)), tmp_path / "c", lambda entry: None)


def test_a_checkpoint_of_other_data_or_base_weights_is_refused_and_one_that_names_none_is_not(tmp_path, capsys):
    state, path = Toy(), tmp_path / "c"
    state.sources = {"data": "a.npz 1", "base": "b.safetensors 2"}
    state.write(path)
    state.read(path)
    assert not capsys.readouterr().out
    for name in state.sources:
        other = Toy()
        other.sources = {**state.sources, name: "c 3"}
        with pytest.raises(BadInput, match=f"{name} was '{state.sources[name]}', now 'c 3'.*restore that version, delete"):
            other.read(path)
    save_file(load_file(path), tmp_path / "d", metadata={"progress": json.dumps(asdict(Progress(updates=3)))})
    state.read(tmp_path / "d")
    assert state.progress.updates == 3 and "does not name its data" in capsys.readouterr().out
    Toy().read(tmp_path / "d")
    assert not capsys.readouterr().out, "nothing to name"


class Staged(Toy):
    """Two stages, the second with an optimizer of its own or with the first one's."""

    second = ("later", 0.5)

    def __init__(self, renewed):
        self.renewed = renewed
        super().__init__()
        self.begin()

    def enter(self, stage):
        super().enter(stage)
        if self.renewed:
            self.move({"w": self.weight})


@pytest.mark.parametrize(("renewed", "counted"), [(True, 3), (False, 7)])
def test_a_resumed_stage_counts_the_updates_of_its_optimizer(renewed, counted, tmp_path):
    whole, again = Staged(renewed), Staged(renewed)
    for update in range(7):
        whole.update(0.1 if update < 4 else 0.6)
    whole.write(tmp_path / "c")
    again.read(tmp_path / "c")
    again.begin()
    assert again.optimizer.updates == whole.optimizer.updates == counted and again.rate(0.6) == whole.rate(0.6)
    whole.update(0.6)
    again.update(0.6)
    assert all(torch.equal(again.tensors()[name], value) for name, value in whole.tensors().items())


def test_when_the_time_was_spent_already_the_averaged_weights_are_put_back(tmp_path):
    state = stopped_after(6, tmp_path / "c")
    over = Toy(replace(SETTINGS, minutes=1e-12, resume=True))
    assert train(over, tmp_path / "c").updates == 6
    assert torch.equal(over.weight, state.optimizer.averaged()["w"])


class Pulled(TrainState):
    """A weight pulled to numbers, several in a pass; passes longer than ``room`` find no memory."""

    def __init__(self, settings, room=10**9):
        self.weight, self.room = torch.zeros(2, 2, requires_grad=True), room
        self.passes = []
        super().__init__(settings, {"w": self.weight})

    def step(self, share):
        def loss(part):
            if len(part) > self.room:
                raise torch.OutOfMemoryError("CUDA out of memory")
            self.passes.append(len(part))
            return torch.stack([(self.weight - number).square().sum() for number in part]).sum()

        return self.learn([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], loss, 6)


@pytest.mark.parametrize(("part", "room", "passes"), [(0, 9, [6]), (4, 9, [4, 2]), (0, 3, [3, 3]), (0, 2, [1] * 6)])
def test_passes_are_as_long_as_asked_for_or_as_memory_holds_and_the_gradient_is_the_same(part, room, passes, monkeypatch):
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    state = Pulled(replace(SETTINGS, part=part), room)
    step = state.step(0.0)
    assert state.passes == passes and step.loss == pytest.approx(4 * 91)
    assert step.gradients["w"].tolist() == [[-42.0, -42.0]] * 2
    state.passes.clear()
    state.step(0.0)
    assert state.passes == passes, "what did not fit is not tried again"


def test_a_gpu_that_holds_not_even_one_example_is_told_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    with pytest.raises(ModelUnavailable, match="even with one example.*--device cpu"):
        Pulled(SETTINGS, 0).step(0.0)


def test_a_recipe_s_settings_are_data_and_a_gpu_has_its_own():
    job = Job(recipes()["eagle3"], "auto", 30.0, True)
    threads = torch.get_num_threads()
    try:
        own = driver.settings_for(job, torch.device("cpu"))
    finally:
        torch.set_num_threads(threads)
    assert (own.minutes, own.resume, own.batch) == (30.0, True, 8) and own.workers >= 1
    gpu = driver.settings_for(job, torch.device("cuda"))
    assert (gpu.workers, gpu.batch, gpu.part, gpu.peak) == (1, 64, 64, 0.0025) and gpu.every == 3.0


def test_what_ships_stays_as_it_was_while_the_rounded_weights_are_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(driver, "WEIGHTS", tmp_path)
    job, state = Job(recipes()["gto"], "cpu", 1.0, False), Toy()
    driver.weights_of(job).write_bytes(b"what ships")
    state.weight.copy_(torch.tensor([[1.0, 0.003], [0.5, 0.25], [0.0, 0.0]]))
    whole, seen = state.weight.clone(), []

    def measure():
        seen.append(state.weight.clone())
        assert driver.weights_of(job).read_bytes() == b"what ships"
        return {"tau": 1.23456}

    state.metrics = measure
    monkeypatch.setattr(driver, "train", lambda state, checkpoint: setattr(state, "progress", Progress(9, 120.0, 42)))
    driver.run(job, state, "some data", tokenizer_hash="abc")
    assert state.sources == {"data": "some data", "tokenizer_hash": "abc"}
    assert not torch.equal(seen[0], whole) and torch.allclose(seen[0], whole, atol=0.01) and torch.equal(state.weight, whole)
    card = read_weights(driver.weights_of(job))[1]
    assert card["metrics"] == '{"tau": 1.2346}' and card["tokenizer_hash"] == "abc" and "42 answer tokens" in card["spent"]
    assert "`gto.safetensors`" in capsys.readouterr().out and card["recipe"].startswith("python -m specviz train gto (")


@pytest.mark.parametrize("workers", [1, 2])
def test_what_autocast_keeps_changes_no_gradient(workers, monkeypatch):
    """Parts share the casts of one update and no more; a pass without gradients before the loss takes none of them away."""
    monkeypatch.setattr(parallel, "products", lambda device: torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(16, 16, generator=generator, requires_grad=True)
    head = torch.randn(8, 16, generator=generator)
    parallel.keep_cast(head)
    parts = list(torch.randn(6, 4, 16, generator=generator))

    def loss(part):
        with torch.no_grad():
            shown = F.linear(part, weight).mean()
        return F.linear(F.linear(part, weight) + shown, head).float().square().mean()

    def alone(part):
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            value = loss(part)
        return torch.autograd.grad(value, weight)[0]

    for _ in range(3):  # the weights move in between: a cast of the last update would show
        (gradient,), _ = parallel.gradients(parts, loss, [weight], workers)
        expected = torch.stack([alone(part) for part in parts]).sum(0)
        assert torch.allclose(gradient, expected, rtol=1e-3, atol=1e-4) and expected.abs().max() > 0.1
        with torch.no_grad():
            weight.add_(gradient, alpha=0.05)


def test_a_wrong_name_lists_the_right_ones():
    with pytest.raises(BadInput, match="small_draft"):
        registry.train("smal_draft")


@pytest.mark.parametrize("minutes", [0, -3, float("nan"), float("inf")])
def test_a_time_that_cannot_be_spent_is_refused(minutes):
    with pytest.raises(BadInput, match="positive"):
        registry.train("small_draft", minutes=minutes)

"""What cannot fit into memory or onto the disk is refused in a sentence before it is fetched, whoever asks."""

import shutil

import pytest
import torch
from safetensors.torch import save_file

from specviz.errors import ModelUnavailable, OutOfMemory
from specviz.inspection.report import inspect
from specviz.models import room
from specviz.models.cache import ModelCache
from specviz.models.hub import hub
from specviz.models.text.load import load_causal_lm
from specviz.pipeline.request import Request
from specviz.pipeline.runner import prepare

GIB = 2**30


class Group:
    """A machine of so many bytes, and the files of its control groups."""

    def __init__(self, root, monkeypatch):
        self.root, self.patch = root, monkeypatch
        self.read = room.memory_of_machine

    def memory(self, gib):
        total = int(gib * GIB)
        self.patch.setattr(room.psutil, "virtual_memory", lambda: type("Memory", (), {"total": total}))
        self.patch.setattr(room, "memory_of_machine", lambda: self.read(self.root))
        return self

    def disk(self, free):
        usage = type(shutil.disk_usage("/"))(int(50e9), int(50e9 - free), int(free))
        self.patch.setattr(shutil, "disk_usage", lambda folder: usage)
        return self

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text, encoding="utf-8")
        return self


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.setattr(
        hub, "_repository_facts", lambda repository: hub.Facts(int(140e9), 70e9) if "huge" in repository else hub.Facts()
    )
    monkeypatch.setattr(hub, "hub_folder", lambda: tmp_path / "hub")
    return Group(tmp_path / "root", monkeypatch).memory(16).disk(45e9)


@pytest.mark.parametrize(
    ("groups", "files", "gib"),
    [
        ("0::/", {"memory.max": "max\n"}, 16),
        ("0::/", {"memory.max": str(2 * GIB)}, 2),
        ("0::/a/b", {"a/memory.max": str(3 * GIB), "a/b/memory.max": "max"}, 3),
        ("5:devices:/\n4:cpu,memory:/box", {"memory/box/memory.limit_in_bytes": str(4 * GIB)}, 4),
        ("4:memory:/host/id", {"memory/memory.limit_in_bytes": str(5 * GIB)}, 5),
        ("4:memory:/", {"memory/memory.limit_in_bytes": "9223372036854771712"}, 16),
        ("3:cpu:/", {"memory.max": str(GIB)}, 16),
    ],
)
def test_the_smallest_limit_of_groups_and_machine_counts(machine, groups, files, gib):
    machine.write("proc/self/cgroup", groups)
    for name, text in files.items():
        machine.write(f"sys/fs/cgroup/{name}", text)
    assert room.memory_of_machine() == gib * GIB
    assert room.limit() == int(gib * GIB - min(2e9, gib * GIB / 4))


@pytest.mark.parametrize(
    ("gib", "names", "dtype", "fits"),
    [
        (1, ["smollm2-135m-instruct"], "bfloat16", True),
        (1, ["smollm2-135m-instruct"], "float64", False),
        (16, ["qwen3-4b", "qwen3-0.6b"], "bfloat16", True),
        (16, ["qwen3-4b"], "float32", False),
        (16, ["qwen3-8b"], "bfloat16", False),
        (16, ["smollm2-1.7b-instruct", "smollm2-1.7b-instruct"], "float64", True),
        (16, ["smollm2-1.7b-instruct", "smollm2-360m-instruct"], "float64", False),
        (16, ["anybody/huge"], "bfloat16", False),
        (16, ["anybody/unknown"], "bfloat16", True),
        (256, ["anybody/huge"], "bfloat16", True),
    ],
)
def test_models_fit_by_memory_and_number_format(machine, gib, names, dtype, fits):
    machine.memory(gib)
    if fits:
        return room.check(names, dtype)
    with pytest.raises(OutOfMemory, match=r"needs? about [\d.]+ GB in .* models may use .*\. Choose"):
        room.check(names, dtype)


@pytest.mark.parametrize(
    ("free", "name", "fits"),
    [(45e9, "qwen3-8b", True), (17e9, "qwen3-8b", False), (3e9, "qwen3-0.6b", False), (4e9, "qwen3-0.6b", True),
     (0, "emoji-64", True), (2.1e9, "smollm2-135m-instruct", False), (3e9, "smollm2-135m-instruct", True)],
)  # fmt: skip
def test_models_fit_by_disk(machine, free, name, fits):
    machine.memory(256).disk(free)
    if fits:
        return room.check([name], "bfloat16")
    with pytest.raises(ModelUnavailable, match=rf"{name} takes [\d.]+ GB of disk, but [\d.]+ GB are left"):
        room.check([name], "bfloat16")


def test_what_is_fetched_already_needs_no_disk(machine, tmp_path):
    blobs = tmp_path / "hub" / "models--Qwen--Qwen3-0.6B" / "blobs"
    blobs.mkdir(parents=True)
    with (blobs / "whole").open("wb") as file:
        file.truncate(2 * 596_049_920)
    machine.disk(0)
    room.check(["qwen3-0.6b"], "bfloat16")
    assert room.note("qwen3-0.6b") == ""


@pytest.mark.parametrize(
    ("name", "offline", "said"),
    [("qwen3-0.6b", False, "1.2 GB from the hub"), ("qwen3-0.6b", True, "not here, and HF_HUB_OFFLINE is set"),
     ("a/b", False, ""),
     ("emoji-64", True, ""), ("smollm2-135m-instruct", True, "0.1 GB from PyPI")],
)  # fmt: skip
def test_a_model_that_is_not_here_says_what_is_to_be_fetched(machine, tmp_path, monkeypatch, name, offline, said):
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", offline)
    assert room.note(name) == said


@pytest.mark.parametrize(("offline", "here"), [(False, False), (True, True), (True, False)])
def test_heads_that_cannot_be_fetched_say_so(tmp_path, monkeypatch, offline, here):
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", offline)
    monkeypatch.setattr(hub, "cached_folder", lambda repository: tmp_path if here else None)
    assert room.unreachable("a/heads") == (f", {room.OFFLINE}" if offline and not here else "")


def test_a_folders_size_is_what_its_files_say(tmp_path):
    save_file({"a": torch.zeros(100, 30), "b": torch.zeros(7, dtype=torch.float16)}, tmp_path / "model.safetensors")
    (tmp_path / "other.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0notjson!")
    assert room.memory_of(str(tmp_path), "float64") == int(3007 * 8 * 1.1)


ASKERS = {
    "run": lambda name: prepare(Request("prompt_lookup", "hi", target=name)),
    "draft": lambda name: prepare(Request("speculative_sampling", "hi", target="smollm2-135m-instruct", draft=name)),
    "inspect": lambda name: inspect("eagle3", name, ("hi",), 4, 2, True, lambda sentence: None),
    "inspected": lambda name: inspect(name, "smollm2-135m-instruct", ("hi",), 4, 2, True, lambda sentence: None),
    "load": load_causal_lm,
}


@pytest.mark.parametrize("asker", ASKERS)
@pytest.mark.parametrize("name", ["qwen3-8b", "anybody/huge"])
def test_whoever_asks_is_refused_before_anything_is_fetched(machine, asker, name, monkeypatch, tmp_path):
    def fetched(repository, *rest, **more):
        config = tmp_path / "config.json"
        config.write_text('{"model_type": "llama"}', encoding="utf-8")
        assert list(more["allow_patterns"]) == ["config.json"], f"{repository} was fetched"
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", fetched)
    with pytest.raises(OutOfMemory, match=f"{name}.* GB"):
        ASKERS[asker](name)


def test_a_repository_stays_at_the_revision_it_was_fetched_at(machine, tmp_path, monkeypatch):
    asked = []

    def fetched(repository, *, revision, **more):
        asked.append(revision)
        refs = tmp_path / "hub" / "models--a--b" / "refs"
        refs.mkdir(parents=True, exist_ok=True)
        (refs / "main").write_text("c" * 40)
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", fetched)
    hub.fetch_repository("a/b")
    hub.fetch_repository("a/b")
    assert asked == [None, "c" * 40]
    assert hub.revisions(["a/b", "smollm2-135m-instruct", "qwen3-0.6b"]) == {"a/b": "c" * 40}


class Model:
    """Something that can be forgotten."""


def test_a_run_that_holds_a_model_keeps_its_memory_taken():
    models = ModelCache(lambda place: 10)
    held = models.get(("a",), Model, lambda: 6)
    with pytest.raises(OutOfMemory, match="b needs about 0.0 GB .* of which runs still hold"):
        models.get(("b",), Model, lambda: 6)
    del held
    models.get(("b",), Model, lambda: 6)


def test_each_device_has_room_of_its_own():
    models = ModelCache({"cpu": 10, "cuda:0": 6}.__getitem__)
    first = models.get(("a",), Model, lambda: 8)
    models.get(("b",), Model, lambda: 6, "cuda:0")
    assert models.get(("a",), Model, lambda: 8) is first
    with pytest.raises(OutOfMemory, match="c needs .* cuda:0"):
        models.get(("c",), Model, lambda: 7, "cuda:0")

"""Download of a model-hub repository: safetensors and tokenizer files, nothing that can run code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
from huggingface_hub.utils import filter_repo_objects
from tqdm.auto import tqdm

from specviz.engine.stop import waiting
from specviz.errors import ModelUnavailable
from specviz.models.hub.cache_dir import Progress, check_disk, disk_is_full, no_progress, read_json
from specviz.models.hub.catalog import NUMBER_BYTES, is_model, resolve
from specviz.models.hub.opening import first_line

_WANTED = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model"]
_UNWANTED = ["original/*", "onnx/*", "consolidated*"]
_ASK_SECONDS = 10.0


@dataclass(frozen=True)
class Facts:
    """The hub's facts about a repository before its download: ``size`` of the wanted files in bytes, and ``numbers``, its
    parameters; 0 if unknown."""

    size: int = 0
    numbers: float = 0.0


def _folder(repository: str) -> Path:
    return Path(constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}"


def cached_revision(repository: str) -> str:
    """The commit at which a repository was first fetched and which later runs keep; empty if it was never fetched."""
    file = _folder(repository) / "refs" / "main"
    return file.read_text(encoding="utf-8").strip() if file.is_file() else ""


def revisions(names: Sequence[str]) -> dict[str, str]:
    """Revisions of the models in ``names`` that come from the hub, by repository."""
    repositories = [resolve(name).repository for name in names if is_model(name)]
    return {repository: commit for repository in repositories if repository and (commit := cached_revision(repository))}


def cached_folder(repository: str) -> Path | None:
    """The folder with a repository's fetched files; None if nothing was fetched."""
    folder = _folder(repository) / "snapshots" / (cached_revision(repository) or "none")
    return folder if folder.is_dir() else None


def cached_bytes(repository: str) -> int:
    """Bytes of a repository fetched so far, including an interrupted download."""
    blobs = _folder(repository) / "blobs"
    return sum(file.stat().st_size for file in blobs.iterdir() if file.is_file()) if blobs.is_dir() else 0


def facts(repository: str) -> Facts:
    """The hub's facts about a repository; empty ones if it does not answer, since the fetch that follows reports the reason."""
    try:
        return _repository_facts(repository)
    except Exception:
        return Facts()


@lru_cache(maxsize=64)
def _repository_facts(repository: str) -> Facts:
    about = HfApi().model_info(repository, files_metadata=True, timeout=_ASK_SECONDS)
    sizes = {file.rfilename: file.size or 0 for file in about.siblings or ()}
    wanted = filter_repo_objects(sizes, allow_patterns=_WANTED, ignore_patterns=_UNWANTED)
    weights = sum(size for name, size in sizes.items() if name.endswith(".safetensors") and "/" not in name)
    counts = about.safetensors.parameters.values() if about.safetensors else ()
    config = read_json((cached_folder(repository) or Path("none")) / "config.json")
    bytes_each = NUMBER_BYTES.get(str(config.get("dtype") or config.get("torch_dtype")), 2)
    return Facts(sum(sizes[name] for name in wanted), sum(counts) or weights / bytes_each)


def fetch_repository(repository: str, progress: Progress = no_progress, wanted: list[str] = _WANTED) -> Path:
    """Return the folder with ``repository``'s files, from the hub's own cache if they are there.

    A fetched repository stays at its revision, so that runs can be repeated. Interrupted downloads resume; the hub's client
    checks sizes and hashes. Raises ModelUnavailable with a remedy, before the download if the disk is too small.
    """
    progress(f"Looking for {repository} on the model hub", None)
    if wanted is _WANTED:
        check_disk(repository, max(0, facts(repository).size - cached_bytes(repository)), Path(constants.HF_HUB_CACHE))
    try:
        with waiting():
            folder = snapshot_download(
                repository,
                revision=cached_revision(repository) or None,
                allow_patterns=wanted,
                ignore_patterns=_UNWANTED,
                tqdm_class=_bar(repository, progress),
            )
    except GatedRepoError as problem:
        raise ModelUnavailable(
            f"{repository} wants its licence accepted: open its page on the hub, accept, and run `hf auth login`."
        ) from problem
    except RepositoryNotFoundError as problem:
        raise ModelUnavailable(
            f"The hub knows no {repository}, or it is private. Check the name, or run `hf auth login`."
        ) from problem
    except Exception as problem:  # any error of the network or the disk becomes one sentence
        if disk_is_full(problem):
            raise ModelUnavailable(
                f"{repository} does not fit on the disk of {constants.HF_HUB_CACHE}. "
                "Make room there, or set HF_HOME to a folder on another disk."
            ) from problem
        reason = first_line(problem)
        raise ModelUnavailable(
            f"{repository} could not be fetched from the model hub ({reason[:200]}). Check the network, or choose "
            "smollm2-135m-instruct, a model folder or a .gguf file."
        ) from problem
    return Path(folder)


def _bar(repository: str, progress: Progress) -> type[tqdm]:
    """A progress bar for the hub's client that draws nothing and reports bytes to ``progress``."""

    class ByteBar(tqdm):
        def display(self, *_: Any, **__: Any) -> None:
            """Draw nothing."""

        def update(self, n: float | None = 1) -> bool | None:
            refreshed = super().update(n)
            if self.unit == "B" and self.total:
                progress(f"Downloading {repository} ({self.total / 1e6:.0f} MB)", min(self.n / self.total, 1.0))
            return refreshed

    return ByteBar

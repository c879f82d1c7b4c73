"""Download of a model-hub repository: safetensors and tokenizer files, nothing that can run code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
from tqdm.auto import tqdm

from specviz.errors import ModelUnavailable
from specviz.models.hub.cache_dir import Progress, silent

_WANTED = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model")
_UNWANTED = ("original/*", "onnx/*", "consolidated*")


def fetch_repository(repository: str, progress: Progress = silent) -> Path:
    """The folder with ``repository``'s files, from the hub's own cache where they are there already.

    Interrupted downloads resume; the hub's client checks sizes and hashes. Raises ModelUnavailable saying what to do.
    """
    progress(f"Looking for {repository} on the model hub", None)
    try:
        folder = snapshot_download(
            repository, allow_patterns=_WANTED, ignore_patterns=_UNWANTED, tqdm_class=_bar(repository, progress)
        )
    except GatedRepoError as problem:
        raise ModelUnavailable(
            f"{repository} wants its licence accepted: open its page on the hub, accept, and run `hf auth login`."
        ) from problem
    except RepositoryNotFoundError as problem:
        raise ModelUnavailable(
            f"The hub knows no {repository}, or it is private. Check the name, or run `hf auth login`."
        ) from problem
    except Exception as problem:  # whatever the network or the disk did, the user needs one sentence
        reason = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
        raise ModelUnavailable(
            f"{repository} could not be fetched from the model hub ({reason[:200]}). Check the network, or choose "
            "smollm2-135m-instruct, a model folder or a .gguf file."
        ) from problem
    return Path(folder)


def _bar(repository: str, progress: Progress) -> type[tqdm]:
    """A progress bar for the hub's client that draws nothing and tells ``progress`` about bytes."""

    class ByteBar(tqdm):
        def display(self, *_: Any, **__: Any) -> None:
            """Draw nothing."""

        def update(self, n: float | None = 1) -> bool | None:
            refreshed = super().update(n)
            if self.unit == "B" and self.total:
                progress(f"Downloading {repository} ({self.total / 1e6:.0f} MB)", min(self.n / self.total, 1.0))
            return refreshed

    return ByteBar

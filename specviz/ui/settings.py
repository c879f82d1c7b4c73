"""Every environment variable the app reads, in one place, as one frozen value.

==========================  ========================================================================================
SPECVIZ_TARGET              target chosen when the page opens (default smollm2-135m-instruct)
SPECVIZ_DEVICE              auto, cpu or cuda: the device chosen when the page opens (default auto)
SPECVIZ_MAX_NEW_TOKENS      most new tokens a visitor may ask for (default 512)
SPECVIZ_MAX_WAITING         runs that may wait for the engine before newcomers are asked to come back (default 48)
SPECVIZ_MAX_SECONDS         most seconds that one run may compute, its earlier trajectories and its baseline included
                            (default 120 where others than this machine can reach the app, else no limit; on a ZeroGPU
                            Space never more than it lends a GPU for, less the time to load)
SPECVIZ_MAX_UPLOAD_MB       largest trace file a visitor may upload, in megabytes (default 20)
SPECVIZ_ANY_MODEL           1 lets visitors name any hub id or local folder, 0 keeps them to the list (default 1 where
                            the app listens to this machine alone; 0 on a Space and on any other address, because there
                            strangers would choose what is downloaded and read)
SPECVIZ_SERVERS             addresses of running servers (vLLM, llama.cpp, SGLang), with commas between them, that visitors
                            may send prompts to; they are listed as targets (default none)
SPECVIZ_TRACES              folder of recorded runs (default assets/traces beside app.py)
SPECVIZ_LESSONS             folder of lessons (default assets/lessons beside app.py)
PORT, GRADIO_SERVER_PORT    port to listen on (default 7860 or the next free one)
GRADIO_SERVER_NAME          address to listen on (default 127.0.0.1)
SPACES_ZERO_GPU, SPACE_ID   set by Hugging Face Spaces
==========================  ========================================================================================
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specviz.engines.client import address
from specviz.errors import BadInput

ROOT = Path(__file__).resolve().parents[2]
PUBLIC_SECONDS = 120
"""Most seconds of one run where strangers can reach the app."""
GPU_SECONDS = 60
"""Most seconds that one run may hold a GPU which a ZeroGPU Space lends; at its end the Space takes the GPU away."""
LOADING_SECONDS = 20
"""Of these, what starting a process and loading a model there may take: a run has the rest, and ends by itself."""


@dataclass(frozen=True)
class Settings:
    """How this copy of the app is set up."""

    target: str = "smollm2-135m-instruct"
    device: str = "auto"
    max_new_tokens: int = 512
    max_waiting: int = 48
    max_seconds: int | None = None
    max_upload_mb: int = 20
    any_model: bool = True
    traces: Path = ROOT / "assets" / "traces"
    lessons: Path = ROOT / "assets" / "lessons"
    port: int | None = None
    zero_gpu: bool = False
    proxied: bool = False
    servers: tuple[str, ...] = ()


def read(environment: Mapping[str, str] = os.environ) -> Settings:
    """Settings from environment variables. Raises BadInput naming the variable that makes no sense."""
    base = Settings()
    port = environment.get("PORT") or environment.get("GRADIO_SERVER_PORT")
    return Settings(
        target=environment.get("SPECVIZ_TARGET") or base.target,
        device=environment.get("SPECVIZ_DEVICE") or base.device,
        max_new_tokens=_whole_number(environment, "SPECVIZ_MAX_NEW_TOKENS", base.max_new_tokens),
        max_waiting=_whole_number(environment, "SPECVIZ_MAX_WAITING", base.max_waiting),
        max_seconds=_whole_number(environment, "SPECVIZ_MAX_SECONDS", 0 if _private(environment) else PUBLIC_SECONDS) or None,
        max_upload_mb=_whole_number(environment, "SPECVIZ_MAX_UPLOAD_MB", base.max_upload_mb),
        any_model=environment.get("SPECVIZ_ANY_MODEL", "1" if _private(environment) else "0") == "1",
        servers=tuple(address(url.strip()) for url in environment.get("SPECVIZ_SERVERS", "").split(",") if url.strip()),
        traces=Path(environment.get("SPECVIZ_TRACES") or base.traces),
        lessons=Path(environment.get("SPECVIZ_LESSONS") or base.lessons),
        port=None if not port else _number("PORT", port),
        zero_gpu=environment.get("SPACES_ZERO_GPU", "").lower() in ("1", "t", "true"),
        proxied=bool(environment.get("SPACE_ID")),
    )


def most_seconds(settings: Settings) -> int | None:
    """Most seconds that a run may compute; None has no limit."""
    if not settings.zero_gpu:
        return settings.max_seconds
    return min(settings.max_seconds or GPU_SECONDS, GPU_SECONDS - LOADING_SECONDS)


def _private(environment: Mapping[str, str]) -> bool:
    """Whether only this machine can reach the app."""
    name = environment.get("GRADIO_SERVER_NAME") or "127.0.0.1"
    try:
        loopback = ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        loopback = name == "localhost"
    return loopback and not environment.get("SPACE_ID")


def _whole_number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name)
    return default if not text else _number(name, text)


def _number(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise BadInput(f"The environment variable {name} is {text!r}; give a whole number from 1.")
    return int(text)

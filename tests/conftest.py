"""What every test can count on: no model hub, few threads, and a clear word when something it needs is missing."""

import gc
import os
import shutil
from functools import lru_cache

import pytest
from hypothesis import settings

# Read when the libraries are imported, so they must be set before any test file is.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Two threads on two busy cores wait for each other longer than they work.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Millions of objects come with the libraries and stay: looking through them for garbage, again and again, takes minutes.
gc.disable()

for lane, examples in (("fast", 25), ("full", 100)):
    settings.register_profile(lane, deadline=None, derandomize=bool(os.environ.get("CI")), max_examples=examples)

DEFAULT_TARGET = "smollm2-135m-instruct"


@lru_cache(maxsize=1)
def chromium_path():
    """A Chromium on this machine, or nothing."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return os.environ.get("SPECVIZ_CHROMIUM") or next((path for name in names if (path := shutil.which(name))), "")


@lru_cache(maxsize=1)
def model_trouble():
    """Why the real model cannot be had, or nothing when it is there."""
    from specviz.errors import SpecvizError
    from specviz.models.hub.prepare import prepare

    try:
        prepare(DEFAULT_TARGET)
    except SpecvizError as problem:
        return str(problem)
    return ""


def pytest_addoption(parser):
    parser.addoption("--shard", metavar="K/N", help="run the functions of part K of N alone, as one of several machines")


def pytest_configure(config):
    """Search longer for examples where slow tests run too."""
    settings.load_profile("fast" if "not slow" in config.getoption("markexpr") else "full")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Keep the shard's functions, and of a function's cases ``spread(n)`` of them in the fast lane, the others being slow.

    Those in the fast lane are spread evenly. The steps shift by one, so that stacked parameters do not always meet in the same
    pairs. In CI a test that waits on a browser, on a machine that others use too, has a second chance; no other test has.
    """
    if shard := config.getoption("shard"):
        part, parts = map(int, shard.split("/"))
        kept = set(sorted({item.nodeid.split("[")[0] for item in items})[part - 1 :: parts])
        items[:] = [item for item in items if item.nodeid.split("[")[0] in kept]
    functions = {}
    for item in items:
        if os.environ.get("CI") and item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.flaky(reruns=1))
        if item.get_closest_marker("spread"):
            functions.setdefault((str(item.path), item.nodeid.split("[")[0]), []).append(item)
    for cases in functions.values():
        (count,) = cases[0].get_closest_marker("spread").args
        fast = {(number * len(cases) // count + number) % len(cases) for number in range(count)}
        for number, item in enumerate(cases):
            if number not in fast:
                item.add_marker(pytest.mark.slow)


def pytest_collection_finish():
    """Collect garbage from here on, but not among what importing left: whatever loads a model collects a few times."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """Leave what one file's tests made out of the garbage collections of the next: whatever is still in use then stays."""
    done = yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    return done


def refuse(reason):
    """Skip a test that lacks something; in CI, where nothing may be missing, fail it."""
    (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)


def pytest_runtest_setup(item):
    """Refuse a test that lacks what its marker names."""
    if item.get_closest_marker("model") and model_trouble():
        refuse(model_trouble())
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device here")


@pytest.fixture(scope="session")
def chromium():
    """The executable of a real Chromium; a test that asks for one is refused where there is none."""
    if not chromium_path():
        refuse("no Chromium here: install it, or name one in SPECVIZ_CHROMIUM")
    return chromium_path()

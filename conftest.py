"""Fixtures of the tests and doctests of both distributions."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

# A process in the background inherits SIGINT as ignored, and hands that on; tests send it and wait for what it does.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Before anything imports JAX, which reads it once.
os.environ["JAX_PLATFORMS"] = "cpu"

# How long an example takes says something about the machine only. `make test-all` asks for the full profile.
for profile, examples in (("quick", 10), ("full", 100)):
    hypothesis.settings.register_profile(
        profile, max_examples=examples, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
hypothesis.settings.load_profile("quick")

_MOST_KEPT_BYTES = 1 << 30
_CACHING: dict[str, object] = {
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_enable_xla_caches": "none",  # For GPUs; with them the folder's name is part of each key.
}


def pytest_configure(config: pytest.Config) -> None:
    """Has all tests compile the same program once, also those of the next run."""
    import jax

    if cache := getattr(config, "cache", None):  # Not with -p no:cacheprovider.
        kept = cache.mkdir("compiled")
        is_first = "PYTEST_XDIST_WORKER" not in os.environ  # Nor is a pytest that a test starts.
        if is_first and sum(entry.stat().st_size for entry in kept.iterdir()) > _MOST_KEPT_BYTES:
            shutil.rmtree(kept)
            kept.mkdir()
        _CACHING["jax_compilation_cache_dir"] = str(kept)
    for name, value in _CACHING.items():
        jax.config.update(name, value)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Returns how many workers there are: one more than cores, for tests wait for processes; at most four."""
    return min((os.cpu_count() or 1) + 1, 4)


@pytest.fixture(scope="session")
def environment() -> Callable[..., dict[str, str]]:
    """Gives processes that tests start an environment in which they share what they compile: `environment()`.

    One that gets killed might leave half an entry: it is to read only, `environment(writes=False)`.
    """

    def environment(writes: bool = True) -> dict[str, str]:
        settings = dict(_CACHING)
        if not writes:
            settings["jax_persistent_cache_min_compile_time_secs"] = 1e9
        return os.environ | {name.upper(): str(value) for name, value in settings.items()}

    return environment


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Looks for doctests only in files that have any: to look, pytest imports them, and some are scripts."""
    found = yield
    if file_path.suffix != ".py" or ">>>" in file_path.read_text(encoding="utf-8"):
        return found
    return [collector for collector in found if type(collector) is pytest.Module]


@pytest.fixture(autouse=True)
def fresh_default_graph() -> Iterator[None]:
    """Gives each test a default graph and programs of its own; costs nothing to those that do not use them."""
    yield
    if graph := sys.modules.get("hookline.graph"):
        graph.reset_default_graph()
    if "hookline.session" in sys.modules:
        from hookline.session.program import shared_jit

        shared_jit.clear_cache()


@pytest.fixture(scope="module", autouse=True)
def frozen_heap() -> Iterator[None]:
    """Leaves what a module of tests has left out of later collections: many tests collect, each else takes a second."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def failed_reads() -> Iterator[None]:
    """For tests that read broken checkpoints, with PytestUnraisableExceptionWarning ignored.

    Of a read that failed Orbax now and then leaves a coroutine whose event loop is closed, which Python reports when it
    is collected: in that test, then, and not in whichever comes later.
    """
    yield
    gc.collect()


class SmallDisk:
    """A file system of 64 KiB at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        """Leaves not a byte."""
        with open(self._ballast, "ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(512))
            except OSError:
                pass

    def free(self) -> None:
        """Gives back what `fill` has taken."""
        self._ballast.unlink()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A disk that can really be full."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root on Linux may mount a small disk")
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(path)], check=True)
    try:
        yield SmallDisk(path)
    finally:
        from hookline.summary import FileWriterCache

        FileWriterCache.clear()
        subprocess.run(["umount", str(path)], check=True)

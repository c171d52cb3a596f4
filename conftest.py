"""Fixtures of the tests in tests/ and of the doctests in src/."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# A process in the background inherits SIGINT as ignored, and hands that on; tests send it and wait for what it does.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Before anything imports JAX, which reads it once.
os.environ["JAX_PLATFORMS"] = "cpu"

# How long an example takes says something about the machine only.
hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("untimed")


def pytest_configure(config: pytest.Config) -> None:
    """Has tests of one process compile the same program once; the processes that they start, and kill, do not share."""
    if not config.getoption("numprocesses", None):  # Those have no tests of their own.
        import jax

        folder = tempfile.mkdtemp()
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


@pytest.fixture(autouse=True)
def fresh_default_graph() -> Iterator[None]:
    """Gives each test a default graph of its own; costs nothing to those that do not use the graph."""
    yield
    if graph := sys.modules.get("hookline.graph"):
        graph.reset_default_graph()


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

"""Fixtures of the tests in tests/ and of the doctests in src/."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import hypothesis
import pytest
from tests import programs

# A process in the background inherits SIGINT as ignored, and hands that on; tests send it and wait for what it does.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Before anything imports JAX, which reads it once.
os.environ["JAX_PLATFORMS"] = "cpu"

# `make test` asks for it: what has little to do with a test is to take little time. Else all is as for users.
_IS_QUICK = "JAX_DISABLE_MOST_OPTIMIZATIONS" in os.environ

# A file that is made, written, synchronized and removed in memory takes a tenth of the time that it takes on a disk.
_MEMORY = "/dev/shm"
_MEMORY_NEEDED = 8 << 30
_has_memory = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= _MEMORY_NEEDED
_in_memory = None
if _IS_QUICK and _has_memory and "TMPDIR" not in os.environ:
    _in_memory = os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="hookline-tests-", dir=_MEMORY)

# Tests make more objects than they drop: with Python's thresholds, looking for cycles takes 3 % of the time.
gc.set_threshold(50_000, 20, 20)

# How long an example takes says something about the machine only. `make test-all` asks for the full profile.
for profile, examples in (("quick", 10), ("full", 100)):
    hypothesis.settings.register_profile(
        profile, max_examples=examples, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
hypothesis.settings.load_profile("quick")


_MOST_KEPT_BYTES = 1 << 30
_CACHING = {
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_enable_xla_caches": "none",  # For GPUs; with them the folder's name is part of each key.
}
_COMPILED = pytest.StashKey[Path]()
_ALL_COMPILED = pytest.StashKey[Path | None]()


def pytest_configure(config: pytest.Config) -> None:
    """Has tests compile the same program once, also those of the next run."""
    if _in_memory:
        config.add_cleanup(lambda: shutil.rmtree(_in_memory, ignore_errors=True))
    if config.getoption("numprocesses", None):  # Its workers have the tests.
        return
    import jax

    cache = getattr(config, "cache", None)  # Not with -p no:cacheprovider.
    kept = cache and cache.mkdir("compiled")
    # JAX writes an entry in place, so each worker writes where no other one reads.
    own = config.stash[_COMPILED] = Path(tempfile.mkdtemp(dir=kept and kept.parent))
    config.stash[_ALL_COMPILED] = kept
    config.add_cleanup(lambda: shutil.rmtree(own, ignore_errors=True))
    if kept:
        _share_entries(kept, own)
        config.add_cleanup(lambda: _keep_entries(own, kept))
    for name, value in {"jax_compilation_cache_dir": str(own), **_CACHING}.items():
        jax.config.update(name, value)
    if _IS_QUICK:
        programs.share_contexts()
        programs.share_loaded()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Returns how many workers there are: one more than cores, for tests wait for processes; at most four."""
    return min((os.cpu_count() or 1) + 1, 4)


# What holds a worker for long, by the folder or the file.
_LONG = (
    "tests/examples/",
    "tests/loop/test_bits.py",
    "tests/loop/test_devices.py",
    "tests/loop/test_on_mesh.py",
    "tests/loop/test_steps_per_run.py",
    "tests/hooks/test_on_a_mesh.py",
    "tests/models/test_memory.py",
    "tests/checkpoint/",
    "tests/resume/",
    "tests/reliability/",
    "tests/test_rounding.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Has what is long begin first: else one worker is still at it when the others have nothing left to take."""
    items.sort(key=lambda item: not item.nodeid.startswith(_LONG))


def _share_entries(source: Path, target: Path, older_than: float = 0.0) -> None:
    """Links the entries that `target` lacks: JAX writes each once. Where a disk has no links, none is shared.

    One younger than `older_than` seconds may be half written still.
    """
    for name in set(os.listdir(source)).difference(os.listdir(target)):
        with contextlib.suppress(OSError):  # Another process may have made it, or removed it.
            if name.endswith("-cache") and time.time() - (source / name).stat().st_mtime >= older_than:
                os.link(source / name, target / name)


_shared_at = pytest.StashKey[float]()


@pytest.fixture(scope="module", autouse=True)
def shared_programs(pytestconfig: pytest.Config) -> Iterator[None]:
    """Gives the other workers what this one has compiled, and takes what they have, every 5 seconds at most."""
    yield
    if (kept := pytestconfig.stash[_ALL_COMPILED]) and time.monotonic() > pytestconfig.stash.get(_shared_at, 0.0) + 5:
        own = pytestconfig.stash[_COMPILED]
        _share_entries(own, kept, older_than=3.0)
        _share_entries(kept, own)
        pytestconfig.stash[_shared_at] = time.monotonic()


def _keep_entries(own: Path, kept: Path) -> None:
    """Keeps what was compiled, the newest up to a gibibyte."""
    _share_entries(own, kept)
    total = 0
    with contextlib.suppress(FileNotFoundError):  # The other worker is at it.
        for entry in sorted(kept.iterdir(), key=lambda entry: entry.stat().st_mtime, reverse=True):
            total += entry.stat().st_size
            if total > _MOST_KEPT_BYTES:
                entry.unlink()


@pytest.fixture(scope="session")
def environment(pytestconfig: pytest.Config) -> Callable[..., dict[str, str]]:
    """Gives processes that tests start an environment in which they share what they compile: `environment()`.

    One that gets killed might leave half an entry: it is to read only, `environment(writes=False)`. Where no bits are
    compared and many programs run a few times, XLA need not take its time over them: `environment(optimizes=False)`.
    In `make test` it never does.
    """

    def environment(writes: bool = True, optimizes: bool = True) -> dict[str, str]:
        settings = {"jax_compilation_cache_dir": pytestconfig.stash[_COMPILED], **_CACHING}
        if not optimizes:
            settings["jax_disable_most_optimizations"] = True
        if not writes:
            settings["jax_persistent_cache_min_compile_time_secs"] = 1e9
        return os.environ | {name.upper(): str(value) for name, value in settings.items()}

    return environment


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Looks for doctests only in files that have any: to look, pytest imports them."""
    found = yield
    if file_path.suffix != ".py" or ">>>" in file_path.read_text(encoding="utf-8"):
        return found
    return [collector for collector in found if type(collector) is pytest.Module]


@pytest.fixture(autouse=True)
def fresh_default_graph() -> Iterator[None]:
    """Gives each test a default graph of its own; costs nothing to those that do not use the graph."""
    yield
    if graph := sys.modules.get("hookline.graph"):
        graph.reset_default_graph()


@pytest.fixture(scope="module", autouse=True)
def frozen_heap() -> Iterator[None]:
    """Keeps the garbage collector from objects of earlier modules: JAX holds a million of their programs."""
    gc.freeze()
    yield
    programs.forget()
    gc.collect()
    gc.unfreeze()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Spares the end of the process what `frozen_heap` has done: pytest collects garbage five times more."""
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

"""Lets tests run a job on a disk of its own and cut the power."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

import pytest

from .power_cut import Findings, Settings

_TOOLS = ("unshare", "mount", "umount", "findmnt", "mkfs.ext4", "e2fsck")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--every-power-cut", action="store_true", help="cut the power at every moment, not at a few")


@pytest.fixture(scope="session")
def every_power_cut(pytestconfig: pytest.Config) -> bool:
    """Whether all is to be tried, for which `make test-all` has no time."""
    # Unknown where pytest is started for more than this folder.
    return bool(pytestconfig.getoption("--every-power-cut", default=False))


@pytest.fixture
def disk_folder() -> Iterator[str]:
    """A folder in memory, if there is one: then syncs of its files take no time."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield folder


@pytest.fixture
def cut_everywhere(disk_folder: str) -> Callable[[Settings], Findings]:
    """Runs a job on a disk of its own, and cuts the power; needs Linux and root."""
    if sys.platform != "linux":
        pytest.skip("needs the loop devices of Linux")
    if os.geteuid() != 0:
        pytest.skip("only root may mount disks")
    lacking = [tool for tool in _TOOLS if shutil.which(tool) is None]
    assert not lacking, f"as root on Linux this test has to run; it needs {', '.join(lacking)} (util-linux, e2fsprogs)"

    def cut(settings: Settings) -> Findings:
        given = json.dumps(dataclasses.asdict(settings))
        done = subprocess.run(
            ["unshare", "--mount", sys.executable, "-m", "reliability.power_cut", given, disk_folder],
            cwd=pathlib.Path(__file__).parents[1],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return Findings(**json.loads(done.stdout))

    return cut

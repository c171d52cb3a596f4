"""Both packages as users install them, in an empty environment of each Python: `make test-install`."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from tests.test_layers import NOT_LOADED_WITH_HOOKLINE
from tests.test_packaging import DISTRIBUTIONS, published_readme
from tests.test_public import PUBLIC
from tests.test_readme import EXAMPLE, README

ROOT = Path(__file__).parents[1]
PYTHONS = os.environ.get("HOOKLINE_PYTHONS", "").split()
# What the README has people type in the folder of the example.
COMMANDS = re.findall(r"`((?:tensorboard|hookline) [^`]+)`", README)
(TF1_EXAMPLE,) = re.findall(r"```python\n(.*?)```", (ROOT / "tf1" / "README.md").read_text(encoding="utf-8"), re.DOTALL)

pytestmark = pytest.mark.skipif(not PYTHONS, reason="make test-install names the interpreters")


def run(*command: object, cwd: Path, status: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in the environment of a user's shell."""
    env = {name: value for name, value in os.environ.items() if not re.match("PYTHON|JAX_|HOOKLINE_|MAKE|MFLAGS", name)}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=env | variables, capture_output=True, text=True, timeout=1800)
    assert done.returncode == status, f"{shlex.join(words)}\n{done.stdout}{done.stderr}"
    return done


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with the archives of both packages; the wheels are built from the source archives."""
    folder = tmp_path_factory.mktemp("built")
    for source in DISTRIBUTIONS.values():
        run(sys.executable, "-m", "build", "--outdir", folder, source, cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def clone(built, tmp_path_factory):
    """The unpacked source archive of hookline."""
    folder = tmp_path_factory.mktemp("clone")
    (archive,) = built.glob("hookline-*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module", params=PYTHONS)
def scripts(request, built):
    """The folder with the commands of an environment into which the wheel was installed."""
    with tempfile.TemporaryDirectory() as name:
        folder, start = Path(name), time.monotonic()
        run(request.param, "-m", "venv", folder, cwd=folder)
        run(folder / "bin/pip", "install", *built.glob("hookline-*.whl"), cwd=folder)
        secs = time.monotonic() - start
        megabytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
        print(f"\n{request.param}: {megabytes:.0f} MB, installed in {secs:.0f} s")
        yield folder / "bin"


@pytest.mark.parametrize(("name", "folder"), DISTRIBUTIONS.items())
def test_archives_have_valid_metadata_with_the_published_readme(built, name, folder):
    (wheel,), (source,) = built.glob(f"{name}-*.whl"), built.glob(f"{name}-*.tar.gz")
    with zipfile.ZipFile(wheel) as opened, tarfile.open(source) as file:
        of_wheel = opened.read(next(path for path in opened.namelist() if path.endswith(".dist-info/METADATA")))
        member = file.extractfile(f"{source.name.removesuffix('.tar.gz')}/PKG-INFO")
        assert member is not None
        assert member.read() == of_wheel
    metadata = Metadata.from_email(of_wheel, validate=True)
    assert metadata.description is not None
    assert metadata.description.strip() == published_readme(folder).strip()


def test_source_archive_contains_the_repository_and_its_tests_are_found(clone):
    tracked = run("git", "ls-files", cwd=ROOT).stdout.splitlines()
    assert [path for path in tracked if not path.startswith(".ci/") and not (clone / path).exists()] == []
    paths = os.pathsep.join(str(clone / folder) for folder in ("src", "tf1/src"))
    run(sys.executable, "-m", "pytest", "-q", "--collect-only", cwd=clone, PYTHONPATH=paths)


def test_installed_packages_fit_together(scripts, tmp_path):
    run(scripts / "pip", "check", cwd=tmp_path)


def test_public_modules_need_no_extra_and_load_no_other_package_early(scripts, tmp_path):
    code = f"import sys, hookline\nprint([name for name in {NOT_LOADED_WITH_HOOKLINE} if name in sys.modules])"
    assert run(scripts / "python", "-c", code, cwd=tmp_path).stdout == "[]\n"
    run(scripts / "python", "-c", f"import {', '.join(PUBLIC)}", cwd=tmp_path)


def test_readme_holds_in_an_empty_folder(scripts, tmp_path):
    (tmp_path / "train.py").write_text(EXAMPLE)
    for _ in range(2):
        assert run(scripts / "python", "train.py", cwd=tmp_path).stdout.splitlines()[-1] == "[ 1. -2.  3.]"
    assert COMMANDS
    for command in COMMANDS:
        name, *words = shlex.split(command)
        # Without a server that would wait for visitors.
        run(scripts / name, *words, *(["--inspect"] if name == "tensorboard" else []), cwd=tmp_path)


def test_command_needs_no_extra_and_names_the_package_of_what_does(scripts, tmp_path):
    run(scripts / "python", "-c", EXAMPLE, cwd=tmp_path)
    for words in (
        "--help",
        "inspect runs/step",
        "events runs/step",
        "diff runs/step runs/step",
        "clean runs/step --keep 1",
    ):
        assert run(scripts / "hookline", *words.split(), cwd=tmp_path).stdout
    assert "pip install shtab" in run(scripts / "hookline", "completion", "bash", cwd=tmp_path, status=2).stderr
    (tmp_path / "train.py").touch()
    failed = run(scripts / "hookline", "launch", "--workers", "2", "--servers", "1", "train.py", cwd=tmp_path, status=2)
    assert "pip install ray" in failed.stderr


def test_both_packages_are_installed_from_a_clone_and_run_a_script_of_tensorflow(scripts, clone, tmp_path):
    run(scripts / "pip", "install", ".", "./tf1", cwd=clone)
    run(scripts / "pip", "check", cwd=tmp_path)
    assert run(scripts / "python", "-c", TF1_EXAMPLE, cwd=tmp_path).stdout.splitlines()[-1] == "100"


def test_demo_runs_in_a_clone(scripts, clone):
    assert "accuracy" in run("make", "demo", f"VENV={scripts.parent}", cwd=clone).stdout

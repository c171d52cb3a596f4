"""Playing a script: a copy of its folder, a process for each of its tasks, and what it leaves."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
SOURCES = (ROOT, ROOT / "src", ROOT / "tf1" / "src")
SCRIPTS = Path(__file__).with_name("scripts")
BUILD = ROOT / "build" / "conformance" / "whole_scripts"
TIMEOUT_SECS = 300

# Those for which TensorFlow 2.15 lacks names that TF 1.x had: they are played on hookline alone.
OLD_NAMES = {"before_1_0"}
# The arguments of a script that is started once for each task: of the one that is recorded, then of the others.
TASKS = {"parameter_server": ["--job_name=worker", "--job_name=ps"]}


def python_of(system: str, variable: str = "TF_PYTHON") -> str:
    """Returns the interpreter of a system, by its whole path, as scripts run in folders of their own.

    Args:
        system: `tensorflow` or `hookline`.
        variable: The environment variable that names that of TensorFlow.
    """
    if system == "hookline":
        return sys.executable
    return str(Path(os.environ.get(variable) or ROOT / ".venv-tf215" / "bin" / "python").absolute())


def play(
    system: str,
    script: Path,
    *,
    as_it_is: bool = False,
    arguments: tuple[str, ...] = (),
    project: Path | None = None,
    data: Callable[[Path], None] | None = None,
    limit: int | None = None,
    secs: float = TIMEOUT_SECS,
    peer: str = "TF_PYTHON",
    options: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Plays a script, in an empty folder or, if it is a public one, in its own, and returns its record.

    Args:
        system: `tensorflow` or `hookline`.
        script: The script; the others of its folder are there, too.
        as_it_is: Leaves the system its own random numbers.
        arguments: The script's.
        project: The folder of the project that a public script is of.
        data: Puts the data that the script looks for into its folder.
        limit: After how many runs that return numbers it is ended.
        secs: How long it may take.
        peer: The environment variable that names the interpreter of TensorFlow.
        options: More of the environment.

    Returns:
        The record, with `folder`, where it ran, and `said`, what it printed.
    """
    home = project or script.parent
    folder = BUILD / (f"{home.name}-{script.stem}" if project else script.stem) / (system + "-plain" * as_it_is)
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "work").mkdir(parents=True)
    shutil.copytree(home, folder / "source", ignore=shutil.ignore_patterns("__pycache__", ".git", "*.ipynb"))
    played = folder / "source" / script.relative_to(home)
    if data is not None:
        data(played.parent)
    record, others = folder / "record.json", []
    tasks = TASKS.get(script.stem, [""])
    port = f"--port={_free_port()}" if len(tasks) > 1 else ""
    asked = ["--as-it-is"] * as_it_is + ([f"--runs={limit}"] if limit else [])
    command = [
        python_of(system, peer),
        "-m",
        "tf1.conformance.whole_scripts.play",
        *asked,
        system,
        str(folder / "source"),
        str(played),
    ]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, [*map(str, SOURCES), os.environ.get("EXTRA_PATH")])),
        "MNIST": str(BUILD / "mnist"),
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONWARNINGS": "ignore",
        "MPLBACKEND": "agg",
    }
    environment.update(options or {})
    environment.pop("TF_CONFIG", None)
    with open(folder / "said", "w", encoding="utf-8") as said:
        try:
            for number, task in enumerate(tasks):
                written = record if not number else folder / f"task-{number}.json"
                given = [*arguments, *filter(None, (task, port))]
                process = subprocess.Popen(
                    [*command, str(written), "--", *given],
                    cwd=played.parent if project else folder / "work",
                    env=environment,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                )
                others.append(process)
            status: Any = others[0].wait(secs)
        except subprocess.TimeoutExpired:
            status = f"no end within {secs} s"
        finally:
            for process in others:
                process.kill()
                process.wait()
    text = (folder / "said").read_text(encoding="utf-8", errors="replace")
    if not record.exists():
        return {"error": f"the process ended with {status}: {text[-2000:]}", "folder": folder, "said": text}
    return json.loads(record.read_text(encoding="utf-8")) | {"folder": folder, "said": text}


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]

"""Runs a script in several SPMD processes on this machine. Run by itself it is one of them."""

from __future__ import annotations

import os
import runpy
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import NamedTuple

from tests.python import Python

SRC = Path(__file__).parents[1] / "src"


class Ended(NamedTuple):
    """The end of a process: its exit status, and its output."""

    status: int
    out: str
    err: str


class Job:
    """SPMD processes that run a script, with process 0 at `address`; `wait` returns how they have ended."""

    def __init__(self, script, *arguments, count=2, environment=None, heartbeat_secs=10):
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        paths = [str(SRC), str(Path(__file__).parents[1]), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "JAX_PLATFORMS": "cpu",
            **(environment or {}),
        }
        self.processes, self._outputs = [], []
        for index in range(count):
            command = [__file__, port, count, index, heartbeat_secs, script, *arguments]
            process = Python(*command, env=environment, server=index % 2)
            self.processes.append(process)
            streams = [[], []]
            threads = [
                threading.Thread(target=self._read, args=(source, lines), daemon=True)
                for source, lines in zip((process.stdout, process.stderr), streams, strict=True)
            ]
            for thread in threads:
                thread.start()
            self._outputs.append((streams, threads))

    @staticmethod
    def _read(source, lines):
        with source:
            lines.extend(line for line in source if not line.startswith("[Gloo]"))

    def printed(self, index):
        """Returns the output of a process so far."""
        return "".join(self._outputs[index][0][0])

    def wait(self, timeout_secs=300):
        """Waits for all; kills those that are there when the time is over, which have the status -9 then."""
        clock = threading.Timer(timeout_secs, self.kill)
        clock.start()
        ended = []
        for process, (streams, threads) in zip(self.processes, self._outputs, strict=True):
            status = process.wait()
            for thread in threads:
                thread.join(10)
            ended.append(Ended(status, *map("".join, streams)))
        clock.cancel()
        return ended

    def kill(self):
        """Kills all."""
        for process in self.processes:
            process.kill()


def run(script, *arguments, timeout_secs=300, **options):
    """Runs a script in SPMD processes and returns how they have ended."""
    return Job(script, *arguments, **options).wait(timeout_secs)


def gather(name, value):
    """Returns the value of each process of this job under a name, by index; for between two trainings."""
    return _peers().all_gather(name, value)


def meet(name):
    """Waits, in a process of a job, for all others; for between two trainings."""
    _peers().barrier(name)


def _peers():
    from hookline.coordination import (
        process_group,  # A session has no use for them between two trainings, and no user has.
    )

    return process_group.current()


def main(port, count, index, heartbeat_secs, script, *arguments):
    """Is one of the processes."""
    import jax

    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        f"127.0.0.1:{port}",
        num_processes=int(count),
        process_id=int(index),
        heartbeat_timeout_seconds=int(heartbeat_secs),
        shutdown_timeout_seconds=10,
        initialization_timeout=60,
    )
    import hookline
    from hookline.coordination import service  # As the command does at the end of a process.

    hookline.distributed.initialize()
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    try:
        runpy.run_path(script, run_name="__main__")
    except Exception:  # As `hookline launch --spmd` does: JAX would wait at the end for the others.
        traceback.print_exc()
        service.skip_exit_barrier(1)
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])

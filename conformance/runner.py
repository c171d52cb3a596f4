"""Plays the scenarios on one system, in this process, and writes a record of each as a line of JSON.

python -m conformance.runner tensorflow OUT [--suites PACKAGE ...] [--only PREFIX ...] [--expect RECORDS]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import logging
import os
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Iterator
from typing import Any

from conformance.compare import disagreements
from conformance.differences import Difference, differences_of
from conformance.lines import reached
from conformance.plain import plain
from conformance.scenario import Scenario, all_scenarios
from conformance.system import System

TIMEOUT_SECS = 60.0


class TimedOut(BaseException):
    """A scenario takes too long. No `Exception`: neither system may take it for an error of the training."""


def main() -> None:
    """Runs the scenarios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("system", choices=["tensorflow", "hookline"])
    parser.add_argument("out")
    parser.add_argument("--suites", nargs="+", default=["conformance"], help="packages of scenarios")
    parser.add_argument("--only", nargs="*", default=[""], help="beginnings of ids")
    parser.add_argument("--expect", help="records of TensorFlow: stop at the first scenario that does not agree")
    parser.add_argument("--lines", help="where to write which lines of the package are reached")
    asked = parser.parse_args()
    modules = {suite: importlib.import_module(f"{suite}.on_{asked.system}") for suite in asked.suites}
    expected = read_records(asked.expect) if asked.expect else None
    listed = differences_of(asked.suites) if asked.expect else {}
    folder = os.path.dirname(importlib.import_module(asked.system).__file__ or "")
    tracing = reached(folder) if asked.lines else contextlib.nullcontext({})
    with open(asked.out, "w", encoding="utf-8") as out, tracing as lines:
        for scenario in all_scenarios(asked.suites):
            if scenario.id.startswith(tuple(asked.only)):
                module = modules[scenario.suite]
                record = play(scenario, module.system, module.LOGGER)
                out.write(json.dumps(record) + "\n")
                out.flush()
                if expected is not None and _notices(scenario.id, expected, record, listed):
                    break
    if asked.lines:
        with open(asked.lines, "w", encoding="utf-8") as out:
            json.dump({file: sorted(numbers) for file, numbers in lines.items()}, out)


def read_records(path: str) -> dict[str, dict[str, Any]]:
    """Returns what a runner has written, by id."""
    with open(path, encoding="utf-8") as lines:
        return {record["id"]: record for record in map(json.loads, lines)}


def _notices(id: str, expected: dict[str, Any], record: dict[str, Any], listed: dict[str, Difference]) -> bool:
    return bool(disagreements(id, expected[id], record, listed))


def play(scenario: Scenario, system: System, logger: str) -> dict[str, Any]:
    """Plays one scenario in a graph, a folder and a log of its own, and returns its record.

    The folder is the working directory, too: a path may be empty, and what was written there goes with it.
    """
    started = time.perf_counter()
    record: dict[str, Any] = {"id": scenario.id}
    system.reset()
    graph = system.Graph()
    system.folder = tempfile.mkdtemp(prefix="conformance-")
    try:
        with (
            contextlib.chdir(system.folder),
            _cleaned(system),
            _captured(system, logger),
            _limited(TIMEOUT_SECS),
            graph.as_default(),
        ):
            record["values"] = json.loads(json.dumps(plain(scenario.play(system))))
    except (Exception, TimedOut) as error:
        record["failed"] = f"{type(error).__name__}: {error}"[:300]
        record["trace"] = traceback.format_exc()
    finally:
        shutil.rmtree(system.folder, ignore_errors=True)
    record["secs"] = round(time.perf_counter() - started, 3)
    return record


@contextlib.contextmanager
def _cleaned(system: System) -> Iterator[None]:
    """Closes what the scenario has left open, while its folder is still there: a writer may open its file only now."""
    try:
        yield
    finally:
        with contextlib.suppress(Exception):
            system.reset()


@contextlib.contextmanager
def _limited(secs: float) -> Iterator[None]:
    """Raises `TimedOut` in the main thread when the time is over, and again each second: cleaning up may hang too."""

    def over(*_: Any) -> None:
        raise TimedOut(f"more than {secs} seconds")

    previous = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, secs, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@contextlib.contextmanager
def _captured(system: System, name: str) -> Iterator[None]:
    system.log = log = []

    class Capture(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            log.append(f"{record.levelname} {record.getMessage()}")

    logger = logging.getLogger(name)
    handler = Capture()
    kept = logger.handlers, logger.propagate, logger.level
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.handlers, logger.propagate = kept[:2]
        logger.setLevel(kept[2])


if __name__ == "__main__":
    main()

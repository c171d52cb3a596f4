"""Plays every scenario on TensorFlow and on hookline, compares them and says so.

TF_PYTHON=.venv-tf/bin/python python -m conformance [--suites PACKAGE ...] [--only PREFIX ...] [--details]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from conformance.compare import disagreements
from conformance.differences import differences_of
from conformance.runner import read_records
from conformance.scenario import all_scenarios

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "build" / "conformance"
PROCESS_TIMEOUT_SECS = 900


def main() -> int:
    """Returns the exit status: 0 if hookline does what TensorFlow does, but for what is listed."""
    parser = argparse.ArgumentParser(description="Plays every scenario on TensorFlow and on hookline.")
    parser.add_argument("--suites", nargs="+", default=["conformance"], help="packages of scenarios")
    parser.add_argument("--only", nargs="*", default=[""], help="beginnings of ids")
    parser.add_argument("--details", action="store_true", help="every scenario, and the traces of failures")
    asked = parser.parse_args()
    theirs = reference_records(asked.suites, asked.only)
    ours = records_of("hookline", sys.executable, asked.suites, asked.only)
    listed = differences_of(asked.suites)
    known = all_scenarios(asked.suites)
    scenarios = [scenario for scenario in known if scenario.id.startswith(tuple(asked.only))]
    wrong: dict[str, list[str]] = {}
    counts: Counter[tuple[str, str]] = Counter()
    differing = {name.partition(" ")[0] for name in listed}
    for scenario in scenarios:
        missing = {"failed": "no record: the process ended before it"}
        one, other = theirs.get(scenario.id, missing), ours.get(scenario.id, missing)
        wrong[scenario.id] = disagreements(scenario.id, one, other, listed)
        outcome = "wrong" if wrong[scenario.id] else "listed" if scenario.id in differing else "same"
        counts[scenario.group, outcome] += 1
        if asked.details:
            _print_details(scenario.id, outcome, one, other)
    for unknown in sorted(differing - {scenario.id for scenario in known}):
        wrong[unknown] = ["listed in the differences.md of a suite, but there is no such scenario"]
    _print_table(counts)
    for id, faults in wrong.items():
        for fault in faults:
            print(f"{id}: {fault}")
    secs = [sum(record["secs"] for record in records.values()) for records in (theirs, ours)]
    print(f"{len(scenarios)} behaviours; tensorflow {secs[0]:.0f} s, hookline {secs[1]:.0f} s.")
    return int(any(wrong.values()))


def reference_records(suites: list[str], only: list[str]) -> dict[str, dict[str, Any]]:
    """Returns TensorFlow's records: kept ones if neither a scenario nor the interpreter has changed since."""
    python = os.environ.get("TF_PYTHON") or str(ROOT / ".venv-tf" / "bin" / "python")
    if only != [""]:
        return records_of("tensorflow", python, suites, only)
    kept = kept_reference(python, suites)
    if not kept.exists():
        records = records_of("tensorflow", python, suites, only)
        if any("failed" in record for record in records.values()):
            return records
        for old in RECORDS.glob(f"reference-{'-'.join(suites)}-*"):
            old.unlink()
        (RECORDS / "tensorflow.jsonl").rename(kept)
    return read_records(str(kept))


def kept_reference(python: str, suites: list[str]) -> Path:
    """Returns where TensorFlow's records of these scenarios are kept."""
    sources: set[Path] = set()
    for suite in ("conformance", *suites):
        folder = ROOT.joinpath(*suite.split("."))
        sources |= {*folder.glob("*.py"), *folder.glob("scenarios/*.py"), *folder.glob("calls/*")}
    read = b"".join(path.read_bytes() for path in sorted(sources) if path.is_file())
    digest = hashlib.sha256(read + os.path.realpath(python).encode()).hexdigest()[:16]
    return RECORDS / f"reference-{'-'.join(suites)}-{digest}.jsonl"


def records_of(system: str, python: str, suites: list[str], only: list[str]) -> dict[str, dict[str, Any]]:
    """Plays scenarios on a system, in a process of its own, and returns the records."""
    RECORDS.mkdir(parents=True, exist_ok=True)
    out = RECORDS / f"{system}.jsonl"
    out.unlink(missing_ok=True)
    command = [python, "-m", "conformance.runner", system, str(out), "--suites", *suites, "--only", *only]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}
    said = RECORDS / f"{system}.log"
    with open(said, "w", encoding="utf-8") as log:
        status = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=log, stderr=log, timeout=PROCESS_TIMEOUT_SECS, check=False
        ).returncode
    if status:
        print(f"The process of {system} ended with status {status}; what it said is in {said}.")
    return read_records(str(out)) if out.exists() else {}


def _print_details(id: str, outcome: str, one: dict[str, Any], other: dict[str, Any]) -> None:
    print(f"{outcome:6} {id}")
    if outcome != "same":
        for name, record in (("tensorflow", one), ("hookline", other)):
            print(f"  {name}: {record.get('values')}")
            if "failed" in record:
                print(record.get("trace", record["failed"]))


def _print_table(counts: Counter[tuple[str, str]]) -> None:
    outcomes = ("same", "listed", "wrong")
    print(f"{'group':22}" + "".join(f"{outcome:>8}" for outcome in outcomes))
    groups = sorted({group for group, _ in counts})
    for group in groups:
        print(f"{group:22}" + "".join(f"{counts[group, outcome]:8}" for outcome in outcomes))
    print(f"{'all':22}" + "".join(f"{sum(counts[g, outcome] for g in groups):8}" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())

"""Writes what a target has run on into the table of the README: `make test RECORD=1`.

As `python -m tests.record TARGET REPORT` it takes the report in JUnit's format that pytest has written.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "tested.json"
TARGETS = ["test", "test-all"]
PACKAGES = {"JAX": "jax", "Flax": "flax", "Optax": "optax", "Orbax": "orbax-checkpoint", "NumPy": "numpy", "Ray": "ray"}


def row() -> str:
    """Returns the environment, as the name of a row."""
    return f"{sys.version_info[0]}.{sys.version_info[1]}, JAX {importlib.metadata.version('jax')}"


def outcome(report: Path) -> dict:
    """Returns the counts of a report, and its environment."""
    outcomes: dict[tuple, set[str]] = {}  # A test that fails in its call and again in its teardown is listed twice.
    for case in ET.parse(report).iter("testcase"):
        outcomes.setdefault((case.get("classname"), case.get("name")), set()).update(part.tag for part in case)
    failed = sum(bool(found & {"failure", "error"}) for found in outcomes.values())
    skipped = sum("skipped" in found for found in outcomes.values())
    return {"passed": len(outcomes) - failed - skipped, "failed": failed, "date": datetime.date.today().isoformat()}


def table(found: dict) -> str:
    """Returns the table of the README, the newest first."""
    lines = [f"| Python | {' | '.join(PACKAGES)} | {' | '.join(f'`make {target}`' for target in TARGETS)} |"]
    lines.append("|" + "---|" * (1 + len(PACKAGES) + len(TARGETS)))
    for ran in sorted(found.values(), key=lambda ran: [int(part) for part in ran["python"].split(".")], reverse=True):
        cells = [ran["python"], *(ran["packages"][name] for name in PACKAGES)]
        lines.append(f"| {' | '.join([*cells, *(_cell(ran, target) for target in TARGETS)])} |")
    return "\n".join(lines)


def _cell(ran: dict, target: str) -> str:
    if target not in ran["targets"]:
        return "not run"
    told = ran["targets"][target]
    failed = f", **{told['failed']} failed**" if told["failed"] else ""
    return f"{told['passed']:,} passed{failed}, {told['date']}"


def put(page: Path, text: str) -> None:
    """Replaces the text between the two markers."""
    inside = re.compile(r"(?<=<!-- tested -->\n).*?(?=<!-- /tested -->)", re.DOTALL)
    page.write_text(inside.sub(lambda _: f"{text}\n", page.read_text(encoding="utf-8")), encoding="utf-8")


def main(target: str, report: str) -> None:
    found = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    packages = {name: importlib.metadata.version(package) for name, package in PACKAGES.items()}
    before = found.get(row(), {})
    # A run with other packages does not belong to this row any more.
    targets = before.get("targets", {}) if before.get("packages") == packages else {}
    targets[target] = outcome(Path(report))
    found[row()] = {"python": ".".join(map(str, sys.version_info[:3])), "packages": packages, "targets": targets}
    RESULTS.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    put(ROOT / "README.md", table(found))


if __name__ == "__main__":
    main(*sys.argv[1:])

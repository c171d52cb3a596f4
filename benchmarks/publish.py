"""Puts measured figures where the docs show them: in two pages, and in one sentence of the README."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "bench"

_FIGURES = re.compile(r"(?<=<!-- bench -->).*?(?=<!-- /bench -->)", re.DOTALL)

_BARE = "bare jitted step"
_HOOKS, _BY_HAND = "monitored, standard hooks, NaN check", "by hand, NaN check"
_TENSORFLOW = f"TensorFlow {_HOOKS}"

# The least and most of three runs of bench.py on a slower machine, an AMD EPYC: µs of a step, and added to one.
_ELSEWHERE = {_BARE: (42, 42), _HOOKS: (28, 35), _BY_HAND: (8, 13), _TENSORFLOW: (430, 500)}


def range_of_machines(found: dict) -> str:
    """Returns the sentence of the README, from `bench.json` and the figures of another machine."""
    rows = found["rows"]

    def micros(name: str) -> str:
        here = rows[name]["micros"] if name == _BARE else rows[name]["added"][_BARE]
        least, most = min(here, _ELSEWHERE[name][0]), max(here, _ELSEWHERE[name][1])
        return f"{least:.0f} to {most:.0f}"

    text = (
        f"On two machines, with steps of {micros(_BARE)} µs, the usual hooks and the NaN check add {micros(_HOOKS)} µs "
        f"to a step; the same work in a hand-written loop adds {micros(_BY_HAND)} µs"
    )
    if _TENSORFLOW in rows:
        text += f", and TensorFlow's hooks add {micros(_TENSORFLOW)} µs"
    return f"{text} ([performance](docs/performance.md))."


def of_this_machine(found: dict) -> str:
    """Returns the sentence above the tables of the page, from `bench.json`."""
    rows = found["rows"]
    text = (
        f"To a step of {rows[_BARE]['micros']:.0f} µs, `Session.run` adds "
        f"{_micros(rows['Session.run']['added'][_BARE])}, a monitored session with the five usual hooks and the NaN "
        f"check {rows[_HOOKS]['added'][_BARE]:.0f} µs, and a hand-written loop that does the same jobs "
        f"{rows[_BY_HAND]['added'][_BARE]:.0f} µs"
    )
    if _TENSORFLOW in rows:
        ratio = rows[_TENSORFLOW]["micros"] / rows[_HOOKS]["micros"]
        text += f"; TensorFlow's hooks take {ratio:.1f} times as long a step as these"
    return f"{text} ({found['machine']}, {found['date']})."


def of_interruptions() -> str:
    """Returns what was done to interrupted trainings, and the table, from `interrupted.md`."""
    return (RESULTS / "interrupted.md").read_text().partition("\n\n")[2].partition("\n\n- ")[0]


def _micros(added: float) -> str:
    return f"{added:.0f} µs" if added >= 0.5 else "nothing that can be measured"


def put(path: Path, text: str) -> None:
    """Replaces what stands between the two markers of a page."""
    page = path.read_text()
    if not _FIGURES.search(page):
        raise ValueError(f"{path} has no place for figures, between <!-- bench --> and <!-- /bench -->.")
    path.write_text(_FIGURES.sub(lambda _: text, page, count=1))


def main() -> None:
    found = json.loads((RESULTS / "bench.json").read_text())
    put(ROOT / "README.md", range_of_machines(found))
    table = (RESULTS / "bench.md").read_text().partition("\n\n")[0].strip()
    put(ROOT / "docs" / "performance.md", f"\n{of_this_machine(found)}\n\n{table}\n")
    put(ROOT / "docs" / "reliability.md", f"\n{of_interruptions()}\n")


if __name__ == "__main__":
    main()

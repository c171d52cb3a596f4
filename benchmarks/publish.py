"""Puts measured figures where the docs show them: `docs/performance.md` and one sentence of the README."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "bench"

_SENTENCE = re.compile(r"(?<=<!-- bench -->\n).*?(?=\n<!-- /bench -->)", re.DOTALL)


def sentence(found: dict) -> str:
    """Returns what the README says, from `bench.json`."""
    rows = found["rows"]
    run, whole, hand = rows["Session.run"], rows["monitored, standard hooks, NaN check"], rows["by hand, NaN check"]
    bare = "bare jitted step"
    text = (
        f"To a step of {rows[bare]['micros']:.0f} µs, `Session.run` adds {_micros(run['added'][bare])}, a monitored "
        f"session with the five usual hooks and the NaN check {whole['added'][bare]:.0f} µs, and a hand-written loop "
        f"that does the same jobs {hand['added'][bare]:.0f} µs"
    )
    tensorflow = rows.get("TensorFlow monitored, standard hooks, NaN check")
    if tensorflow is not None:
        text += f"; TensorFlow's hooks take {tensorflow['micros'] / whole['micros']:.1f} times as long a step as these"
    return f"{text} ({found['machine']}, {found['date']}; `docs/performance.md`)."


def _micros(added: float) -> str:
    return f"{added:.0f} µs" if added >= 0.5 else "nothing that can be measured"


def put(path: Path, text: str) -> None:
    """Replaces what stands between the two markers of a page."""
    page = path.read_text()
    if not _SENTENCE.search(page):
        raise ValueError(f"{path} has no place for figures, between <!-- bench --> and <!-- /bench -->.")
    path.write_text(_SENTENCE.sub(lambda _: text, page, count=1))


def main() -> None:
    put(ROOT / "README.md", "  " + sentence(json.loads((RESULTS / "bench.json").read_text())))
    parts = [(RESULTS / name).read_text().strip() for name in ("bench.md", "growth.md", "several_steps.md")]
    put(ROOT / "docs" / "performance.md", "\n\n".join(parts))


if __name__ == "__main__":
    main()

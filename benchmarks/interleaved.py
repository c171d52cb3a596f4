"""Timing what is to be compared in turns: A B C A B C. Machines are noisy, so only ratios of one round count."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import time
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

Run = Callable[[int], None]
"""Makes so many steps, and waits until they are done."""


class Row(NamedTuple):
    """What one contestant took.

    Args:
        micros: Microseconds a step, the median of the rounds.
        spread: Half the distance between the quartiles, of that.
        ratios: To each reference, the median of the ratios within a round.
        added: To each reference, the median of the differences within a round, in microseconds.
        errors: To each reference, the standard error of that ratio, if rounds do not depend on each other. Where the
            machine's speed drifts, it is larger.
        error_added: Likewise of the difference, in microseconds.
    """

    micros: float
    spread: float
    ratios: dict[str, float]
    added: dict[str, float]
    errors: dict[str, float]
    error_added: Mapping[str, float] = types.MappingProxyType({})


def stepwise(run: Callable[[], object]) -> Run:
    """Returns a contestant from a function that makes one step."""

    def steps(count: int) -> None:
        for _ in range(count):
            run()
        # Or the next contestant would wait for what this one has left.
        jax.block_until_ready(jax.live_arrays())

    return steps


def measure(
    contestants: Mapping[str, Run], *, rounds: int, steps: int, references: tuple[str, ...] = ()
) -> dict[str, Row]:
    """Times each contestant in each round.

    Args:
        contestants: By name. A first round, which compiles, does not count.
        rounds: How many rounds.
        steps: How many steps in a round.
        references: To whom ratios are given.
    """
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, run in contestants.items():
            start = time.perf_counter()
            run(steps)
            if number:
                times[name].append((time.perf_counter() - start) / steps * 1e6)
    return {name: _row(values, {r: times[r] for r in references if r in times}) for name, values in times.items()}


def _row(values: list[float], references: Mapping[str, list[float]]) -> Row:
    pairs = {name: list(zip(values, base, strict=True)) for name, base in references.items()}
    ratios = {name: [value / base for value, base in found] for name, found in pairs.items()}
    added = {name: [value - base for value, base in found] for name, found in pairs.items()}
    return Row(
        statistics.median(values),
        _half_width(values),
        {name: statistics.median(found) for name, found in ratios.items()},
        {name: statistics.median(found) for name, found in added.items()},
        {name: _error(found) for name, found in ratios.items()},
        {name: _error(found) for name, found in added.items()},
    )


def _error(values: list[float]) -> float:
    """Returns the standard error of a median."""
    # 1.25 times the deviation over the root of the number; half the quartiles' distance is 0.67 of the deviation.
    return 1.86 * _half_width(values) / len(values) ** 0.5


def _half_width(values: list[float]) -> float:
    """Returns half the distance between the quartiles."""
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return (high - low) / 2


def machine() -> dict[str, Any]:
    """Returns what a figure needs to be understood: the machine, the date, the versions."""
    return {
        "date": datetime.date.today().isoformat(),
        "machine": f"{os.cpu_count()} cores, {_processor()}",
        "device": str(jax.devices()[0]),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "load": round(os.getloadavg()[0], 1),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def table(rows: Mapping[str, Row], *, errors: bool = False) -> str:
    """Returns rows as a Markdown table; where it is asked for, ratios with their standard errors and a decimal more."""
    references = list(dict.fromkeys(name for row in rows.values() for name in row.ratios))
    heads = ["", "µs a step", *(f"/ {name}" for name in references), *(f"added to {name}" for name in references[:1])]
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    for name, row in rows.items():
        cells = [f"{row.micros:.1f} ± {row.spread:.1f}"]
        cells += [_ratio(row, r, errors=errors) for r in references]
        cells += [f"{row.added[r]:+.1f}" if r in row.added else "" for r in references[:1]]
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return "\n".join(lines)


def _ratio(row: Row, reference: str, *, errors: bool) -> str:
    if reference not in row.ratios:
        return ""
    if errors and row.errors[reference]:
        return f"{row.ratios[reference]:.3f} ± {row.errors[reference]:.3f}"
    return f"{row.ratios[reference]:.{3 if errors else 2}f}"


def write(path: Path, parts: Mapping[str, Mapping[Any, Row | float]]) -> None:
    """Writes rows and numbers, with the machine, as JSON."""
    found = {
        name: {str(key): value._asdict() if isinstance(value, Row) else value for key, value in values.items()}
        for name, values in parts.items()
    }
    path.write_text(json.dumps({**machine(), **found}, indent=1) + "\n")

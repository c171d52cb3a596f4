"""What interruptions cost: one schedule of them for the same training in five frameworks, each as its docs advise.

    python benchmarks/interrupted.py [--steps 2500] [--every 100] [--only NAME ...] [--results docs/bench]

Half of the interruptions are a SIGTERM with a grace, half a `kill -9`. Each is placed in the training, not in time: at
a share of the steps, in a save, or between a restore and the first step after it. A program is started again until it
has finished. Before and after that it is left alone, warm: the mean of the two times is its ideal. Each framework has
an environment of its own (`make bench-interrupted`); one without is left out, with a word.
"""

from __future__ import annotations

import argparse
import collections
import csv
import dataclasses
import datetime
import json
import logging
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import interleaved

ROOT = Path(__file__).parents[1]
PROGRAMS = Path(__file__).parent / "interrupted"
NAMES = ("hookline", "orbax", "keras", "lightning", "transformers")
TITLES = {
    "hookline": "hookline",
    "orbax": "by hand, Orbax",
    "keras": "Keras",
    "lightning": "Lightning",
    "transformers": "Transformers",
}
# Of each environment, what the table names beside Python.
PACKAGES = {
    "hookline": ("jax", "optax", "orbax-checkpoint"),
    "orbax": ("jax", "optax", "orbax-checkpoint", "grain"),
    "keras": ("keras", "jax"),
    "lightning": ("lightning", "torch", "torchdata"),
    "transformers": ("transformers", "accelerate", "torch"),
}
GRACE_SECS = 30.0
MOST_STARTS = 60
# After two starts in a row that fail without a step a person looks after it, after four the framework is given up.
FAILURES_BEFORE_REPAIR, MOST_FAILURES = 2, 4
SEED = 58


@dataclasses.dataclass(frozen=True)
class Interruption:
    """One interruption: the signal, and the place in the training.

    Args:
        signal: "SIGTERM" or "SIGKILL".
        place: "work": when a step at the share `at` of all steps is done. "save": in the first save that begins after
            that. "restore": in the start after the interruption before, when it has restored, or has made its first
            step without a restore.
        at: A share of the steps; of no use for "restore".
        within: Where in the save, as a share of the median time of the saves of the training left alone.
    """

    signal: str
    place: str
    at: float
    within: float = 0.0


def schedule(count: int = 20, seed: int = SEED) -> list[Interruption]:
    """Returns `count` interruptions: a fifth each in saves and after restores, half of each place a `kill -9`."""
    rng = random.Random(seed)
    per_phase = max(2, count // 10 * 2) if count >= 6 else 0
    places = ["work"] * (count - 2 * per_phase) + ["save"] * per_phase
    signals = {}
    for place, number in (("work", count - 2 * per_phase), ("save", per_phase), ("restore", per_phase)):
        signals[place] = (["SIGTERM", "SIGKILL"] * number)[:number]
        rng.shuffle(signals[place])
    rng.shuffle(places)
    shares = sorted(rng.uniform(0.03, 0.9) for _ in places)
    found = [
        Interruption(signals[place].pop(), place, at, rng.random() if place == "save" else 0.0)
        for place, at in zip(places, shares, strict=True)
    ]
    for before in sorted(rng.sample(range(len(found)), per_phase), reverse=True):
        found.insert(before + 1, Interruption(signals["restore"].pop(), "restore", found[before].at))
    return found


class Follower:
    """Reads a file of progress as it grows."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "progress"
        self._offset = 0
        self.lines: list[tuple[int, float, str, str]] = []

    def read(self) -> list[tuple[int, float, str, str]]:
        """Returns the new lines: process, time, what happened, value."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        new = [
            (int(pid), float(at), what, value)
            for pid, at, what, value in (line.split() for line in whole.decode().splitlines())
        ]
        self.lines += new
        return new


@dataclasses.dataclass
class Training:
    """One training, left alone or interrupted, and what came of it."""

    secs: float
    starts: int
    delivered: int
    executed: int
    save_secs: float
    digest: str | None
    gave_up: str | None
    repairs: int
    points: dict[int, int]


def is_due(planned: Interruption, what: str, value: str, reached: int, steps: int) -> bool:
    """Returns whether a line of progress is the place of an interruption; `reached` is the furthest step of all."""
    if planned.place == "restore":
        return what in ("restored", "step")
    if planned.place == "save":
        return what == "saving" and reached >= planned.at * steps
    return what == "step" and int(value) >= planned.at * steps


def run(
    name: str,
    python: str,
    folder: Path,
    steps: int,
    every: int,
    planned: list[Interruption],
    save_secs: float = 0.0,
) -> Training:
    """Runs the program of a framework until it has finished, interrupted as planned."""
    command = [python, str(PROGRAMS / f"by_{name}.py"), str(folder), str(steps), str(every)]
    folder.mkdir(parents=True, exist_ok=True)
    follower = Follower(folder)
    left, starts, failures, reached, repairs, gave_up = collections.deque(planned), 0, 0, 0, 0, None
    begin = time.monotonic()
    with (folder.parent / f"{folder.name}.log").open("ab") as log:
        while True:
            starts += 1
            process = subprocess.Popen(
                command, env=environment(), stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
            stepped = signalled = False
            try:
                while process.poll() is None and not signalled:
                    for pid, _, what, value in follower.read():
                        if pid != process.pid:
                            continue
                        if what == "step":
                            stepped, reached = True, max(reached, int(value))
                        if not signalled and left and is_due(left[0], what, value, reached, steps):
                            time.sleep(left[0].within * save_secs)
                            signalled = end(process, left.popleft().signal)
                    time.sleep(0.001)
                process.wait()
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            follower.read()
            if any(what == "finished" for _, _, what, _ in follower.lines):
                break
            failures = 0 if stepped or signalled else failures + 1
            if failures == FAILURES_BEFORE_REPAIR:
                repairs += repair(folder)
            if failures == MOST_FAILURES or starts == MOST_STARTS:
                gave_up = f"gave up after {starts} starts, at step {reached}"
                break
    secs = time.monotonic() - begin
    lines = follower.lines
    return Training(
        secs=secs,
        starts=starts,
        delivered=len(planned) - len(left),
        executed=sum(what == "step" for _, _, what, _ in lines),
        save_secs=median_save(lines),
        digest=next((value for _, _, what, value in lines if what == "finished"), None),
        gave_up=gave_up,
        repairs=repairs,
        points=logged_points(folder),
    )


def repair(folder: Path) -> bool:
    """Does what a person does whose training fails at each start: removes a checkpoint of Transformers that is torn."""
    for path in folder.glob("checkpoint-*"):
        if not (path / "trainer_state.json").exists():
            shutil.rmtree(path)
            return True
    return False


def end(process: subprocess.Popen[bytes], name: str) -> bool:
    """Sends a signal to a program and all that it started, and waits for its end; returns whether it was alive."""
    try:
        os.killpg(process.pid, getattr(signal, name))
    except ProcessLookupError:
        return False
    try:
        process.wait(GRACE_SECS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return True


def median_save(lines: list[tuple[int, float, str, str]]) -> float:
    """Returns the median time from the beginning of a save to its end, in seconds."""
    found, begin = [], None
    for _, at, what, _ in lines:
        if what == "saving":
            begin = at
        elif what == "saved" and begin is not None:
            found.append(at - begin)
            begin = None
    return statistics.median(found) if found else 0.0


def logged_points(folder: Path) -> dict[int, int]:
    """Returns how often the log of a training shows each step (Keras: epoch), as TensorBoard or a table of it would."""
    counts: collections.Counter[int] = collections.Counter()
    table = folder / "log.csv"
    if table.exists():
        with table.open(newline="") as file:
            counts.update(int(row[0]) for row in csv.reader(file) if row and row[0].isdigit())
    for run_folder in sorted({path.parent for path in folder.rglob("*tfevents*")}):
        counts.update(tensorboard_points(run_folder))
    return dict(counts)


def tensorboard_points(folder: Path) -> list[int]:
    """Returns the steps of the loss that TensorBoard shows for one run: without those that a restart took back."""
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

    shown = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    shown.Reload()
    tags = [tag for tag in shown.Tags()["tensors"] if tag in ("loss", "train/loss")]
    return [event.step for tag in tags for event in shown.Tensors(tag)]


def environment() -> dict[str, str]:
    # Threads that wait for each other on a shared machine would be timed instead.
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}


def lines_of(name: str) -> int:
    """Returns how many lines a person writes for the training, without those of the driver."""
    code = (PROGRAMS / f"by_{name}.py").read_text(encoding="utf-8").partition("# begin")[2].partition("# end")[0]
    lines = (line.strip() for line in code.splitlines())
    return sum(bool(line) and not line.startswith("#") and "progress" not in line for line in lines)


def versions(name: str, python: str) -> str:
    code = (
        "import importlib.metadata as m, platform; "
        "print('Python ' + platform.python_version(), "
        f"*[package + ' ' + m.version(package) for package in {PACKAGES[name]}], sep=', ')"
    )
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def measure(name: str, python: str, steps: int, every: int, planned: list[Interruption]) -> dict[str, Any]:
    """Returns the row of a framework: left alone, interrupted, left alone again."""
    folder = Path(tempfile.mkdtemp(prefix=f"interrupted-{name}-"))
    try:
        # Its imports, so that the first training finds its files in memory too.
        subprocess.run([python, str(PROGRAMS / f"by_{name}.py"), str(folder), "0", "0"], env=environment(), check=True)
        alone = run(name, python, folder / "alone", steps, every, [])
        if alone.digest is None:
            raise RuntimeError(f"{name} failed, left alone:\n{(folder / 'alone.log').read_text()[-2000:]}")
        hit = run(name, python, folder / "interrupted", steps, every, planned, alone.save_secs)
        again = run(name, python, folder / "again", steps, every, [])
        if hit.gave_up:
            print((folder / "interrupted.log").read_text(errors="replace")[-2000:], file=sys.stderr)
    finally:
        shutil.rmtree(folder)
    ideal = (alone.secs + again.secs) / 2
    return {
        "lines": lines_of(name),
        "executed": hit.executed / steps,
        "ideal_secs": ideal,
        "ideals": [alone.secs, again.secs],
        "secs": hit.secs,
        "wall": hit.secs / ideal,
        "starts": hit.starts,
        "interruptions": hit.delivered,
        "same_bits": hit.digest == alone.digest,
        "same_bits_alone": again.digest == alone.digest,
        "twice": sum(count > 1 for count in hit.points.values()),
        "missing": len(alone.points.keys() - hit.points.keys()),
        "points": len(alone.points),
        "save_secs": alone.save_secs,
        "gave_up": hit.gave_up,
        "repairs": hit.repairs,
        "versions": versions(name, python),
    }


HEADS = (
    "",
    "steps executed / needed",
    "wall / ideal",
    "ideal, s",
    "load",
    "same bits",
    "points logged twice",
    "points missing",
    "interruptions",
    "repairs",
    "lost per interruption / ideal",
    "lines",
)


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Returns the results as a table in Markdown."""
    lines = [HEADS, ("---", *("---:" for _ in HEADS[1:]))]
    for name, row in rows.items():
        bits = "yes" if row["same_bits"] else "no" if row["same_bits_alone"] else "no, nor left alone"
        lines.append(
            (
                TITLES[name],
                f"{row['executed']:.2f}",
                row["gave_up"] or f"{row['wall']:.1f}",
                f"{row['ideal_secs']:.0f}",
                f"{row['load']:.0f}",
                bits,
                f"{row['twice']} of {row['points']}",
                f"{row['missing']} of {row['points']}",
                f"{row['interruptions']}",
                f"{row['repairs']}",
                f"{lost_share(row):.2f}",
                f"{row['lines']}",
            )
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def lost_share(row: dict[str, Any]) -> float:
    """Returns what an interruption cost, steps made again and starts included, as a share of the ideal."""
    return (row["wall"] - 1) / max(1, row["interruptions"])


def page(found: dict[str, Any]) -> str:
    """Returns the text of `interrupted.md`."""
    named = "\n".join(f"- {TITLES[name]}: {row['versions']}" for name, row in found["rows"].items())
    note = f" {found['note']}" if found["note"] else ""
    return f"""# Interrupted trainings

{found["date"]}, {found["machine"]}: {found["steps"]:,} steps of an MLP (1.6 MB of weights, dropout, Adam,
shuffled batches of 64), a save every {found["every"]} steps, a point of the log every 10 (Keras: each epoch), and one
schedule of {found["count"]} interruptions. Half are a SIGTERM with {GRACE_SECS:.0f} s of grace, half a `kill -9`; each
comes at a share of the steps, in a save, or between a restore and the next step.

{table(found["rows"])}

- The ideal is the mean of the same program left alone before and after. A start costs what its imports and
  compilations cost, so a short training makes wall / ideal large. Where the load (of the last minute, at
  the end of a row) differs, seconds do not compare.{note}
- A place that a framework has passed when it stops (Transformers trains on for three seconds after a SIGTERM, Orbax
  until JAX tells it) is hit at the first step of its next start. What is left at the end of the training is not
  delivered. So a row with fewer interruptions compares with the others only by what each one lost.
- A repair is what a person must do before a training starts again: here to remove a checkpoint that a `kill -9` has
  torn. The time that the person takes is not counted, only two starts that fail.
- Steps are counted when they are dispatched. Points are those that TensorBoard shows, or the lines of a CSV file.
- Lines are those that a person writes for the training, without network, step, data and imports.
- hookline and the loop by hand run the same step; Keras runs on JAX, the other two on PyTorch.

{named}
"""


def draw(rows: dict[str, dict[str, Any]], path: Path) -> None:
    """Draws what interruptions cost each framework as bars."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8, 2.6), sharey=True)
    names = [TITLES[name] for name in rows]
    parts = {
        "steps executed / steps needed": [row["executed"] for row in rows.values()],
        "time lost per interruption / left alone": [lost_share(row) for row in rows.values()],
    }
    for axis, (label, values) in zip(axes, parts.items(), strict=True):
        bars = axis.barh(names, values, color=["C0" if name == "hookline" else "0.7" for name in rows])
        axis.bar_label(bars, fmt="%.2f", padding=3)
        axis.set(xlabel=label)
        axis.margins(x=0.15)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].axvline(1, color="0.3", linewidth=0.8)
    axes[0].invert_yaxis()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def write(found: dict[str, Any], results: Path) -> None:
    """Writes the results as JSON, as a page and as a picture."""
    results.mkdir(parents=True, exist_ok=True)
    (results / "interrupted.json").write_text(json.dumps(found, indent=1) + "\n")
    (results / "interrupted.md").write_text(page(found))
    draw(found["rows"], results / "interrupted.svg")


def python_of(name: str) -> str:
    return sys.executable if name == "hookline" else str(ROOT / f".venv-interrupted-{name}" / "bin" / "python")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2500, help="a multiple of 250, an epoch")
    parser.add_argument("--every", type=int, default=100, help="steps from one save to the next")
    parser.add_argument("--count", type=int, default=20, help="how many interruptions")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--results", type=Path, help="where to write interrupted.json, .md and .svg")
    parser.add_argument("--note", default="", help="a sentence for the page, such as what else ran on the machine")
    args = parser.parse_args()
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    planned, rows = schedule(args.count), {}
    for name in args.only:
        python = python_of(name)
        if not os.access(python, os.X_OK):
            print(f"Left out: {name} has no environment, '{python}'. `make bench-interrupted` sets it up.")
            continue
        rows[name] = measure(name, python, args.steps, args.every, planned)
        rows[name]["load"] = os.getloadavg()[0]
        print(f"# {name}: {json.dumps(rows[name])}", flush=True)
        found = {
            "date": datetime.date.today().isoformat(),
            "machine": interleaved.machine()["machine"],
            "steps": args.steps,
            "every": args.every,
            "count": len(planned),
            "note": args.note,
            "schedule": [dataclasses.asdict(each) for each in planned],
            "rows": rows,
        }
        # After each framework: half an hour is long.
        if args.results:
            write(found, args.results)
    print(table(rows))


if __name__ == "__main__":
    main()

"""The same small job by `train.Loop`, by hand with clu, by Keras on JAX and by Lightning: lines, and time a step.

Each program of `peers/` trains the same network on the same numbers, writes the loss to TensorBoard each 100 steps,
evaluates and saves at a cadence, keeps the best checkpoint, goes on from the newest, and ends where the loss is NaN.
They take turns, in processes of their own: a short and a long training, each evaluated and saved once, at its end. The
difference is what the further steps cost. On the clock that says something on a quiet machine only; CPU time is user
and system, all threads. Lines are those between `# begin` and `# end`: all but network, step, data and imports. The
peers need an environment of their own: `make compare`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

PROGRAMS = Path(__file__).parent / "peers"
ROOT = Path(__file__).parents[1]
NAMES = ("hookline", "clu", "keras", "lightning")
PACKAGES = ("jax", "flax", "optax", "clu", "keras", "tensorflow-cpu", "lightning", "torch")


def lines_of(name: str) -> int:
    """Returns how many lines of a program are about the training."""
    code = (PROGRAMS / f"by_{name}.py").read_text(encoding="utf-8").partition("# begin")[2].partition("# end")[0]
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in code.splitlines())


def measure(python: str, name: str, steps: int) -> tuple[float, float, float]:
    """Runs a program; returns its best accuracy, and its seconds: on the clock, and of the CPU."""
    # The network is too small for more threads than one, and threads that wait for each other would be timed instead.
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    with tempfile.TemporaryDirectory() as logdir:
        command = [python, str(PROGRAMS / f"by_{name}.py"), logdir, str(steps), str(steps)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{name} failed:\n{done.stderr[-2000:]}")
    accuracy, secs, cpu_secs = map(float, done.stdout.splitlines()[-1].split())
    return accuracy, secs, cpu_secs


def versions(python: str) -> str:
    code = f"import importlib.metadata as m; print(*[p + ' ' + m.version(p) for p in {PACKAGES}], sep=', ')"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=os.environ.get("PEERS_PYTHON", ".venv-peers/bin/python"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, nargs=2, default=(1024, 5120), metavar=("SHORT", "LONG"))
    args = parser.parse_args()
    if not os.access(args.python, os.X_OK):
        print(f"Skipped: the peers have no environment, '{args.python}'. `make .venv-peers/bin/python` sets it up.")
        return
    short, long = args.steps
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in NAMES}
    for number in range(args.rounds):
        for name in (*NAMES[number % 4 :], *NAMES[: number % 4]):
            less, more = measure(args.python, name, short), measure(args.python, name, long)
            clock, cpu = ((more[at] - less[at]) / (long - short) * 1e6 for at in (1, 2))
            found[name].append((clock, cpu, more[0]))
            print(f"# round {number + 1}: {name:10} {clock:8.0f} us/step, CPU {cpu:8.0f}", flush=True)
    print(versions(args.python))
    print(f"{'':12}{'lines':>6}{'us/step':>10}{'CPU us/step':>13}{'accuracy':>10}")
    for name, rounds in found.items():
        clock, cpu, accuracy = (statistics.median(each) for each in zip(*rounds, strict=True))
        print(f"{name:12}{lines_of(name):6}{clock:10.0f}{cpu:13.0f}{accuracy:10.3f}")


if __name__ == "__main__":
    main()

"""A step of scripts in TF 1.x's manner: `hookline_tf1` against TensorFlow itself, in turns.

    [TF_PYTHON=python] PYTHONPATH=benchmarks python tf1/benchmarks/tf1_scripts.py [rounds]

Both live in processes of their own. What they compile in the first round does not count.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import in_processes
import interleaved

STEP = str(Path(__file__).with_name("tf1_step.py"))
KINDS = {
    "linear": "linear regression, fed",
    "mlp": "MLP 784-128-128-10 with Adam, fed",
    "monitored": "MLP 32-64-1 in a MonitoredTrainingSession: summaries, steps/s, checkpoints, log, NaN check",
}


def main(rounds: int) -> None:
    python = os.environ.get("TF_PYTHON", ".venv-tf/bin/python")
    if not os.access(python, os.X_OK):
        sys.exit(f"There is no TensorFlow: {python} is missing. `make bench-peers` makes it, or TF_PYTHON names one.")
    print("| a batch of 64 | TensorFlow, µs | hookline, µs | TensorFlow / hookline |\n|---|---:|---:|---:|")
    for kind, name in KINDS.items():
        with contextlib.ExitStack() as stack:
            systems = {"hookline_tf1": sys.executable, "tensorflow.compat.v1": python}
            peers = {module: in_processes.Peer(of, STEP, module, kind) for module, of in systems.items()}
            for peer in peers.values():
                stack.callback(peer.close)
            runs = {module: peer.run for module, peer in peers.items()}
            rows = interleaved.measure(runs, rounds=rounds, steps=200, references=("hookline_tf1",))
        ours, theirs = (f"{rows[module].micros:.0f} ± {rows[module].spread:.0f}" for module in systems)
        ratio = rows["tensorflow.compat.v1"].ratios["hookline_tf1"]
        print(f"| {name} | {theirs} | {ours} | {ratio:.1f} |")
    about = interleaved.machine()
    print(f"\n{about['date']}, {about['machine']}, Python {about['python']}, JAX {about['jax']}, load {about['load']}.")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 31)

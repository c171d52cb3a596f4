"""Plays whole scripts on TensorFlow and on hookline, compares what they did, and prints a table.

TF_PYTHON=.venv-tf215/bin/python python -m tf1.conformance.whole_scripts [--untimed] [SCRIPT ...]
"""

from __future__ import annotations

import argparse
import sys

from tf1.conformance.whole_scripts import compare, runs


def main() -> int:
    """Returns the exit status: 0 if every script did the same on both."""
    parser = argparse.ArgumentParser(description="Plays scripts on TensorFlow and on hookline.")
    parser.add_argument("scripts", nargs="*", help="names, such as gan; by default all")
    parser.add_argument("--untimed", action="store_true", help="play each once, without measuring the time")
    asked = parser.parse_args()
    found = sorted(path for path in runs.SCRIPTS.glob("*.py") if not asked.scripts or path.stem in asked.scripts)
    print(compare.HEAD, flush=True)
    wrong = {}
    for script in found:
        result = compare.played(script, timed=not asked.untimed)
        print(result.row, flush=True)
        wrong[script.stem] = result.faults
    for name, faults in wrong.items():
        for fault in faults:
            print(f"{name}: {fault}")
    print(f"{sum(not faults for faults in wrong.values())} of {len(wrong)} scripts do the same on both.")
    return int(any(wrong.values()))


if __name__ == "__main__":
    sys.exit(main())

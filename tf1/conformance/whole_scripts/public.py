"""Plays public scripts of TF 1.x on both systems, and prints a table. They are fetched elsewhere, and not kept.

TF_PYTHON=... TF115_PYTHON=... EXTRA_PATH=... python -m tf1.conformance.whole_scripts.public FOLDER [WORD ...]

FOLDER holds a folder OWNER+NAME for each project. EXTRA_PATH is one with the libraries that the scripts import, such as
matplotlib and scikit-learn, for the interpreters. TF115_PYTHON has TensorFlow 1.15, for scripts with `tf.contrib`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from tf1.conformance.whole_scripts import compare, mnist, runs
from tf1.conformance.whole_scripts.public_scripts import SCRIPTS, Public

STEPS = 100
"""Over how many steps the losses must agree."""
TOLERANCE = 1e-3
DIFFER = "no: they differ"


def main() -> int:
    """Prints the table; returns the exit status: 0 if at least ten scripts agree."""
    parser = argparse.ArgumentParser(description="Plays public scripts on TensorFlow and on hookline.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("words", nargs="*", help="parts of projects and paths")
    asked = parser.parse_args()
    mnist.make(runs.BUILD / "mnist")
    print("| project | script | steps | off by | TensorFlow | hookline | the same |\n|---|---|---|---|---|---|---|")
    agreed = 0
    for script in SCRIPTS:
        if not asked.words or any(word in f"{script.project}/{script.path}" for word in asked.words):
            agreed += play(asked.folder, script)
    print(f"\n{agreed} agree over {STEPS} steps.")
    return int(agreed < 10)


def play(folder: Path, script: Public) -> bool:
    """Plays a script on both, prints its row, and returns whether the losses agree."""
    project = folder / script.project.replace("/", "+")
    given: dict[str, Any] = {"project": project, "arguments": script.arguments, "data": script.data}
    given.update(limit=STEPS + 20, secs=script.secs, peer=script.peer)
    records = [runs.play(system, project / script.path, **given) for system in ("tensorflow", "hookline")]
    steps, off, said = judged(*records)
    if said == DIFFER:
        again = runs.play("tensorflow", project / script.path, options={"TF_ENABLE_ONEDNN_OPTS": "0"}, **given)
        said += f"; TensorFlow without oneDNN is off by {judged(records[0], again)[1]}"
    seconds = [f"{record['secs']:.1f} s" if "secs" in record else "-" for record in records]
    print(f"| {script.project} | {script.path} | {steps} | {off} | {' | '.join(seconds)} | {said} |", flush=True)
    return said == "yes"


def judged(theirs: dict, ours: dict) -> tuple[int, str, str]:
    """Returns how many steps both made, how far the losses are apart, and what to say of it."""
    for system, record in (("TensorFlow", theirs), ("hookline", ours)):
        if record.get("error") and len(record.get("runs", ())) < STEPS:
            return len(record.get("runs", ())), "-", f"no: {system}: {compare.last_line(record['error'])}"
    steps = min(len(theirs["runs"]), len(ours["runs"]))
    pairs = list(zip(theirs["runs"][:steps], ours["runs"][:steps], strict=True))
    if any(len(one) != len(other) for one, other in pairs):
        return steps, "-", "no: runs return different numbers of values"
    one, other = (np.array([number for pair in pairs for number in pair[side]]) for side in (0, 1))
    with np.errstate(invalid="ignore"):
        distances = np.abs(one - other) / np.maximum(np.abs(one), 1)
    off = float(np.where((one == other) | (np.isnan(one) & np.isnan(other)), 0, distances).max(initial=0))
    verdict = DIFFER if not off <= TOLERANCE else "yes" if steps >= STEPS else "no: fewer steps"
    return steps, f"{off:.0e}", verdict


if __name__ == "__main__":
    sys.exit(main())

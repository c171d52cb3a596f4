"""Plays public scripts of TF 1.x on both systems, and prints a table. They are fetched elsewhere, and not kept.

TF_PYTHON=.venv-tf215/bin/python EXTRA_PATH=... python -m conformance.v1.public FOLDER [WORD ...]

FOLDER holds a folder OWNER+NAME for each project. EXTRA_PATH is one with the libraries that the scripts import, such as
matplotlib and scikit-learn, for both interpreters.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from conformance.v1 import compare, mnist, runs

STEPS = 100
"""Over how many steps the losses must agree."""
TOLERANCE = 1e-3


class Public(NamedTuple):
    """A script: its project, its path, what is said on its command line, and where it looks for MNIST."""

    project: str
    path: str
    arguments: tuple[str, ...] = ()
    mnist_in: str | None = None


SCRIPTS = [
    Public("AYLIEN/gan-intro", "gan.py", ("--log-every=1",)),
    Public("wiseodd/generative-models", "GAN/vanilla_gan/gan_tensorflow.py"),
    Public("wiseodd/generative-models", "VAE/vanilla_vae/vae_tensorflow.py"),
    Public("MorvanZhou/Tensorflow-Tutorial", "tutorial-contents/302_simple_classification.py"),
    Public("MorvanZhou/Tensorflow-Tutorial", "tutorial-contents/406_GAN.py"),
    Public("aymericdamien/TensorFlow-Examples", "tensorflow_v1/examples/2_BasicModels/logistic_regression.py"),
    Public("aymericdamien/TensorFlow-Examples", "tensorflow_v1/examples/3_NeuralNetworks/gan.py"),
    Public("golbin/TensorFlow-Tutorials", "09 - GAN/02 - GAN2.py"),
    Public("golbin/TensorFlow-Tutorials", "08 - Autoencoder/01 - Autoencoder.py"),
    Public("hunkim/DeepLearningZeroToAll", "lab-09-4-xor_tensorboard.py"),
    Public("hunkim/DeepLearningZeroToAll", "lab-11-5-mnist_cnn_ensemble_layers.py"),
    Public("pkmital/tensorflow_tutorials", "python/11_variational_autoencoder.py"),
    Public("princewen/tensorflow_practice", "GAN/GAN.py"),
    Public("ChenglongChen/tensorflow-DeepFM", "example/main.py"),
    Public("dennybritz/cnn-text-classification-tf", "train.py"),
]


def main() -> int:
    """Prints the table; returns the exit status: 0 if at least eight scripts agree."""
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
    return int(agreed < 8)


def play(folder: Path, script: Public) -> bool:
    """Plays a script on both, prints its row, and returns whether the losses agree."""
    project = folder / script.project.replace("/", "+")
    given = {"arguments": script.arguments, "mnist_in": script.mnist_in, "limit": STEPS + 20}
    records = [
        runs.play(system, project / script.path, project=project, **given) for system in ("tensorflow", "hookline")
    ]
    steps, off, said = judged(*records)
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
    off = float((np.abs(one - other) / np.maximum(np.abs(one), 1)).max(initial=0))
    verdict = "no: they differ" if not off <= TOLERANCE else "yes" if steps >= STEPS else "no: fewer steps"
    return steps, f"{off:.0e}", verdict


if __name__ == "__main__":
    sys.exit(main())

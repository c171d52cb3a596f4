"""The job that every program of this folder does: which of ten classes 64 numbers belong to. No framework in it."""

from __future__ import annotations

import argparse
import os
import time

import numpy as np

BATCH, WIDTH, RATE = 64, 128, 1e-3


def data():
    """Returns examples and labels, for training and for evaluation."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(10, 64))
    labels = rng.integers(0, 10, 33792)
    x = (centres[labels] + 3 * rng.normal(size=(33792, 64))).astype("float32")
    y = labels.astype("int64")
    return x[:32768], y[:32768], x[32768:], y[32768:]


def main(train):
    """Runs `train(logdir, steps, every)`; prints what it returns, the best accuracy, and its time after the imports.

    Every so many steps it evaluates and saves.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("logdir")
    parser.add_argument("steps", type=int)
    parser.add_argument("every", type=int)
    args = parser.parse_args()
    start, cpu = time.perf_counter(), sum(os.times()[:4])
    accuracy = train(args.logdir, args.steps, args.every)
    print(f"{accuracy:.4f} {time.perf_counter() - start:.4f} {sum(os.times()[:4]) - cpu:.4f}")

"""Handwritten digits in the files of MNIST: scikit-learn's small ones, made larger."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

SIZES = {"train": 60000, "t10k": 10000}


def make(folder: Path) -> None:
    """Writes the four files into a folder, if they are not there."""
    if (folder / "t10k-labels-idx1-ubyte.gz").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    digits, rng = load_digits(), np.random.RandomState(0)
    large = np.pad(np.kron(digits.images, np.ones((1, 3, 3))) * 15.9, ((0, 0), (4, 4), (4, 4))).astype(np.uint8)
    split = {"train": np.arange(300, len(large)), "t10k": np.arange(300)}
    for kind, size in SIZES.items():
        chosen, moved = rng.choice(split[kind], size), rng.randint(0, 5, (size, 2))
        pixels = np.stack([large[i, y : y + 28, x : x + 28] for i, (y, x) in zip(chosen, moved, strict=True)])
        labels = digits.target[chosen].astype(np.uint8)
        _write(folder / f"{kind}-images-idx3-ubyte.gz", struct.pack(">4i", 2051, size, 28, 28), pixels)
        _write(folder / f"{kind}-labels-idx1-ubyte.gz", struct.pack(">2i", 2049, size), labels)


def _write(path: Path, header: bytes, content: np.ndarray) -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(header + content.tobytes())

"""The data that public scripts look for, made in its original format."""

from __future__ import annotations

import gzip
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from tf1.conformance.whole_scripts.runs import BUILD

Put = Callable[[Path], None]
"""Puts data into the folder of a script."""

_WORDS = 9000
_TUTORIAL_WORDS = ["five", "of", "going", "hardware", "american", "britain"]


def mnist_in(folder: str, *, packed: bool = True) -> Put:
    """Returns what puts the files of MNIST into a folder beside a script."""

    def put(beside: Path) -> None:
        shutil.copytree(BUILD / "mnist", beside / folder, dirs_exist_ok=True)
        for path in () if packed else list((beside / folder).glob("*.gz")):
            path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))

    return put


def cifar10_in(folder: str) -> Put:
    """Returns what puts the files of CIFAR-10 for Python into a folder: digits in colours, with noise."""

    def put(beside: Path) -> None:
        (beside / folder).mkdir(parents=True, exist_ok=True)
        digits, random = load_digits(), np.random.RandomState(0)
        large = np.kron(digits.images, np.ones((1, 4, 4)))[:, None]
        for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
            chosen = random.choice(len(large), 2000)
            images = large[chosen] * random.uniform(8, 14, (2000, 3, 1, 1)) + random.uniform(0, 30, (2000, 3, 32, 32))
            batch = {"data": images.astype(np.uint8).reshape(2000, 3072), "labels": digits.target[chosen].tolist()}
            (beside / folder / name).write_bytes(pickle.dumps(batch, protocol=2))
        names = {"label_names": [f"digit {number}" for number in range(10)], "num_vis": 3072}
        (beside / folder / "batches.meta").write_bytes(pickle.dumps(names, protocol=2))

    return put


def digits_csv(beside: Path) -> None:
    """Puts Kaggle's file of digits into the folder `large_files` above a script: a label and 784 pixels a line."""
    digits, random = load_digits(), np.random.RandomState(0)
    chosen = random.choice(len(digits.images), 4000)
    images = np.pad(np.kron(digits.images[chosen], np.ones((3, 3))) * 15, ((0, 0), (2, 2), (2, 2)))
    rows = np.hstack([digits.target[chosen][:, None], images.reshape(4000, 784)]).astype(int)
    folder = beside.parent / "large_files"
    folder.mkdir(exist_ok=True)
    names = ",".join(["label", *(f"pixel{number}" for number in range(784))])
    np.savetxt(folder / "train.csv", rows, fmt="%d", delimiter=",", header=names, comments="")


def ratings_in(path: str, users: int, items: int, count: int) -> Put:
    """Returns what writes a file of MovieLens: lines of a user, an item, a rating and a time."""

    def put(beside: Path) -> None:
        (beside / path).parent.mkdir(parents=True, exist_ok=True)
        random = np.random.RandomState(0)
        # Each of them at least once: scripts count them.
        user = np.concatenate([np.arange(users), np.zeros(items, int), random.randint(users, size=count)]) + 1
        item = np.concatenate([np.zeros(users, int), np.arange(items), random.randint(items, size=count)]) + 1
        liking = 3 + np.sin(0.7 * user) + np.cos(1.3 * item) + random.normal(scale=0.5, size=len(user))
        rows = np.stack([user, item, np.clip(np.round(liking), 1, 5).astype(int), np.arange(len(user))], axis=1)
        np.savetxt(beside / path, rows, fmt="%d", delimiter="\t")

    return put


def words_in(path: str) -> Put:
    """Returns what writes `text8.zip`: 400,000 words of which each is as frequent as Zipf's law says."""

    def put(beside: Path) -> None:
        (beside / path).parent.mkdir(parents=True, exist_ok=True)
        random = np.random.RandomState(0)
        words = ["".join(map(chr, random.randint(97, 123, size=random.randint(2, 8)))) for _ in range(_WORDS)]
        words[5 : 5 + len(_TUTORIAL_WORDS)] = _TUTORIAL_WORDS
        odds = 1 / np.arange(1, _WORDS + 1)
        text = " ".join(words[place] for place in random.choice(_WORDS, 400_000, p=odds / odds.sum()))
        with zipfile.ZipFile(beside / path, "w") as archive:
            archive.writestr("text8", text)

    return put


def births(beside: Path) -> None:
    """Puts a table of births and lengths of life in 190 countries into the folder `data` beside a script."""
    (beside / "data").mkdir(exist_ok=True)
    random = np.random.RandomState(0)
    rates = random.uniform(1.2, 7, 190)
    lines = [f"C{n}\t{rate:.3f}\t{82 - 5 * rate + random.normal():.4f}" for n, rate in enumerate(rates)]
    (beside / "data" / "birth_life_2010.txt").write_text("Country\tBirth rate\tLife expectancy\n" + "\n".join(lines))


def gym_beside(beside: Path) -> None:
    """Puts a stand-in for Gym beside a script."""
    shutil.copy(Path(__file__).with_name("stand_ins") / "gym.py", beside)

"""Pictures of digits, drawn and smudged with a fixed seed: the same bits for both scripts, and nothing to download."""

import itertools

import numpy as np

GLYPHS = """
.###. ..#.. .###. ####. #..#. ##### .###. ##### .###. .###.
#...# .##.. #...# ....# #..#. #.... #.... ....# #...# #...#
#..## ..#.. ....# ....# #..#. ####. ####. ...#. .###. #...#
#.#.# ..#.. ..##. .###. ##### ....# #...# ..#.. #...# .####
##..# ..#.. .#... ....# ...#. ....# #...# .#... #...# ....#
#...# ..#.. #.... ....# ...#. #...# #...# .#... #...# ....#
.###. .###. ##### ####. ...#. .###. .###. .#... .###. .###.
"""


def load():
    """Returns images of 12 x 12 between 0 and 1 and their labels, each for training and for testing."""
    rng = np.random.RandomState(0)
    rows = [row.split() for row in GLYPHS.split("\n") if row]
    glyphs = [np.array([[mark == "#" for mark in row[digit]] for row in rows]) for digit in range(10)]
    labels = rng.randint(0, 10, 1200).astype("int32")
    images = np.zeros((1200, 12, 12), "float32")
    for image, label in zip(images, labels, strict=True):
        top, left = rng.randint(1, 5), rng.randint(2, 6)
        image[top : top + 7, left : left + 5] = glyphs[label]
    images = np.clip(images * 0.8 + rng.normal(0.0, 0.2, images.shape), 0.0, 1.0).astype("float32")
    return images[:1000], labels[:1000], images[1000:], labels[1000:]


def batches(images, labels, size=50):
    """Yields batches for ever, each epoch in an order of its own."""
    for epoch in itertools.count():
        order = np.random.RandomState(epoch).permutation(len(images))
        for chosen in order.reshape(-1, size):
            yield images[chosen], labels[chosen]

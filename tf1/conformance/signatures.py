"""The signatures that TensorFlow has for the symbols of hookline_tf1.

.venv-tf/bin/python tf1/conformance/signatures.py > tf1/tests/signatures.txt
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

_PAGE = Path(__file__).parents[1] / "docs" / "tf1-symbols.md"


def names() -> list[str]:
    """Returns the symbols of the page of all symbols, without those of `tf.contrib`, which TensorFlow 2 has not."""
    found = re.findall(r"^\| `tf\.([\w.]+)` \|", _PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return sorted({name for name in found if not name.startswith("contrib.")})


def lines() -> Iterator[str]:
    """Yields a line for each function and class: its name, and the parameters that may be given by place."""
    import tensorflow.compat.v1 as tf
    from tensorflow.python.util import tf_inspect

    for name in names():
        value = tf
        for part in name.split("."):
            value = getattr(value, part, None)
        if not callable(value):
            continue
        made = value.__init__ if inspect.isclass(value) else value
        try:
            given = tf_inspect.getfullargspec(made).args
        except TypeError:
            continue
        yield f"{name}({', '.join(each for each in given if each != 'self')})"


if __name__ == "__main__":
    print("\n".join(lines()))

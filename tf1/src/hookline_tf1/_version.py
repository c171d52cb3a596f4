"""The version of this distribution: that of hookline, which it needs. `tf.__version__` is TensorFlow's."""

import hookline

VERSION = "0.1.0"


def check() -> None:
    """Refuses any other hookline: half of an update would fail somewhere else.

    Raises:
        ImportError: There is another one.
    """
    if hookline.__version__ != VERSION:
        raise ImportError(
            f"hookline_tf1 {VERSION} needs hookline {VERSION}, and found {hookline.__version__}: install both of one "
            f"version. In a clone: pip install . ./tf1"
        )


check()

"""The version of this distribution, which must equal hookline's. `tf.__version__` is TensorFlow's."""

import hookline

VERSION = "0.1.0"


def check() -> None:
    """Refuses another version of hookline: after half of an update, errors would appear elsewhere.

    Raises:
        ImportError: hookline has another version.
    """
    if hookline.__version__ != VERSION:
        raise ImportError(
            f"hookline_tf1 {VERSION} needs hookline {VERSION}, and found {hookline.__version__}: install both of one "
            f"version. In a clone: pip install . ./tf1"
        )


check()

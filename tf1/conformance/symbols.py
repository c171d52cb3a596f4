"""The table of all symbols of hookline_tf1, made from the code.

python -m tf1.conformance.symbols > tf1/docs/tf1-symbols.md
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from typing import Any

import jax
import optax

import hookline_tf1 as tf
from hookline_tf1._machinery.dtypes import DType

HEAD = """# What hookline_tf1 has

Every symbol of TF 1.x that `import hookline_tf1 as tf` has, made from the code by
`python -m tf1.conformance.symbols`. Any other is an `AttributeError` that names the nearest thing.
[coming-from-tf1.md](coming-from-tf1.md) says how to use it, and what behaves otherwise.

Where a function is one to one, the last column names the function below. `...` stands for further arguments, and a last
column without a word for what its name says.
"""

NAMESPACES = (
    "", "nn", "layers", "losses", "metrics", "train", "summary", "data", "image", "random", "initializers", "linalg",
    "strings", "sparse", "io", "app", "flags", "gfile", "logging", "python_io", "test", "estimator", "errors",
    "distributions", "contrib.layers", "contrib.framework", "contrib.losses", "contrib.metrics",
    "contrib.distributions", "contrib.opt", "contrib.seq2seq", "contrib.slim", "contrib.slim.learning",
    "contrib.slim.utils", "contrib.data",
)  # fmt: skip
_LIBRARIES = {"jax.numpy": jax.numpy, "jax.nn": jax.nn, "jax.lax": jax.lax, "jax.random": jax.random, "optax": optax}
_WIDTH = 60


def page() -> str:
    """Returns the page."""
    parts, count = [HEAD], 0
    for name in NAMESPACES:
        place = _place(name)
        if place is None:
            continue
        full = f"tf.{name}".rstrip(".")
        lines = [f"| `{full}.{symbol}` | {_arguments(value)} | {_below(symbol, value, place)} |"
                 for symbol, value in _symbols(place)]  # fmt: skip
        count += len(lines)
        parts.append(f"## {full}\n\n| symbol | arguments | what it is |\n|---|---|---|\n" + "\n".join(lines) + "\n")
    parts.insert(1, f"{count} symbols.\n")
    return "\n".join(parts)


def _place(name: str) -> Any:
    place: Any = tf
    for part in filter(None, name.split(".")):
        place = vars(place).get(part)
        if place is None:
            return None
    return place


def _symbols(place: Any) -> Iterator[tuple[str, Any]]:
    """Yields the names of a namespace and what they are, without what is a namespace itself."""
    names = dir(place) if place is tf else getattr(place, "PUBLIC", None) or getattr(place, "__all__", None)
    for name in sorted(names or (), key=lambda name: (name.lower(), name)):
        value = getattr(place, name)
        if not isinstance(value, types.ModuleType) and not name.startswith("_"):
            yield name, value


def _arguments(value: Any) -> str:
    if isinstance(value, type) and issubclass(value, BaseException):
        return ""
    try:
        names = list(inspect.signature(value).parameters.values())
    except (TypeError, ValueError):
        return ""
    shown = [str(p).split(":")[0].split("=")[0].strip() for p in names]
    text = ", ".join(shown)
    while len(text) > _WIDTH:
        shown.pop()
        text = ", ".join([*shown, "..."])
    return f"`{text}`" if text else ""


def _below(name: str, value: Any, place: Any) -> str:
    """Returns the function below, or else the first sentence of what its documentation says."""
    if isinstance(value, DType):
        return "a dtype"
    if isinstance(value, bool | int | float | str):
        return f"`{value!r}`"
    fn = getattr(value, "computed_by", None)
    if fn is not None and value.__name__ == name and place in (tf, tf.nn):
        for library, module in _LIBRARIES.items():
            if getattr(module, getattr(fn, "__name__", ""), None) is fn:
                return f"`{library}.{fn.__name__}`"
    lines = (inspect.getdoc(value) or "").strip().splitlines() if callable(value) else []
    first = lines[0] if lines else ""
    return "" if first.startswith("`tf.") and first.endswith("`.") else first.replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")

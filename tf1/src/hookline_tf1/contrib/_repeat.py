"""Chains layers: `slim.repeat` and `slim.stack`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hookline_tf1._tf.variable_scopes import variable_scope


def repeat(inputs: Any, repetitions: int, layer: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a layer several times, each time with the previous outputs, in numbered scopes.

    References:
        `tf.contrib.layers.repeat`.
    """
    return _chained("Repeat", "repeat", inputs, layer, [args] * repetitions, kwargs)


def stack(inputs: Any, layer: Callable[..., Any], stack_args: Sequence[Any], **kwargs: Any) -> Any:
    """Calls a layer once for each item of arguments, each time with the previous outputs.

    References:
        `tf.contrib.layers.stack`.
    """
    each = [args if isinstance(args, list | tuple) else [args] for args in stack_args]
    return _chained("Stack", "stack", inputs, layer, each, kwargs)


def _chained(label: str, name: str, inputs: Any, layer: Any, each: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    scope = kwargs.pop("scope", None)
    with variable_scope(scope, label, [inputs]):
        named = getattr(layer, "func", layer)  # The function of a `functools.partial`.
        scope = getattr(named, "__name__", name) if scope is None else scope
        for i, args in enumerate(each, 1):
            inputs = layer(inputs, *args, **kwargs, scope=f"{scope}_{i}")
        return inputs

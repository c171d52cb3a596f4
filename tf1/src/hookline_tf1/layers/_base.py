"""The base of `tf.layers`: a layer creates its variables in the first call, in its own variable scope."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

from hookline import Tensor
from hookline_tf1._machinery.graphs import GraphKeys, get_default_graph
from hookline_tf1._machinery.nodes import convert_to_tensor, op
from hookline_tf1._rules.tensor_shape import TensorShape
from hookline_tf1._tf.variable_scopes import VariableScope, get_variable, variable_scope
from hookline_tf1.initializers import ones_initializer, zeros_initializer

ZEROS, ONES = zeros_initializer(), ones_initializer()


class Layer:
    """A layer. A subclass defines `call(inputs)`, and `build(input_shape)` if it has variables.

    Args:
        trainable: Whether optimizers change its variables.
        name: Its name; by default its class's, numbered.
        dtype: The dtype of its variables; by default the dtype of the first input.
        activity_regularizer: Computes a loss from the outputs.
        **kwargs: `_scope` and `_reuse`, which the functions of `tf.layers` pass.

    References:
        `tf.layers.Layer`.
    """

    def __init__(
        self,
        trainable: bool = True,
        name: str | None = None,
        dtype: Any = None,
        activity_regularizer: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._given_scope = kwargs.pop("_scope", None)
        self._reuse = kwargs.pop("_reuse", None)
        kwargs.pop("input_shape", None)
        if kwargs:
            raise TypeError(f"{type(self).__name__} has no argument {next(iter(kwargs))!r}.")
        self.trainable, self.built, self.dtype = trainable, False, dtype
        self.activity_regularizer = activity_regularizer
        self._base_name = name or _snake_case(type(self).__name__)
        self._scope: VariableScope | None = None
        self._trained: list[Any] = []
        self._fixed: list[Any] = []
        self._losses: list[Any] = []
        self._updates: list[Any] = []

    @property
    def name(self) -> str:
        """The name: the last part of the scope, after the first call."""
        return self._base_name if self._scope is None else self._scope.name.rpartition("/")[2]

    @property
    def scope_name(self) -> str:
        """The name of the variable scope."""
        if self._scope is None:
            raise ValueError(f"The layer {self.name!r} has no scope before it is called.")
        return self._scope.name

    @property
    def graph(self) -> Any:
        """The graph of the layer."""
        return get_default_graph()

    @property
    def trainable_variables(self) -> list[Any]:
        """The trainable variables."""
        return list(self._trained) if self.trainable else []

    @property
    def non_trainable_variables(self) -> list[Any]:
        """The other variables."""
        return list(self._fixed) if self.trainable else [*self._trained, *self._fixed]

    @property
    def variables(self) -> list[Any]:
        """All variables."""
        return [*self._trained, *self._fixed]

    weights = variables
    trainable_weights, non_trainable_weights = trainable_variables, non_trainable_variables

    @property
    def losses(self) -> list[Any]:
        """The losses of the activity regularizer."""
        return list(self._losses)

    @property
    def updates(self) -> list[Any]:
        """The updates that a training step must run."""
        return list(self._updates)

    def count_params(self) -> int:
        """Counts the parameters."""
        return sum(variable.shape.num_elements() for variable in self.variables)

    def build(self, input_shape: Any) -> None:
        """Creates the variables."""
        self.built = True

    def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Computes the outputs."""
        return inputs

    def add_weight(
        self,
        name: str,
        shape: Sequence[int],
        dtype: Any = None,
        initializer: Any = None,
        regularizer: Any = None,
        trainable: bool = True,
        constraint: Any = None,
        **how: Any,
    ) -> Any:
        """Returns a variable of the layer, `<scope>/<name>`, new or shared."""
        variable = get_variable(
            name,
            shape,
            dtype or self.dtype,
            initializer,
            regularizer,
            trainable=trainable and self.trainable,
            constraint=constraint,
        )
        (self._trained if trainable else self._fixed).append(variable)
        return variable

    add_variable = add_weight

    def add_loss(self, losses: Any, inputs: Any = None) -> None:
        """Adds the layer's losses to the collection of regularization losses."""
        for loss in losses if isinstance(losses, list | tuple) else [losses]:
            self._losses.append(loss)
            get_default_graph().add_to_collection(GraphKeys.REGULARIZATION_LOSSES, loss)

    def add_update(self, updates: Any, inputs: Any = None) -> None:
        """Adds updates that a training step must run to the collection `UPDATE_OPS`."""
        for update in updates if isinstance(updates, list | tuple) else [updates]:
            self._updates.append(update)
            get_default_graph().add_to_collection(GraphKeys.UPDATE_OPS, update)

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Computes the outputs; the first call creates the variables."""
        inputs = _tensors(inputs)
        with self._open(kwargs.pop("scope", None)) as scope:
            self._scope = self._scope or scope
            if not self.built:
                first = inputs[0] if isinstance(inputs, list | tuple) else inputs
                if self.dtype is None and isinstance(first, Tensor) and first.dtype is not None:
                    self.dtype = first.dtype
                shapes = [tensor.shape for tensor in inputs] if isinstance(inputs, list | tuple) else inputs.shape
                self.build(shapes)
                self.built = True
            outputs = self.call(inputs, *args, **kwargs)
        if self.activity_regularizer is not None:
            # As in TensorFlow, the mean over the batch.
            loss = op(lambda loss, outputs: loss / outputs.shape[0], name="ActivityRegularizer")
            self.add_loss(loss(self.activity_regularizer(outputs), outputs))
        return outputs

    apply = __call__

    def _open(self, given: Any) -> Any:
        if self._scope is not None:
            return variable_scope(self._scope, reuse=True if self.built else None)
        name = given or self._given_scope
        if name is None and self._reuse:
            name = self._base_name
        return variable_scope(name, default_name=self._base_name, reuse=self._reuse)

    def compute_output_shape(self, input_shape: Any) -> TensorShape:
        """Is refused: the shape is not known before a call."""
        raise NotImplementedError(f"{type(self).__name__}.compute_output_shape: call the layer, and read the shape.")


def dimension(who: Layer, input_shape: TensorShape, axis: int) -> int:
    """Returns a dimension of the inputs, which must be known for a variable's shape."""
    size = None if input_shape.ndims is None else input_shape.as_list()[axis]
    if size is None:
        raise ValueError(
            f"{type(who).__name__} requires inputs whose dimension {axis} is known, got the shape {input_shape}: "
            f"set it with set_shape or tf.reshape."
        )
    return size


def functional(kind: type[Layer]) -> Callable[..., Any]:
    """Returns the function of `tf.layers` that creates a layer of this class and calls it.

    Its arguments are the inputs, the arguments of the class, and `reuse`.
    """
    own = list(inspect.signature(kind.__init__).parameters.values())[1:-1]
    inputs = inspect.Parameter("inputs", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    reuse = inspect.Parameter("reuse", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
    signature = inspect.Signature([inputs, *own, reuse])

    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        inputs, name, reuse = given.pop("inputs"), given.get("name"), given.pop("reuse", None)
        return kind(**given, _reuse=reuse, _scope=name)(inputs)

    call.__name__ = call.__qualname__ = _snake_case(kind.__name__)
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__doc__ = (
        f"Creates a `{kind.__name__}` and calls it.\n\n    References:\n        `tf.layers.{call.__name__}`.\n    "
    )
    return call


def activated(activation: Any, outputs: Any) -> Any:
    """Applies an activation function to outputs; a string names a function in `tf.nn`."""
    if activation is None:
        return outputs
    if isinstance(activation, str):
        from hookline_tf1 import nn

        activation = (lambda x: x) if activation == "linear" else getattr(nn, activation)
    return activation(outputs)


def _tensors(inputs: Any) -> Any:
    if isinstance(inputs, list | tuple) and any(isinstance(item, Tensor) for item in inputs):
        return [convert_to_tensor(item) for item in inputs]
    return convert_to_tensor(inputs)


def _snake_case(name: str) -> str:
    name = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower().lstrip("_")

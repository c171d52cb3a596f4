"""Names, scopes and collections."""

from __future__ import annotations

import threading
from typing import Any

from conformance.parts import raised
from conformance.scenario import Record, scenario
from conformance.system import System


@scenario("names.numbered")
def _(s: System) -> Record:
    """A taken name is numbered."""
    return {"names": [s.constant(1.0, name="x").op.name for _ in range(3)]}


@scenario("names.after_a_taken_number")
def _(s: System) -> Record:
    """A number that is taken is passed over."""
    return {"names": [s.constant(1.0, name=name).op.name for name in ("x_1", "x", "x", "x", "x_1", "x_2")]}


@scenario("names.case_does_not_count")
def _(s: System) -> Record:
    """Names that differ in case alone are numbered."""
    return {"names": [s.constant(1.0, name=name).op.name for name in ("X", "x", "x")]}


@scenario("names.defaults")
def _(s: System) -> Record:
    """What is not named is called by its kind."""
    made = [s.constant(1.0), s.constant(1.0), s.placeholder("float32", []), s.Variable(1.0), s.no_op(), s.group()]
    return {"names": [getattr(each, "op", each).name for each in made]}


@scenario("names.initializers")
def _(s: System) -> Record:
    """The initializers of all variables are called `init`."""
    s.Variable(1.0, name="x")
    return {"names": [s.global_variables_initializer().name for _ in range(2)]}


@scenario("names.scopes")
def _(s: System) -> Record:
    """Scopes nest; one that is opened again is numbered; None leaves them all."""
    names = []
    for _ in range(2):
        with s.name_scope("a"):
            names.append(s.constant(1.0, name="x").op.name)
            with s.name_scope("b") as inner:
                names += [s.constant(1.0, name="x").op.name, inner]
                with s.name_scope(None):
                    names.append(s.constant(1.0, name="x").op.name)
    return {"names": names}


@scenario("names.scope_entered_again")
def _(s: System) -> Record:
    """A scope that ends with a slash is entered again."""
    with s.name_scope("a") as scope:
        s.constant(1.0, name="x")
    with s.name_scope(scope):
        again = s.constant(1.0, name="y").op.name
    return {"scope": scope, "again": again}


@scenario("names.empty_scope")
def _(s: System) -> Record:
    """The empty scope leaves all scopes, as None does."""
    with s.name_scope("a"), s.name_scope("") as scope:
        return {"scope": scope, "name": s.constant(1.0, name="x").op.name}


@scenario("names.scope_and_operation_share_them")
def _(s: System) -> Record:
    """A scope may not take the name of an operation."""
    s.constant(1.0, name="a")
    with s.name_scope("a"):
        inside = s.constant(1.0, name="x").op.name
    return {"inside": inside, "after": s.constant(1.0, name="a").op.name}


@scenario("names.of_variables_in_a_scope")
def _(s: System) -> Record:
    """A variable takes the scope."""
    with s.name_scope("layer"):
        weight = s.Variable(1.0, name="weight")
        other = s.Variable(1.0, name="weight")
    return {"names": [weight.op.name, other.op.name], "tensor": weight.name}


@scenario("names.bad_ones")
def _(s: System) -> Record:
    """A name with other characters is a `ValueError`."""
    return {"errors": [raised(s.constant, 1.0, name=name) for name in ("a b", "a!", "-a", "a:0")]}


@scenario("names.bad_scopes")
def _(s: System) -> Record:
    """A scope with other characters is a `ValueError`."""

    def enter(name: str) -> None:
        with s.name_scope(name):
            pass

    return {"errors": [raised(enter, name) for name in ("a b", "a!", "a:0")]}


@scenario("names.looked_up")
def _(s: System) -> Record:
    """Operations and tensors are found by their names; what is not there is a `KeyError`."""
    x = s.constant(1.0, name="x")
    graph = s.get_default_graph()
    return {
        "tensor": graph.get_tensor_by_name("x:0") is x,
        "operation": graph.get_operation_by_name("x") is x.op,
        "element": graph.as_graph_element("x:0") is x,
        "no_tensor": raised(graph.get_tensor_by_name, "y:0"),
        "no_operation": raised(graph.get_operation_by_name, "y"),
        "no_output": raised(graph.get_tensor_by_name, "x"),
    }


@scenario("names.operations_in_order")
def _(s: System) -> Record:
    """The operations of a graph are listed in the order in which they were made."""
    for name in "bca":
        s.constant(1.0, name=name)
    return {"names": [op.name for op in s.get_default_graph().get_operations()]}


@scenario("collections.of_variables")
def _(s: System) -> Record:
    """Where a variable is collected."""
    s.Variable(1.0, name="a")
    s.Variable(1.0, name="b", trainable=False)
    s.Variable(1.0, name="c", trainable=False, collections=["mine"])
    s.Variable(1.0, name="d", collections=[s.GraphKeys.LOCAL_VARIABLES], trainable=False)
    return {
        key: [variable.op.name for variable in s.get_collection(key)]
        for key in ("variables", "trainable_variables", "local_variables", "mine")
    }


@scenario("collections.trainable_and_elsewhere")
def _(s: System) -> Record:
    """A trainable variable of other collections is in `TRAINABLE_VARIABLES` too."""
    s.Variable(1.0, name="a", collections=["mine"])
    return {
        "trainable": [variable.op.name for variable in s.trainable_variables()],
        "global": [variable.op.name for variable in s.global_variables()],
    }


@scenario("collections.are_copies")
def _(s: System) -> Record:
    """What is given is a copy; a collection that is not there is empty."""
    s.add_to_collection("mine", 1)
    s.get_collection("mine").append(2)
    return {"mine": s.get_collection("mine"), "other": s.get_collection("other")}


@scenario("collections.of_a_scope")
def _(s: System) -> Record:
    """A scope picks items by the beginning of their names."""
    s.Variable(1.0, name="outside")
    with s.name_scope("net"):
        s.Variable(1.0, name="inside")
    found = s.get_collection(s.GraphKeys.GLOBAL_VARIABLES, scope="net")
    return {"found": [variable.op.name for variable in found]}


@scenario("graph.default")
def _(s: System) -> Record:
    """The default graph is that of the innermost block; each thread has its own."""
    outer, inner = s.get_default_graph(), s.Graph()
    seen = []
    with inner.as_default():
        seen.append(s.get_default_graph() is inner)
        thread = threading.Thread(target=lambda: seen.append(s.get_default_graph() is inner))
        thread.start()
        thread.join()
    return {"seen": [*seen, s.get_default_graph() is outer]}


@scenario("graph.of_what_was_made")
def _(s: System) -> Record:
    """What is made belongs to the default graph; tensors of two graphs do not mix."""
    x = s.constant(1.0)
    with s.Graph().as_default():
        y = s.constant(1.0)
        mixed = raised(lambda: x + y)
    return {"graph": x.graph is s.get_default_graph(), "mixed": mixed}


@scenario("graph.finalized_by_hand")
def _(s: System) -> Record:
    """A finalized graph runs, and refuses additions of every kind."""
    x = s.constant(2.0, name="x")
    graph = s.get_default_graph()
    graph.finalize()
    with s.Session() as sess:
        value = sess.run(x)
    return {
        "value": value,
        "constant": raised(s.constant, 1.0),
        "operator": raised(lambda: x + 1.0),
        "variable": raised(s.Variable, 1.0),
        "placeholder": raised(s.placeholder, "float32", []),
    }


@scenario("graph.keys")
def _(s: System) -> Record:
    """The keys of collections have the same values."""
    keys = [
        "GLOBAL_VARIABLES",
        "LOCAL_VARIABLES",
        "TRAINABLE_VARIABLES",
        "MOVING_AVERAGE_VARIABLES",
        "SUMMARIES",
        "SUMMARY_OP",
        "GLOBAL_STEP",
        "SAVERS",
        "INIT_OP",
        "LOCAL_INIT_OP",
        "READY_OP",
        "READY_FOR_LOCAL_INIT_OP",
        "TRAIN_OP",
        "UPDATE_OPS",
        "LOSSES",
        "REGULARIZATION_LOSSES",
        "WEIGHTS",
        "BIASES",
        "ACTIVATIONS",
    ]
    return {key.lower(): getattr(s.GraphKeys, key) for key in keys}


@scenario("graph.tensor_is_no_bool")
def _(s: System) -> Record:
    """A tensor has no truth value while the graph is built, and cannot be iterated where its length is not known."""
    x = s.constant(1.0)

    def refused(call: Any) -> bool:
        try:
            call(x)
        except TypeError:
            return True
        return False

    return {"bool": refused(bool), "scalar": refused(list)}

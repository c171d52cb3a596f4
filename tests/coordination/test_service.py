"""How the loss of another process is recognised."""

# Errors that a session meets only where a process is lost.
from hookline.coordination import service


def test_search_for_a_cause_ends_in_a_cycle_of_errors():
    first, second = KeyError("a"), ValueError("b")
    first.__cause__, second.__context__ = second, first
    assert not service.is_connection_loss(first)
    second.args = ("[Gloo] Connection closed by peer",)
    assert service.is_connection_loss(first)

"""What shows that another process is gone."""

# Errors that a session meets only where a process is lost.
from hookline.coordination import service


def test_the_cause_of_an_error_is_looked_for_once_though_two_errors_name_each_other():
    first, second = KeyError("a"), ValueError("b")
    first.__cause__, second.__context__ = second, first
    assert not service.is_connection_loss(first)
    second.args = ("[Gloo] Connection closed by peer",)
    assert service.is_connection_loss(first)

from __future__ import annotations

import pytest

from hookline import host_op, op, placeholder
from hookline.errors import OutOfRangeError
from hookline.testing import RecordingHook
from hookline.train import FinalOpsHook


def test_final_values_have_the_requested_structure(model):
    hook = FinalOpsHook({"weight": model.weight, "step": "global_step:0"})
    assert hook.final_ops_values is None
    with model.session(hook) as session:
        session.run(model.train)
        session.run(model.train)
        assert hook.final_ops_values is None
    assert {key: float(value) for key, value in hook.final_ops_values.items()} == {"weight": 4.0, "step": 2.0}


def test_feed_applies_to_the_final_run(model):
    x = placeholder("float32", (), name="x")
    hook = FinalOpsHook(op(lambda x: x + 1)(x), {x: 41.0})
    with model.session(hook):
        pass
    assert float(hook.final_ops_values) == 42.0


def test_no_final_ops_is_fine(model):
    hook = FinalOpsHook(None)
    with model.session(hook):
        pass
    assert hook.final_ops_values is None


@pytest.mark.parametrize("error", [OutOfRangeError(None, None, "no batch left"), StopIteration()])
def test_end_of_input_is_raised_again_after_a_warning(model, caplog, error):
    def batch():
        raise error

    hook = FinalOpsHook(host_op(batch).node())
    session = model.session(hook)
    with pytest.raises((OutOfRangeError, StopIteration)):
        session.close()
    assert "final_ops read a batch" in caplog.text


def test_session_left_by_an_error_evaluates_nothing(model):
    hook = FinalOpsHook(model.weight)
    with pytest.raises(KeyError), model.session(hook):
        raise KeyError("body")
    assert hook.final_ops_values is None


def test_begin_clears_the_values_of_the_previous_session(model):
    hook = FinalOpsHook(model.weight)
    with model.session(hook):
        pass
    assert hook.final_ops_values is not None
    with model.session(hook, RecordingHook()):
        assert hook.final_ops_values is None

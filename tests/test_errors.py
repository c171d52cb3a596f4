from __future__ import annotations

import errno
import pickle
import re
import signal
import subprocess
import sys

import pytest
from jax.errors import JaxRuntimeError

from hookline import errors

STATUS_CLASSES = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.OpError)]
STATUS_CLASSES.remove(errors.OpError)


def status_name(kind: type[errors.OpError]) -> str:
    words = kind.__name__.removesuffix("Error")
    return "".join("_" + char if char.isupper() and i else char for i, char in enumerate(words)).upper()


def test_each_status_code_has_one_class():
    assert sorted(kind.error_code for kind in STATUS_CLASSES) == list(range(1, 17))


@pytest.mark.parametrize("kind", STATUS_CLASSES)
def test_error_keeps_its_arguments_and_prints_its_message(kind):
    error = kind("node", "op", "what to do")

    assert (error.node_def, error.op, error.message, str(error)) == ("node", "op", "what to do", "what to do")


@pytest.mark.parametrize("kind", STATUS_CLASSES)
def test_pickled_error_keeps_its_class_and_message(kind):
    copy = pickle.loads(pickle.dumps(kind(None, None, "gone")))

    assert (type(copy), copy.message) == (kind, "gone")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_preempted_process_ends_with_the_status_of_the_signal(number, status):
    error = pickle.loads(pickle.dumps(errors.Preempted(number)))

    assert (error.code, error.signal, str(error)) == (status, number, f"{number.name} has asked this process to end.")
    assert isinstance(error, SystemExit)
    assert not isinstance(error, errors.PREEMPTION_ERRORS)


@pytest.mark.parametrize("kind", STATUS_CLASSES)
def test_jax_runtime_error_becomes_the_class_of_its_status(kind):
    engine_error = JaxRuntimeError(f"{status_name(kind)}: the engine's words")

    mapped = errors.from_exception(engine_error)

    assert type(mapped) is kind
    assert str(mapped) == str(engine_error)
    assert mapped.__cause__ is engine_error


@pytest.mark.parametrize("text", ["", "no status here", "NEW_STATUS: from a later engine"])
def test_jax_runtime_error_without_a_known_status_is_unknown(text):
    assert type(errors.from_exception(JaxRuntimeError(text))) is errors.UnknownError


@pytest.mark.parametrize(
    "error", [ValueError("UNAVAILABLE: only looks like it"), KeyboardInterrupt(), errors.AbortedError(None, None, "x")]
)
def test_other_exception_is_returned_as_the_same_object(error):
    assert errors.from_exception(error) is error
    assert error.__cause__ is None


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, errors.ResourceExhaustedError),
        (errno.EMFILE, errors.ResourceExhaustedError),
        (errno.EROFS, errors.PermissionDeniedError),
        (errno.EEXIST, errors.AlreadyExistsError),
        (errno.ENOTDIR, errors.FailedPreconditionError),
        (errno.ENOENT, errors.NotFoundError),
        (errno.EIO, errors.UnknownError),
    ],
)
def test_os_error_becomes_the_class_of_its_errno(number, kind):
    mapped = errors.from_os_error(OSError(number, "said so"), "Saver could not write '/runs'")

    assert type(mapped) is kind
    assert str(mapped) == "Saver could not write '/runs': said so."


def test_preemption_and_end_of_input_are_the_documented_classes():
    assert set(errors.PREEMPTION_ERRORS) == {errors.AbortedError, errors.UnavailableError}
    assert set(errors.END_OF_INPUT) == {errors.OutOfRangeError, StopIteration}


def test_nan_loss_error_has_no_status():
    assert issubclass(errors.NanLossDuringTrainingError, RuntimeError)
    assert not issubclass(errors.NanLossDuringTrainingError, errors.OpError)


def test_class_tree_in_the_docstring_is_right():
    drawn = dict(re.findall(r"── (\w+) +(\d+)?", errors.__doc__))
    defined = {kind.__name__: str(kind.error_code) for kind in STATUS_CLASSES}

    assert drawn == defined | {
        "OpError": "",
        "RuntimeError": "",
        "NanLossDuringTrainingError": "",
        "Preempted": "",
        "Interrupted": "",
    }


def test_errors_module_does_not_load_jax():
    code = (
        "import sys, types; package = types.ModuleType('hookline'); package.__path__ = [sys.argv[1]];"
        "sys.modules['hookline'] = package; import hookline.errors; print('jax' in sys.modules)"
    )
    folder = errors.__file__.removesuffix("errors.py")
    answer = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True)

    assert answer.stdout == "False\n"


def test_error_without_a_message_prints():
    assert str(errors.AbortedError(None, None, None)) == ""
    assert "AbortedError" in repr(errors.AbortedError(None, None, None))

"""Flags, the main function, log levels and files, as scripts use them."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest
from absl import flags as absl_flags
from tests import python

from hookline import errors
from hookline_tf1 import app, flags, gfile
from hookline_tf1 import logging as tf_logging

SCRIPT = """
from hookline_tf1 import app, flags
flags.DEFINE_string("name", "nobody", "Who.")
flags.DEFINE_integer(flag_name="count", default_value=1, docstring="How many.")
flags.DEFINE_float("rate", 0.5, "How fast.")
flags.DEFINE_boolean("loud", False, "How.")
flags.DEFINE_enum("kind", "a", ["a", "b"], "Which.")
FLAGS = flags.FLAGS
def main(argv):
    print(FLAGS.name, FLAGS.count, FLAGS.rate, FLAGS.loud, FLAGS.kind, argv[1:])
"""


# Runs each script of a list, with its arguments, in a process of its own, which need not import again.
EACH = """
import json, os, sys
import hookline_tf1
for script, *arguments in json.loads(sys.argv[1]):
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0, script
    else:
        sys.argv[1:] = arguments
        exec(script, globals())
        sys.exit()
"""


SCRIPTS = [
    [SCRIPT + "app.run()", "--name=ann", "--count", "3", "--loud", "--kind=b", "rest", "--unknown=1"],
    [SCRIPT + "app.run(main)"],
    [SCRIPT + "print(FLAGS.count)", "--count=4"],
    [SCRIPT + "FLAGS._parse_flags(); print(FLAGS.count, sorted(FLAGS.__flags)[:2])", "--count=4"],
    [SCRIPT + "FLAGS.rate = 2.0; print(FLAGS.rate, 'rate' in FLAGS, FLAGS['rate'].value)"],
    [
        "from hookline_tf1 import app, flags; flags.DEFINE_string('log_dir', 'logs', 'Where to.')\n"
        "app.run(lambda argv: print(flags.FLAGS.log_dir))",
        "--log_dir=there",
    ],
]


@pytest.fixture(scope="module")
def said() -> list[str]:
    """Returns one line of each of the scripts."""
    return python.run("-c", EACH, json.dumps(SCRIPTS), check=True).stdout.splitlines()


def test_script_defines_flags_and_runs_its_main(said):
    assert said[:2] == ["ann 3 0.5 True b ['rest', '--unknown=1']", "nobody 1 0.5 False a []"]


def test_flags_are_parsed_at_the_first_read(said):
    count, parsed, rate = said[2:5]
    assert count == "4"
    assert parsed.startswith("4 ")
    assert rate == "2.0 True 2.0"


def test_duplicate_flag_is_refused():
    values = absl_flags.FLAGS
    flags.DEFINE_string("compat_twice", "", "Once.")
    try:
        with pytest.raises(flags.DuplicateFlagError, match="compat_twice"):
            flags.DEFINE_integer("compat_twice", 1, "Again.")
    finally:
        delattr(values, "compat_twice")


def test_one_verbosity_holds_for_the_script_and_for_hooks(caplog):
    before = logging.getLogger("hookline").level
    try:
        tf_logging.set_verbosity(tf_logging.INFO)
        tf_logging.info("step %d", 3)
        tf_logging.debug("hidden")
        logging.getLogger("hookline.hooks").info("loss")
        assert tf_logging.get_verbosity() == logging.INFO
        assert [record.getMessage() for record in caplog.records] == ["step 3", "loss"]
        assert caplog.records[0].filename == "test_app.py"
    finally:
        logging.getLogger("hookline").setLevel(before)


def test_log_first_n_and_every_n_count_messages(caplog):
    for number in range(5):
        tf_logging.log_every_n(tf_logging.ERROR, "every %d", 2, number)
        tf_logging.log_first_n(tf_logging.ERROR, "first %d", 2, number)
        tf_logging.log_if(tf_logging.ERROR, "if %d", number == 3, number)

    assert [record.getMessage() for record in caplog.records] == [
        "every 0", "first 0", "first 1", "every 2", "if 3", "every 4",
    ]  # fmt: skip


def test_messages_reach_stderr_without_setup():
    code = "from hookline_tf1 import logging; logging.set_verbosity(logging.INFO); logging.info('here')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)

    assert done.stderr == "INFO:hookline:here\n"


def test_gfile_functions_work(tmp_path):
    folder = f"{tmp_path}/a/b"
    gfile.MakeDirs(folder)
    gfile.MakeDirs(folder)
    with gfile.GFile(f"{folder}/x.txt", "w") as file:
        file.write("eins\nzwei\n")
    with gfile.Open(f"{folder}/x.txt") as file:
        assert file.readline() == "eins\n"
        assert file.size() == 10
    assert gfile.FastGFile(f"{folder}/x.txt", "rb").read() == b"eins\nzwei\n"
    assert [line.strip() for line in gfile.GFile(f"{folder}/x.txt")] == ["eins", "zwei"]
    gfile.Copy(f"{folder}/x.txt", f"{folder}/y.txt")
    with pytest.raises(errors.AlreadyExistsError, match="overwrite=True"):
        gfile.Copy(f"{folder}/x.txt", f"{folder}/y.txt")
    gfile.Rename(f"{folder}/y.txt", f"{folder}/z.txt")
    assert sorted(gfile.ListDirectory(folder)) == ["x.txt", "z.txt"]
    assert gfile.Glob(f"{folder}/*.txt") == [f"{folder}/x.txt", f"{folder}/z.txt"]
    assert gfile.Stat(f"{folder}/x.txt").length == 10
    gfile.Remove(f"{folder}/z.txt")
    assert [files for _, _, files in gfile.Walk(str(tmp_path))][-1] == ["x.txt"]
    gfile.DeleteRecursively(f"{tmp_path}/a")
    assert not gfile.Exists(folder)
    assert gfile.IsDirectory(str(tmp_path))


def test_missing_file_is_not_found(tmp_path):
    with pytest.raises(errors.NotFoundError, match=r"gfile could not open '.*none'"):
        gfile.GFile(f"{tmp_path}/none").read()
    with pytest.raises(errors.NotFoundError, match="remove"):
        gfile.DeleteRecursively(f"{tmp_path}/none")


def test_script_may_define_log_dir(said):
    assert said[5:] == ["there"]


def test_app_has_the_flags():
    assert app.flags.FLAGS is flags.FLAGS

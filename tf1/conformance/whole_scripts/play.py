"""Plays one script on one system, in a process of its own, and writes what it did.

python -m tf1.conformance.whole_scripts.play SYSTEM FOLDER SCRIPT RECORD [--as-it-is] [-- ARGUMENT ...]
"""

from __future__ import annotations

import argparse
import json
import random
import re
import runpy
import sys
import time
import traceback
from pathlib import Path

import numpy as np


def main():
    """Plays the script that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("system", choices=["tensorflow", "hookline"])
    parser.add_argument("source", type=Path, help="a folder, in whose scripts the import lines are replaced")
    parser.add_argument("script", type=Path)
    parser.add_argument("record", type=Path)
    parser.add_argument("--as-it-is", action="store_true", help="leave the system its own random numbers")
    parser.add_argument("--runs", type=int, help="end the script after so many runs that return numbers")
    parser.add_argument("arguments", nargs="*")
    asked = parser.parse_args()
    if asked.system == "tensorflow":
        from tf1.conformance.whole_scripts import on_tensorflow as system
    else:
        from tf1.conformance.whole_scripts import on_hookline as system
    recorder = system.prepare(random=not asked.as_it_is, limit=asked.runs)
    replace_imports(asked.source, system.IMPORTS)
    random.seed(0)
    np.random.seed(0)
    sys.argv = [str(asked.script), *asked.arguments]
    sys.path.insert(0, str(asked.script.parent))
    error, started = None, time.perf_counter()
    try:
        runpy.run_path(str(asked.script), run_name="__main__")
    except SystemExit as end:
        error = None if end.code in (None, 0) else f"exit {end.code}"
    except BaseException:
        error = traceback.format_exc()
    record = system.record(recorder)
    record.update(secs=time.perf_counter() - started, error=error)
    asked.record.write_text(json.dumps(record), encoding="utf-8")
    sys.stdout.flush()
    sys.stderr.flush()


def replace_imports(folder, rules):
    """Replaces, by a system's rules, the import lines of every script below a folder."""
    for path in folder.rglob("*.py"):
        text = replaced = path.read_text(encoding="utf-8", errors="surrogateescape")
        for pattern, line in rules.items():
            replaced = re.sub(pattern, line, replaced, flags=re.MULTILINE)
        if replaced != text:
            path.write_text(replaced, encoding="utf-8", errors="surrogateescape")


if __name__ == "__main__":
    main()

"""A whole training script, as it is on each system."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from conformance.scenario import Record, scenario
from conformance.system import System

_SCRIPTS = Path(__file__).parents[1] / "scripts"


@scenario("script.digits")
def _(s: System) -> Record:
    """A network on pictures of digits under a monitored session with hooks: each loss, and the accuracy."""
    script = _SCRIPTS / ("mnist_tf1.py" if s.name == "tensorflow" else "mnist_hookline.py")
    command = [sys.executable, str(script), "--logdir", os.path.join(s.folder, "run"), "--steps", "60"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    if done.returncode:
        return {"failed": done.stderr.splitlines()[-1]}
    return json.loads(done.stdout)

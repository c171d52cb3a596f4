"""Runs the `hookline` command as `python -m hookline.cli`."""

import sys

from hookline.cli.main import main

sys.exit(main())

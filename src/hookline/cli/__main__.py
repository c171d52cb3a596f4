"""`python -m hookline.cli` is the `hookline` command."""

import sys

from hookline.cli.main import main

sys.exit(main())

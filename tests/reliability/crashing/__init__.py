"""The parts of `crash.py`."""

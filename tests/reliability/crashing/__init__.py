"""The parts of `reliability.crash`."""

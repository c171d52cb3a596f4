"""Tests of `train.Loop` and what goes with it."""

"""Runs a plain JAX train step under a monitored session with hooks."""

from hookline.loop.evaluation.early_stopping import StopIfNoImprovement
from hookline.loop.evaluation.eval_result import EvalResult
from hookline.loop.evaluation.evaluate import Evaluate
from hookline.loop.load import load
from hookline.loop.loop import Loop
from hookline.loop.save_safetensors import save_safetensors
from hookline.loop.warm_start import WarmStart
from hookline.monitored.replaying.result import ReplayResult

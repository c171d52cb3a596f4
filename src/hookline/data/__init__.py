"""Data as tensors: iterators that prefetch, and whose positions checkpoints hold."""

from hookline.signals.interrupts import defer_sigint

with defer_sigint():
    from hookline.data.batches import Padded
    from hookline.data.from_arrays import from_arrays
    from hookline.data.iterator import iterator
    from hookline.data.per_process_mean import per_process_mean

__all__ = ["Padded", "from_arrays", "iterator", "per_process_mean"]

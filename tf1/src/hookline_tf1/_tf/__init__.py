"""The names that stand in `tf` itself, in files named as in TensorFlow, and how `tf` is put together."""

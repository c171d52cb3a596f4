"""The names in `tf` itself, in files named as in TensorFlow, and the assembly of `tf`."""

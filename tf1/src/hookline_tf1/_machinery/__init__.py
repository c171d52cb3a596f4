"""The machinery under TensorFlow's names: graphs, tensors, dtypes, operation definitions and migration hints."""

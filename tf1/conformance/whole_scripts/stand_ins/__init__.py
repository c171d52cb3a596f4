"""What TF 1.x had beside `tf`, and what public scripts import: the reader of MNIST."""

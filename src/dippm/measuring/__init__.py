"""A runnable model on a real device in, a measurement out."""

"""Graph and costs in, tensors for a network out."""

"""A training step as a graph: forward pass, loss, backward pass and optimizer, made from a forward graph."""

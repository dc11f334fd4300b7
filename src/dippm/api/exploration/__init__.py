"""Design-space exploration: a space of models, the search through it, and the best trade-offs found."""

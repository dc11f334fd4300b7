"""The public verbs spread over the machines of a Ray cluster.

Nothing in here is imported unless a caller names a cluster: one machine needs none of it.
"""

"""Predictors: a graph on a device in, latency, energy and memory with intervals out."""

"""Benchmarks of the data plane between workers."""

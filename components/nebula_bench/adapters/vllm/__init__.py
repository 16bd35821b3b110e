"""Benchmarks that run vLLM inside their own process."""

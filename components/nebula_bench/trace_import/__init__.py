"""Workload traces in formats that others publish, read as this project's own."""

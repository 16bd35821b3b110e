"""Measured prefill times of real GPUs; see PROVENANCE.md."""

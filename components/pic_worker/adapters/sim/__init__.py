"""The engine that spends calibrated time instead of computing."""

"""Live replay: a trace's requests against a running frontend, and what their clients saw."""

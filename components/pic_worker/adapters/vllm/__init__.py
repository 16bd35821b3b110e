"""The engine that computes: vLLM, with position-independent reuse through its KV connector interface."""

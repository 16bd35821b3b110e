"""What clients of real vLLM workers see: time to the first token with and without reuse, memory, exactness."""

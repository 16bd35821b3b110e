"""vLLM takes the request with the lower number first."""

from typing import Final

PROMPT_PRIORITY: Final = 0
HELPER_PRIORITY: Final = 1
"""Segments computed for other workers' prompts wait behind prompts."""

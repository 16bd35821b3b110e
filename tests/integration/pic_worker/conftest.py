"""Integration tests of the vLLM worker share one engine in this process."""

from support.rank_world import rank_world as rank_world
from support.tiny_engine import tiny_engine as tiny_engine

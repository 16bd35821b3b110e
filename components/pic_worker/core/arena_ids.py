"""Names of places in the arena, where the store's bytes lie, and of copies into it."""

from typing import NewType

Page = NewType("Page", int)
"""A piece of a rank's arena: the KV of some tokens in all layers, this rank's heads. Ranks number alike."""

SaveId = NewType("SaveId", int)
"""Names one save until all ranks have done it; never used twice."""

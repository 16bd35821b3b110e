"""The parts of the paper's comparison, each of which can be run by itself."""

from enum import StrEnum


class Part(StrEnum):
    MAIN = "main"
    """16 cells at two loads against every baseline and bound."""
    SWEEP = "sweep"
    """The mean reduction from 20 % to 120 % load, with the first seed."""
    RECOVERY = "recovery"
    """Recovered share and gap to the ideal hit ratio."""
    ACCOUNTING = "accounting"
    """Invalid hits and repeated computation."""
    SPLIT = "split"
    """The stores' division against one order, halves and the best fixed division; the window."""
    CACHEBLEND = "cacheblend"
    """The main table with another fusion method, with the first seed."""
    LINKS = "links"
    """Faster and slower links, with one model."""
    CAPACITIES = "capacities"
    """Smaller and larger stores, with one model."""
    HYBRID = "hybrid"
    """A model with recurrent layers, as if it had none."""
    PAPER_RATES = "paper-rates"
    """The paper's rates on a slower GPU."""
    DYNAMO = "dynamo"
    """Agreement with Dynamo's own replay."""

"""What tests of reuse do with an engine, and look at."""

from collections.abc import Sequence

from support.connected_engine import BLOCK_TOKENS, ConnectedEngine, Ran
from support.passages import Prompt, passage


def learn(engine: ConnectedEngine, *passages: Sequence[int]) -> None:
    """The passages get into the store from a prompt of their own."""
    prompt = Prompt.of(passage(99, 13), *passages, passage(98, 3), gaps=(0, len(passages) + 1))
    ran = engine.run(prompt.tokens, prompt.spans, salt="donor")
    assert all(fact.is_stored for fact in ran.told.segments)


def crowd_out(engine: ConnectedEngine) -> None:
    """Fills the device tier with other prompts."""
    for number in range(2):
        engine.run(passage(90 + number, 30 * BLOCK_TOKENS), salt="crowd")


def loaded(ran: Ran) -> list[int]:
    """Tokens of each segment that came from the store."""
    return [fact.loaded_tokens for fact in ran.told.segments]

"""Prefix-block events through Dynamo's own publisher, so that Dynamo's router understands them too."""

from typing import assert_never

import numpy as np
from dynamo.llm import KvEventPublisher, compute_block_hash_for_seq

from nebula_protocol.hashing import HashArray
from nebula_protocol.tokens import TokenArray
from pic_worker.core.effects import DeviceEvent, KvRemoved, KvStored


class DynamoBlockEvents:
    """`BlockEvents` over `KvEventPublisher`. Events before Dynamo hands the publisher over are kept until then."""

    def __init__(self, block_size_tokens: int) -> None:
        self._block_size_tokens = block_size_tokens
        self._publisher: KvEventPublisher | None = None
        self._early: list[DeviceEvent] = []

    def attach(self, publisher: KvEventPublisher) -> None:
        self._publisher = publisher
        early, self._early = self._early, []
        for event in early:
            self.publish(event)

    def publish(self, event: DeviceEvent) -> None:
        if self._publisher is None:
            self._early.append(event)
            return
        match event:
            case KvStored():
                self._publisher.publish_stored(
                    token_ids=event.tokens.tolist(),
                    num_block_tokens=[self._block_size_tokens] * len(event.block_hashes),
                    block_hashes=[int(block_hash) for block_hash in event.block_hashes],
                    parent_hash=event.parent_hash,
                    cache_salt=event.lineage or None,
                )
            case KvRemoved():
                self._publisher.publish_removed([int(block_hash) for block_hash in event.block_hashes])
            case _:
                assert_never(event)


def hash_salted_blocks(tokens: TokenArray, block_size_tokens: int, lineage: str) -> HashArray:
    """How Dynamo hashes blocks of requests with a `cache_salt`. Shape [full blocks]."""
    hashes = compute_block_hash_for_seq(tokens.tolist(), block_size_tokens, cache_namespace=lineage)
    return np.array(hashes, dtype=np.uint64)

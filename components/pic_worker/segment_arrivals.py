"""Which segments this worker is about to have, and who waits for them."""

import asyncio
from enum import Enum

from pic_worker.core.store_entry import SegmentKey
from pic_worker.ports import Clock


class _Word(Enum):
    """What happened to a segment."""

    BEGUN = "begun"
    STORED = "stored"
    GIVEN_UP = "given_up"


class SegmentArrivals:
    """Told by whoever computes or fetches segments; `stored` comes before the `end` of what stored it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._producers: dict[SegmentKey, int] = {}
        self._waiting: dict[SegmentKey, list[asyncio.Future[_Word]]] = {}

    def begin(self, key: SegmentKey) -> None:
        """A request is going to produce it."""
        self._producers[key] = self._producers.get(key, 0) + 1
        self._say(key, _Word.BEGUN)

    def end(self, key: SegmentKey) -> None:
        """It did, or never will."""
        left = self._producers[key] - 1
        if left:
            self._producers[key] = left
            return
        del self._producers[key]
        self._say(key, _Word.GIVEN_UP)

    def stored(self, key: SegmentKey) -> None:
        self._say(key, _Word.STORED)

    def is_coming(self, key: SegmentKey) -> bool:
        return key in self._producers

    async def wait(self, key: SegmentKey, *, wait_s: float, grace_s: float) -> bool:
        """Whether it was stored since the call.

        Args:
            wait_s: how long in all.
            grace_s: how long it may be that nobody produces it.
        """
        now_s = self._clock()
        give_up_s, unknown_until_s = now_s + wait_s, now_s + min(wait_s, grace_s)
        while True:
            until_s = give_up_s if self.is_coming(key) else unknown_until_s
            word = await self._next(key, until_s - self._clock())
            if word is _Word.STORED:
                return True
            if word is not _Word.BEGUN:
                return False

    async def _next(self, key: SegmentKey, timeout_s: float) -> _Word | None:
        if timeout_s <= 0:
            return None
        future: asyncio.Future[_Word] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(future)
        try:
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            return None
        finally:
            waiting = self._waiting.get(key, [])
            if future in waiting:
                waiting.remove(future)
            if not waiting:
                self._waiting.pop(key, None)

    def _say(self, key: SegmentKey, word: _Word) -> None:
        for future in self._waiting.pop(key, ()):
            if not future.done():
                future.set_result(word)

"""How this deployment cuts and names prompts: the same in every worker, and equal to the router's."""

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from nebula_protocol.annotations import RequestOptions
from nebula_protocol.cutter import cut_prompt
from nebula_protocol.cutting import CutterConfig
from nebula_protocol.domain import tenant_domain
from nebula_protocol.errors import SpanError
from nebula_protocol.hashing import HashArray, hash_blocks
from nebula_protocol.ids import DomainId, RequestId
from nebula_protocol.lineage import lineage_of
from nebula_protocol.plan import HelperTask, Plan
from nebula_protocol.tokens import TokenArray
from pic_worker.core.engine_request import (
    EngineRequest,
    HelperRequest,
    exact_request,
    helper_request,
    planned_request,
    unplanned_request,
)
from pic_worker.errors import BadWorkError

SaltedHasher = Callable[[TokenArray, int, str], HashArray]
"""(tokens, block_size_tokens, lineage) to block hashes, shape [full blocks]."""


@dataclass(frozen=True, slots=True)
class PromptCutter:
    """Turns a prompt into the engine's request, with the router's plan or by this worker's own cut."""

    config: CutterConfig
    block_size_tokens: int
    domain_id: DomainId
    pic: bool
    hash_salted: SaltedHasher

    def engine_request(
        self, request_id: RequestId, tokens: TokenArray, options: RequestOptions, plan: Plan | None
    ) -> EngineRequest:
        """
        Raises:
            BadWorkError: a span does not fit the prompt.
        """
        pic = self.pic and (options.pic is None or options.pic) and (plan is None or plan.pic)
        lineage = lineage_of(pic=pic, deployment_has_pic=self.pic, cache_salt=options.cache_salt, fusion=options.fusion)
        domain_id = tenant_domain(self.domain_id, options.cache_salt)
        hashes = self._hash(tokens, lineage)
        if plan is not None:
            return planned_request(
                request_id,
                # Whoever says no wins: approximate KV under the exact lineage would serve others as exact.
                replace(plan, pic=pic),
                tokens,
                hashes,
                lineage=lineage,
                domain_id=domain_id,
                hold_prompt=plan.hands_over,
                fusion=options.fusion,
            )
        if not pic:
            return exact_request(request_id, tokens, hashes, lineage=lineage, domain_id=domain_id)
        try:
            layout = cut_prompt(
                tokens,
                self.config,
                block_size_tokens=self.block_size_tokens,
                block_hashes=hashes,
                spans=options.spans,
            )
        except SpanError as error:
            raise BadWorkError(str(error)) from error
        return unplanned_request(
            request_id,
            layout.segments,
            tokens,
            hashes,
            lineage=lineage,
            domain_id=domain_id,
            fusion=options.fusion,
        )

    def helper_request(self, request_id: RequestId, task: HelperTask, tokens: TokenArray) -> HelperRequest:
        """
        Raises:
            BadWorkError: the segments are of another domain than this worker's, or it keeps none.
        """
        # A tenant's domain is the worker's with a suffix: see `tenant_domain`.
        if not self.pic or task.domain_id.partition("/")[0] != self.domain_id:
            raise BadWorkError(f"this worker keeps no segments of domain {task.domain_id}")
        return helper_request(request_id, task, tokens)

    def _hash(self, tokens: TokenArray, lineage: str) -> HashArray:
        if lineage:
            return self.hash_salted(tokens, self.block_size_tokens, lineage)
        return hash_blocks(tokens, self.block_size_tokens)

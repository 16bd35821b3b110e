"""Takes a prefilled prompt over, where the decode worker's prompt is longer than what was prefilled."""

from vllm.distributed.kv_transfer.kv_connector.v1.nixl import NixlConnector
from vllm.v1.request import Request


class PromptConnector(NixlConnector):
    """NIXL's connector takes all of a request's prompt from the prefill worker.

    Here the prompt goes on with the answer's first token, which the prefill worker has sampled and the client has
    already: there is no KV of it, and where a block ends before it, there is no block to take it from.
    """

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        num_tokens, is_async = super().get_num_new_matched_tokens(request, num_computed_tokens)
        params = request.kv_transfer_params
        if not num_tokens or params is None:
            return num_tokens, is_async
        num_held = params.get("remote_num_tokens")
        if not isinstance(num_held, int):
            return num_tokens, is_async
        num_left = max(0, min(num_tokens, num_held - num_computed_tokens))
        return num_left, is_async and num_left > 0

"""The ways in which a client names its tenant to Dynamo's frontend, and requests that use them."""

import json
from dataclasses import dataclass

from support.running_graph import EXTRA_FIELDS, Json, RunningGraph, receipt_of


@dataclass(frozen=True)
class TenantNaming:
    """Where the salt stands in a request."""

    name: str

    def parts(self, salt: str) -> tuple[Json, Json, dict[str, str]]:
        """What goes into the body, into its `nvext`, and into the headers."""
        return {
            "body": ({"cache_salt": salt}, {}, {}),
            "nvext": ({}, {"cache_salt": salt}, {}),
            "header": ({}, {}, {"x-tenant-id": salt}),
        }[self.name]


NAMINGS = [TenantNaming(name) for name in ("body", "nvext", "header")]


def ask_as(
    graph: RunningGraph, naming: TenantNaming, salt: str, prompt: list[int], spans: list[list[int]] | None = None
) -> Json:
    """The receipt of a tenant's prompt."""
    in_body, in_nvext, headers = naming.parts(salt)
    annotations = [] if spans is None else [f"nebula.spans={json.dumps(spans, separators=(',', ':'))}"]
    nvext = {"extra_fields": EXTRA_FIELDS, "annotations": annotations, **in_nvext}
    response = graph.post("/v1/completions", {"prompt": prompt, "max_tokens": 4, "nvext": nvext, **in_body}, headers)
    assert response.status_code == 200, response.text
    return receipt_of(response.json())

"""A forward pass of some tokens of a request, wherever they stand in it.

Each run [a, b) of positions goes in as a request of its own: b - a new tokens behind a known ones, all runs with the
same block table. The attention's ordinary causal kernel then gives each token exactly the mask that it has in a whole
prefill, and the model writes the runs' KV to where it belongs.
"""

import copy
from collections.abc import Sequence
from dataclasses import fields
from itertools import islice
from typing import Any, Final

import torch
from vllm.config import VllmConfig
from vllm.forward_context import set_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata

from pic_worker.adapters.vllm.paged_kv import PagedKv
from pic_worker.adapters.vllm.token_runs import runs_of, split_positions
from pic_worker.errors import StartError

MAX_RUNS: Final = 1024
"""In one pass: some backends keep buffers for so many requests."""

# Fields differ between versions of vLLM.
_METADATA_FIELDS: Final = frozenset(field.name for field in fields(CommonAttentionMetadata))


class ScatteredForward:
    """Runs outside of vLLM's own batch, with attention metadata of its own; tensor-parallel ranks run it together."""

    def __init__(self, runner: Any, vllm_config: VllmConfig, kv: PagedKv) -> None:
        """
        Raises:
            StartError: the layers are not all of one kind of attention.
        """
        self._model = runner.model
        self._inner = runner.get_model()
        self._config = vllm_config
        self._kv = kv
        self._max_tokens = vllm_config.scheduler_config.max_num_batched_tokens
        groups = runner.attn_groups
        if len(groups) != 1 or len(groups[0]) != 1:
            raise StartError("PIC needs a model whose layers all have the same kind of attention")
        self._layer_names = kv.layer_names
        self._builder = _new_builder(groups[0][0], vllm_config, kv)

    @torch.inference_mode()
    def run(
        self,
        token_ids: Sequence[int],
        block_ids: Sequence[int],
        positions: torch.Tensor,
        *,
        num_layers: int | None = None,
    ) -> None:
        """Computes the KV of tokens whose whole context is there already or among them.

        Args:
            token_ids: of the request, up to the last position at least.
            positions: int64, ascending, on the host.
            num_layers: the first so many layers alone, at least two; see `can_stop_early`.
        """
        tokens = torch.tensor(token_ids, dtype=torch.int32)
        for piece in split_positions(positions, max_tokens=self._max_tokens, max_runs=MAX_RUNS):
            self._run_piece(tokens, block_ids, piece, num_layers)

    @torch.inference_mode()
    def run_alone(self, token_id: int, position: int, block_id: int) -> None:
        """One token that attends to itself alone, rotated as at `position`, its KV at the beginning of the block."""
        one = torch.ones(1, dtype=torch.int64)
        metadata = self._metadata((block_id,), begins=0 * one, ends=one, slots=self._kv.slots_of((block_id,), 0 * one))
        token = torch.tensor([token_id], dtype=torch.int32)
        self._compute(token, position * one, metadata, num_layers=None)

    def can_stop_early(self) -> bool:
        """Whether the first layers can be run by themselves: the model is made of parts as Llama and Qwen are."""
        inner = getattr(self._inner, "model", None)
        layers = getattr(inner, "layers", None)
        if not isinstance(layers, torch.nn.ModuleList) or not hasattr(inner, "embed_tokens"):
            return False
        return all(_is_known(layer) for layer in layers)

    def _run_piece(
        self, tokens: torch.Tensor, block_ids: Sequence[int], positions: torch.Tensor, num_layers: int | None
    ) -> None:
        runs = runs_of(positions)
        if self._builder.reorder_batch_threshold is not None:
            # The backend takes short runs for decodes, and decodes must come first. Order means nothing to the result.
            runs = runs.short_first(self._builder.reorder_batch_threshold)
            positions = runs.positions
        slots = self._kv.slots_of(block_ids, positions)
        metadata = self._metadata(block_ids, begins=runs.begins, ends=runs.ends, slots=slots)
        self._compute(tokens[positions], positions, metadata, num_layers)

    def _metadata(
        self, block_ids: Sequence[int], *, begins: torch.Tensor, ends: torch.Tensor, slots: torch.Tensor
    ) -> CommonAttentionMetadata:
        lengths = (ends - begins).to(torch.int32)
        starts = torch.cat([torch.zeros(1, dtype=torch.int32), lengths.cumsum(0, dtype=torch.int32)])
        seq_lens = ends.to(torch.int32)
        num_runs, device = len(ends), self._kv.device
        table = self._kv.backend_blocks(block_ids).to(torch.int32)
        values: dict[str, Any] = {
            "query_start_loc": starts.to(device),
            "query_start_loc_cpu": starts,
            "seq_lens": seq_lens.to(device),
            "_seq_lens_cpu": seq_lens,
            "_num_computed_tokens_cpu": begins.to(torch.int32),
            "seq_lens_cpu_upper_bound": seq_lens,
            "num_reqs": num_runs,
            "num_actual_tokens": len(slots),
            "max_query_len": int(lengths.max()),
            "max_seq_len": int(seq_lens.max()),
            "block_table_tensor": table.repeat(num_runs, 1).to(device),
            "slot_mapping": slots,
            "causal": True,
            "is_prefilling": torch.ones(num_runs, dtype=torch.bool),
        }
        return CommonAttentionMetadata(**{name: value for name, value in values.items() if name in _METADATA_FIELDS})

    def _compute(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        metadata: CommonAttentionMetadata,
        num_layers: int | None,
    ) -> None:
        device = self._kv.device
        tokens, positions = tokens.to(device), positions.to(device)
        attention: dict[str, Any] = dict.fromkeys(self._layer_names, self._builder.build(0, metadata))
        if num_layers is not None:
            # Without metadata the attention still writes its keys and values, but leaves out the attending.
            attention[self._layer_names[num_layers - 1]] = None
        with set_forward_context(
            attention,
            self._config,
            num_tokens=len(tokens),
            slot_mapping=dict.fromkeys(self._layer_names, metadata.slot_mapping),
        ):
            if num_layers is None:
                self._model(input_ids=tokens, positions=positions, intermediate_tensors=None, inputs_embeds=None)
            else:
                self._compute_layers(tokens, positions, num_layers)

    def _compute_layers(self, tokens: torch.Tensor, positions: torch.Tensor, num_layers: int) -> None:
        """The last layer up to its keys and values alone: no later one is there to read what it puts out."""
        hidden, residual = self._inner.model.embed_tokens(tokens), None
        for layer in islice(self._inner.model.layers, num_layers - 1):
            hidden, residual = layer(positions, hidden, residual)
        last = self._inner.model.layers[num_layers - 1]
        hidden, _ = last.input_layernorm(hidden, residual)
        last.self_attn(positions=positions, hidden_states=hidden)


def _new_builder(group: Any, vllm_config: VllmConfig, kv: PagedKv) -> Any:
    """A metadata builder apart from the runner's, which may have filled its buffers for the step that is under way."""
    config = copy.copy(vllm_config)
    config.scheduler_config = copy.copy(vllm_config.scheduler_config)
    config.scheduler_config.max_num_seqs = MAX_RUNS
    spec = group.kv_cache_spec.copy_with_new_block_size(kv.layout.block_tokens)
    return group.backend.get_builder_cls()(spec, list(group.layer_names), config, kv.device)


def _is_known(layer: torch.nn.Module) -> bool:
    parts = dict(layer.named_children())
    return (
        _arguments(layer) == ("positions", "hidden_states", "residual")
        and "input_layernorm" in parts
        and "self_attn" in parts
        and _arguments(parts["self_attn"]) == ("positions", "hidden_states")
    )


def _arguments(module: torch.nn.Module) -> tuple[str, ...]:
    code = type(module).forward.__code__
    return code.co_varnames[1 : code.co_argcount]

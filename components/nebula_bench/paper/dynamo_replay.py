"""Runs Dynamo's own router and mock engine on a trace: `python -m dynamo.replay` in a process of its own."""

import itertools
import os
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from nebula_bench.adapters.dynamo.replay_tool import replay_command
from nebula_bench.errors import CellError
from nebula_bench.policies.block_index import block_chain
from nebula_protocol.tokens import TokenArray
from pic_worker.core.step_cost import StepCost

_MS_PER_S = 1000
_TIMEOUT_S = 300
_MAX_ERROR_CHARS = 500


class ReplayedRequest(msgspec.Struct, frozen=True):
    """A line of the tool's report; other fields are not read."""

    arrival_time_ms: float
    source_held_ms: float
    """When its prefill was done."""
    input_length: int
    reused_input_tokens: int


class _TraceLine(msgspec.Struct, frozen=True):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


class _EngineArgs(msgspec.Struct, frozen=True, omit_defaults=True):
    block_size: int
    num_gpu_blocks: int
    worker_type: str
    planner_profile_data: str
    max_num_batched_tokens: int = 0


@dataclass(frozen=True, slots=True)
class DynamoReplay:
    """One run of the tool."""

    num_prefill_workers: int
    block_size_tokens: int
    device_blocks: int
    max_step_tokens: int
    step_cost: StepCost
    """Prefill time by new tokens alone: the tool knows no context."""

    def run(
        self, prompts: Iterable[TokenArray], arrivals_s: Sequence[float], folder: Path
    ) -> tuple[ReplayedRequest, ...]:
        """The requests' fates, in order of arrival.

        Args:
            folder: for the files between the two processes.

        Raises:
            CellError: the tool failed, or this environment's Dynamo does not bring it.
        """
        trace, curve, report = folder / "trace.jsonl", folder / "curve.npz", folder / "requests.jsonl"
        self._write_trace(prompts, arrivals_s, trace)
        self._write_curve(curve)
        finished = subprocess.run(
            self._command(trace, curve, report, folder),
            # It logs a line for each decision.
            env=os.environ | {"DYN_LOG": "error"},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        if finished.returncode:
            raise CellError(f"dynamo.replay failed: {finished.stderr[-_MAX_ERROR_CHARS:]}")
        rows = msgspec.json.Decoder(ReplayedRequest).decode_lines(report.read_bytes())
        return tuple(sorted(rows, key=lambda row: row.arrival_time_ms))

    def _command(self, trace: Path, curve: Path, report: Path, folder: Path) -> list[str]:
        engine = _EngineArgs(
            block_size=self.block_size_tokens,
            num_gpu_blocks=self.device_blocks,
            worker_type="prefill",
            planner_profile_data=str(curve),
            max_num_batched_tokens=self.max_step_tokens,
        )
        # Its size must not matter: one token of each request passes through it.
        decoder = msgspec.structs.replace(engine, worker_type="decode", num_gpu_blocks=10 * self.device_blocks)
        return [
            *(*replay_command(), str(trace)),
            *("--router-mode", "kv_router"),
            *("--trace-block-size", str(self.block_size_tokens)),
            *("--num-prefill-workers", str(self.num_prefill_workers)),
            *("--num-decode-workers", "1"),
            *("--prefill-engine-args", msgspec.json.encode(engine).decode()),
            *("--decode-engine-args", msgspec.json.encode(decoder).decode()),
            *("--report-json", str(folder / "report.json")),
            *("--report-jsonl", str(report)),
        ]

    def _write_trace(self, prompts: Iterable[TokenArray], arrivals_s: Sequence[float], path: Path) -> None:
        """Content is told by a number for each block; a partial last block has one of its own."""
        size, fresh = self.block_size_tokens, itertools.count()
        numbers: dict[int, int] = {}
        encoder = msgspec.json.Encoder()
        with path.open("wb") as file:
            for tokens, arrival_s in zip(prompts, arrivals_s, strict=True):
                hash_ids = []
                for name in block_chain(tokens, size):
                    if name not in numbers:
                        numbers[name] = next(fresh)
                    hash_ids.append(numbers[name])
                if len(tokens) % size:
                    hash_ids.append(next(fresh))
                line = _TraceLine(arrival_s * _MS_PER_S, len(tokens), 1, hash_ids)
                file.write(encoder.encode(line) + b"\n")

    def _write_curve(self, path: Path) -> None:
        """Dense enough for straight lines between the points; the tool adds decode tables, which hardly count."""
        num_tokens = np.concatenate([np.arange(1, 16), np.arange(16, 2 * self.max_step_tokens + 1, 16)]).astype(float)
        times_ms = [self.step_cost.step_s(int(n), n * n / 2) * _MS_PER_S for n in num_tokens]
        np.savez(
            path,
            prefill_isl=num_tokens,
            prefill_ttft_ms=np.array(times_ms),
            decode_active_kv_tokens=np.array([0.0, 1e7]),
            decode_context_length=np.array([0.0, 1e6]),
            decode_itl=np.ones((2, 2)),
        )

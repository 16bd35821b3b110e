"""Reads the prefill-time tables that ship with this package."""

from functools import cache
from importlib import resources

import msgspec

from pic_worker.core.prefill_table import PrefillTable, TableFit, make_table

_FILE = "prefill_tables.json"
_MS_PER_S = 1000


class UnknownTableError(Exception):
    """No table for this model, dtype and system."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(f"no prefill-time table for {name}; known are: {', '.join(known)}")
        self.name = name
        self.known = known


class _Fit(msgspec.Struct, frozen=True):
    t0_ms: float
    a_ms_per_tok: float
    b_ms_per_pair: float


class _Fits(msgspec.Struct, frozen=True):
    abs: _Fit


class _Table(msgspec.Struct, frozen=True):
    model: str
    dtype: str
    system: str
    kv_bytes_per_token: int
    time_ms: tuple[tuple[float, ...], ...]
    fit: _Fits


class _TableFile(msgspec.Struct, frozen=True):
    new_tokens: tuple[int, ...]
    context_tokens: tuple[int, ...]
    tables: tuple[_Table, ...]


def load_table(model: str, dtype: str, system: str) -> PrefillTable:
    """The table of one model on one GPU, for example ("Qwen3-14B", "bf16", "h100_sxm").

    Raises:
        UnknownTableError: there is none.
    """
    file = _read_file()
    for table in file.tables:
        if (table.model, table.dtype, table.system) == (model, dtype, system):
            return _table_of(file, table)
    raise UnknownTableError(_name(model, dtype, system), table_names())


def table_names() -> tuple[str, ...]:
    """All tables as `model/dtype/system`."""
    return tuple(_name(table.model, table.dtype, table.system) for table in _read_file().tables)


@cache
def _read_file() -> _TableFile:
    data = resources.files(__package__).joinpath(_FILE).read_bytes()
    return msgspec.json.decode(data, type=_TableFile)


def _table_of(file: _TableFile, table: _Table) -> PrefillTable:
    # Of the fits in the file, `abs` has the truest cost per token and pair for the steps that matter (512 tokens and
    # more); `rel` is nearer for tiny steps, whose time hardly counts.
    fit = table.fit.abs
    return make_table(
        model=table.model,
        dtype=table.dtype,
        system=table.system,
        kv_bytes_per_token=table.kv_bytes_per_token,
        fit=TableFit(
            step_s=fit.t0_ms / _MS_PER_S,
            per_token_s=fit.a_ms_per_tok / _MS_PER_S,
            per_pair_s=fit.b_ms_per_pair / _MS_PER_S,
        ),
        new_tokens=file.new_tokens,
        context_tokens=file.context_tokens,
        rows_s=[[time_ms / _MS_PER_S for time_ms in row] for row in table.time_ms],
    )


def _name(model: str, dtype: str, system: str) -> str:
    return f"{model}/{dtype}/{system}"

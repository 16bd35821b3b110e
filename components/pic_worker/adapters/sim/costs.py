"""The simulated worker's costs, in real seconds: `time_scale` stretches every one of them alike."""

from dataclasses import dataclass

from nebula_protocol.cost import CostFit, LinkFit
from pic_worker.calibration.layers import NUM_LAYERS
from pic_worker.calibration.tables import UnknownTableError, load_table
from pic_worker.core.step_cost import LoadCost, StepCost
from pic_worker.errors import StartError
from pic_worker.settings import WorkerSettings


@dataclass(frozen=True, slots=True)
class SimCosts:
    step: StepCost
    load: LoadCost
    link: LinkFit
    fit: CostFit
    """What the worker tells the router: the closed form, which is coarser than `step`."""
    kv_bytes_per_token: int
    decode_token_s: float
    event_delay_s: float
    num_layers: int


def make_costs(settings: WorkerSettings) -> SimCosts:
    """
    Raises:
        StartError: no prefill-time table for the configured model and GPU.
    """
    sim, scale = settings.sim, settings.sim.time_scale
    try:
        table = load_table(sim.model, sim.dtype, sim.system)
    except UnknownTableError as error:
        raise StartError(str(error)) from error
    factor, overhead_s = sim.time_factor * scale, sim.step_overhead_s * scale
    return SimCosts(
        step=StepCost(table=table, time_factor=factor, step_overhead_s=overhead_s),
        load=LoadCost(
            kv_bytes_per_token=table.kv_bytes_per_token,
            host_load_bytes_per_s=sim.host_load_bytes_per_s / scale,
            rotation_bytes_per_s=sim.rotation_bytes_per_s / scale,
        ),
        link=LinkFit(floor_s=settings.link.floor_s * scale, bytes_per_s=settings.link.bytes_per_s / scale),
        fit=table.cost_fit(factor, overhead_s),
        kv_bytes_per_token=table.kv_bytes_per_token,
        decode_token_s=sim.decode_token_s * scale,
        event_delay_s=sim.event_delay_s * scale,
        num_layers=NUM_LAYERS[table.model],
    )

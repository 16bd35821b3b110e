"""What a part of the data plane's benchmark found."""

from dataclasses import dataclass

from nebula_bench.data_plane.settings import DataPlanePart
from nebula_bench.results import Measurement


@dataclass(frozen=True, slots=True)
class MeasuredPart:
    part: DataPlanePart
    markdown: str
    measurements: tuple[Measurement, ...]

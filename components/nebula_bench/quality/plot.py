"""Figure: divergence and agreement over the share of reused tokens that is computed again."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nebula_bench.quality.budget import method_line
from nebula_bench.quality.interval import Interval
from nebula_bench.quality.summary import ConditionSummary, QualitySummary
from nebula_protocol.fusion import FusionMethod
from nebula_protocol.ids import Origin

mpl.use("Agg")

_COLORS = {FusionMethod.LEGOLINK: "tab:blue", FusionMethod.CACHEBLEND: "tab:orange"}
_STYLES = {Origin.ALONE: "--", Origin.IN_CONTEXT: "-"}
_NAMES = {Origin.ALONE: "alone", Origin.IN_CONTEXT: "in context"}


def plot_quality(summary: QualitySummary, path: Path) -> None:
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for method in _COLORS:
        for origin in Origin:
            line = method_line(summary, method, origin)
            _draw(left, line, method, origin, [one.kl for one in line])
            _draw(right, line, method, origin, [one.agreement for one in line])
    for axes in (left, right):
        axes.set_xlabel("recomputed of the reused tokens, %")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    left.set_ylabel("KL(full prefill || reuse) of the first token, nats")
    right.set_ylabel(f"agreement of the first {summary.num_answer_tokens} greedy tokens")
    right.set_ylim(0, 1)
    left.legend(fontsize=8)
    figure.suptitle(f"{summary.num_prompts} prompts; bars are 95 % confidence intervals")
    figure.savefig(path, dpi=120)


def _draw(
    axes: Axes, line: Sequence[ConditionSummary], method: FusionMethod, origin: Origin, heights: Sequence[Interval]
) -> None:
    values = [height.value for height in heights]
    errors = [
        [height.value - height.low for height in heights],
        [height.high - height.value for height in heights],
    ]
    axes.errorbar(
        [one.recomputed_ratio * 100 for one in line],
        values,
        yerr=errors,
        color=_COLORS[method],
        linestyle=_STYLES[origin],
        marker="o",
        markersize=4,
        capsize=3,
        label=f"{method}, {_NAMES[origin]}",
    )

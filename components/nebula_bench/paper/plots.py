"""Figures of the main table."""

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from nebula_bench.paper.grid import BOUND, FARTHER_BOUND, OURS
from nebula_bench.paper.main_table import MainTable
from nebula_bench.policies.catalogue import BASELINES

mpl.use("Agg")


def plot_cells(table: MainTable, load: float, path: Path) -> None:
    """Median TTFT of every policy in every cell at one load, over that of the cell's strongest baseline."""
    cells = table.at(load)
    policies = (*BASELINES, OURS, BOUND, FARTHER_BOUND)
    figure = Figure(figsize=(14, 5), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(cells))
    width = 0.8 / len(policies)
    for number, policy in enumerate(policies):
        heights = [cell.timings[policy].p50_ms / cell.timings[cell.strongest].p50_ms for cell in cells]
        axes.bar(places + (number - len(policies) / 2) * width, heights, width, label=policy)
    axes.set_xticks(places, [f"{cell.cell.workload}\n{cell.cell.model}" for cell in cells], rotation=60, fontsize=8)
    axes.set_ylabel("median TTFT over the strongest baseline's")
    axes.set_ylim(0, 3)
    axes.axhline(1.0, linewidth=0.8, color="black")
    axes.set_title(f"PIC workers behind Dynamo's KV cost are {load:.0%} busy")
    axes.legend(ncols=4, fontsize=8)
    figure.savefig(path, dpi=120)


def plot_sweep(reductions: dict[float, float], path: Path) -> None:
    """Mean reduction of the median TTFT over the load."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot([load * 100 for load in reductions], [value * 100 for value in reductions.values()], marker="o")
    axes.axhline(61.4, linewidth=0.8, linestyle="--", color="black", label="paper: 61.4 %")
    axes.set_xlabel("load: how busy PIC workers behind Dynamo's KV cost are, %")
    axes.set_ylabel("reduction of median TTFT, %")
    axes.legend()
    figure.savefig(path, dpi=120)

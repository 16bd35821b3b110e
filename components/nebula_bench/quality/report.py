"""The summary as a page of Markdown."""

from nebula_bench.quality.budget import COMPARED_METHODS, kl_at, method_line
from nebula_bench.quality.interval import Interval
from nebula_bench.quality.summary import ConditionSummary, QualitySummary
from nebula_bench.serving.markdown_table import markdown_table, number
from nebula_protocol.ids import Origin

_ORIGIN_NAMES = {Origin.ALONE: "alone", Origin.IN_CONTEXT: "in context"}
PLOT_NAME = "quality.png"
_COMPARED_SHARES = (0.025, 0.05, 0.075, 0.1, 0.125)


def quality_markdown(summary: QualitySummary, provenance: str) -> str:
    return "\n".join(
        (
            "# How close reuse is to full prefill\n",
            _intro(summary),
            _conditions_table(summary),
            _NOTE,
            f"![KL divergence and agreement over the recomputed share]({PLOT_NAME})\n",
            "## At equal shares of recomputed tokens\n",
            _budgets(summary),
            "## Where the reused KV comes from\n",
            _origins(summary),
            f"{provenance}\n",
        )
    )


_NOTE = """\
*KL*: of the first answer token's distribution over the whole vocabulary, full prefill against reuse. *Agreement*: the
share of the greedy answer that comes before its first difference from that of full prefill; *first token*: the share
of prompts where not even the first one differs. *Recomputed*: share of the reused tokens, by the engine's own count.
Square brackets are 95 % confidence intervals over the prompts, by bootstrap.
"""


def _intro(summary: QualitySummary) -> str:
    seeds = ", ".join(map(str, summary.seeds))
    return (
        f"{summary.num_prompts} prompts (seeds {seeds}) of {summary.mean_passages:.1f} passages, "
        f"{summary.mean_segment_tokens:.0f} tokens each and {summary.mean_prompt_tokens:.0f} a prompt on average; "
        "every passage is reused. *Alone*: its KV was computed by itself at position 0. *In context*: it was taken "
        "from another prompt with the same passages in another order and another question. "
        f"Answers of {summary.num_answer_tokens} tokens.\n"
    )


def _conditions_table(summary: QualitySummary) -> str:
    header = ("fusion", "origin", "prompts", "recomputed", "KL, mean", "median", "by seed", "agreement", "first token")
    ordered = sorted(summary.conditions, key=lambda one: (_method_order(summary, one.fusion), one.origin))
    return markdown_table(header, map(_condition_row, ordered), num_text_columns=2)


def _method_order(summary: QualitySummary, fusion: str) -> int:
    return list(dict.fromkeys(one.fusion for one in summary.conditions)).index(fusion)


def _condition_row(one: ConditionSummary) -> list[str]:
    return [
        f"`{one.fusion}`",
        _ORIGIN_NAMES[one.origin],
        str(one.num_prompts),
        f"{one.recomputed_ratio:.1%}",
        _shown(one.kl, 4),
        f"{one.kl_median:.4f}",
        " / ".join(f"{value:.4f}" for value in one.kl_by_seed.values()),
        _shown(one.agreement, 3),
        f"{one.first_token_agreement:.0%}",
    ]


def _budgets(summary: QualitySummary) -> str:
    """Mean KL on the lines of the figure."""
    lines = {
        f"{method}, {_ORIGIN_NAMES[origin]}": method_line(summary, method, origin)
        for method in COMPARED_METHODS
        for origin in Origin
    }
    rows = [[f"{share:.1%}", *(number(kl_at(line, share), 4) for line in lines.values())] for share in _COMPARED_SHARES]
    return markdown_table(("recomputed", *lines), rows)


def _origins(summary: QualitySummary) -> str:
    if not summary.origin_ratios:
        return "Only one origin was measured.\n"
    rows = [[f"`{one.fusion}`", _shown(one.kl_ratio, 2)] for one in summary.origin_ratios]
    return markdown_table(("fusion", "mean KL alone / in context"), rows)


def _shown(interval: Interval, digits: int) -> str:
    return f"{interval.value:.{digits}f} [{interval.low:.{digits}f}, {interval.high:.{digits}f}]"

"""What killed workers did to requests, as Markdown and as rows of a results file."""

from collections.abc import Iterator

from nebula_bench.results import Bar, Measurement
from nebula_bench.serving.handover_kill import SLOW_LINK_S, HandoverKill, HandoverKills
from nebula_bench.serving.markdown_table import markdown_table, number
from nebula_bench.serving.replay_kill import ReplayKill

_FORGOTTEN_WITHIN_S = 1.0


def kill_markdown(replay: ReplayKill, handover: HandoverKills) -> str:
    return "\n".join((_replay_markdown(replay), _handover_markdown(handover)))


def kill_measurements(replay: ReplayKill, handover: HandoverKills) -> tuple[Measurement, ...]:
    return tuple(_measurements(replay, handover))


def _measurements(replay: ReplayKill, handover: HandoverKills) -> Iterator[Measurement]:
    num_kills = len(handover.kills)
    errors = replay.num_errors + handover.num_errors
    yield Measurement(id="kill_errors", value=errors, unit="requests", bar=Bar("==", 0))
    retries = replay.num_retries + handover.num_retries
    yield Measurement(id="kill_retries", value=retries, unit="requests", bar=Bar(">=", 1))
    is_used = float(replay.num_served_after + replay.num_helped_after > 0)
    yield Measurement(id="restarted_worker_used", value=is_used, unit="flag", bar=Bar("==", 1))
    yield Measurement(id="restarted_worker_requests", value=replay.num_served_after, unit="requests")
    yield Measurement(id="restarted_worker_helper_prefills", value=replay.num_helped_after, unit="prefills")
    fewest = Bar("==", replay.num_workers - 1)
    yield Measurement(id="kill_fewest_workers_in_index", value=replay.fewest_workers, unit="workers", bar=fewest)
    forgotten = Bar("<=", _FORGOTTEN_WITHIN_S)
    yield Measurement(id="kill_named_until_s", value=replay.named_until_s, unit="s", bar=forgotten)
    for name, value in (("known", replay.known_again_s), ("used", replay.used_again_s)):
        if value is not None:
            yield Measurement(id=f"restarted_worker_{name}_again_s", value=value, unit="s")
    same_text = Bar("==", num_kills)
    yield Measurement(id="kill_same_answers", value=handover.num_same_text, unit="requests", bar=same_text)
    slowest_s = max(kill.recovery_s for kill in handover.kills)
    yield Measurement(id="kill_slowest_recovery_s", value=slowest_s, unit="s")


def _replay_markdown(kill: ReplayKill) -> str:
    rows = {
        "killed with SIGKILL while it was at work": f"`{kill.process}`",
        "requests": str(kill.num_requests),
        "failed": str(kill.num_errors),
        "placed anew by the router": str(kill.num_retries),
        "answered by the killed worker before": str(kill.num_served_before),
        "last decision that counts on it, s after the kill": number(kill.named_until_s, 2),
        "decisions after that, none of which names it": str(kill.num_decisions_after),
        "workers in the router's index, fewest of all": f"{kill.fewest_workers} of {kill.num_workers}",
        "all in the index again, s after the kill": number(kill.known_again_s, 1),
        "restarted worker answers its first request, s after the kill": number(kill.used_again_s, 1),
        "answered by the restarted worker": str(kill.num_served_after),
        "prefills of the restarted worker as a helper": str(kill.num_helped_after),
    }
    return markdown_table(("In the middle of the replay", ""), list(rows.items()))


def _handover_markdown(kills: HandoverKills) -> str:
    intro = (
        f"Killed after the prefill worker's reply, before decode has pulled the prompt's KV: transfers take "
        f"{SLOW_LINK_S:g} s here, and the worker dies when the client has its token. Answers of {kills.num_tokens} "
        f"tokens; the decode worker computes such a prompt itself.\n"
    )
    header = ("killed", "all tokens", "same text", "complete, s after the kill", "error")
    table = markdown_table(header, [_handover_row(kill) for kill in kills.kills], num_text_columns=3)
    return f"{intro}\n{table}"


def _handover_row(kill: HandoverKill) -> tuple[str, ...]:
    flags = (kill.is_complete, kill.is_same_text)
    told = ("yes" if flag else "no" for flag in flags)
    return (f"`{kill.process}`", *told, number(kill.recovery_s, 1), kill.error or "none")

"""What requests put into steps."""

from pic_worker.core.prefill_ledger import FinishedStep, PrefillLedger, StepShare, StepTotals


def totals(num_tokens: int) -> StepTotals:
    return StepTotals(num_tokens, 2.0 * num_tokens, 0)


def test_a_request_is_charged_for_the_whole_of_its_steps() -> None:
    ledger = PrefillLedger()
    ledger.open_account("a", 1.0)
    ledger.begin_step([StepShare("a", 10, 50.0)], totals(30), 3.0)
    assert ledger.has_open_steps("a")
    assert ledger.end_step(4.0) == FinishedStep(totals(30), 1.0)
    assert not ledger.has_open_steps("a")
    assert ledger.queued_s("a", 9.0) == 2.0
    work = ledger.close_account("a").step_work()
    assert (work.computed_tokens, work.attention_pairs, work.num_steps) == (10, 50.0, 1)
    assert (work.step_tokens, work.step_pairs, work.step_s) == (30, 60.0, 1.0)


def test_a_step_planned_ahead_lasts_from_the_end_of_the_one_before() -> None:
    ledger = PrefillLedger()
    ledger.begin_step([], totals(1), 0.0)
    ledger.begin_step([], totals(2), 0.5)
    assert ledger.end_step(2.0) == FinishedStep(totals(1), 2.0)
    assert ledger.end_step(3.0) == FinishedStep(totals(2), 1.0)
    assert ledger.end_step(4.0) is None


def test_a_request_that_never_ran_was_queued_all_its_time() -> None:
    ledger = PrefillLedger()
    ledger.open_account("a", 1.0)
    assert ledger.queued_s("a", 4.0) == 3.0
    assert ledger.close_account("a").num_steps == 0
    assert len(ledger) == 0


def test_a_closed_account_is_charged_for_nothing_more() -> None:
    ledger = PrefillLedger()
    ledger.open_account("a", 0.0)
    ledger.begin_step([StepShare("a", 1, 1.0), StepShare("unknown", 1, 1.0)], totals(2), 0.0)
    assert ledger.close_account("a").computed_tokens == 0
    assert ledger.end_step(1.0) == FinishedStep(totals(2), 1.0)

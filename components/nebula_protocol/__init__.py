"""The wire contract between Nebula's router and its workers: ids, segments, events, plans, receipts."""

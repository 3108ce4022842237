"""Many items in, many captions out: sources, a window of jobs, a ledger, outputs."""

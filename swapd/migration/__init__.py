"""Moving sessions between workers: the rules (transaction, planner, drains, ledger) and their actors."""

"""The durable record: SQLite, one writer thread, group commit. Nothing is shown before it is here (H18)."""

"""Whether the owner is at the machine: logind, GameMode, or a machine without a head."""

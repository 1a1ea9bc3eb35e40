"""Who may come in at the console: tokens, one-time links, sign-ins, and how often one may try."""

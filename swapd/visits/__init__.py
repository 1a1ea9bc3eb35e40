"""Who may come in at the console: tokens, one-time links, visits, and how often one may try."""

"""How bytes cross between the processes of one host: sockets, locks, and the shared arena."""

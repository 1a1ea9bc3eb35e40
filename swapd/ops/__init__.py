"""The operator's socket: commands and state events over ZeroMQ, and the one client for both."""

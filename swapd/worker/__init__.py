"""The process that runs one engine on one device: engine thread, copy threads, and the Trio link."""

"""What an owner may change of the configuration from the console: shown, tried out, and saved to the file."""

"""Evidence that two workers may hand generations to each other."""

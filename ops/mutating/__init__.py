"""Mutation testing of the rules that must not be wrong: small changes that some test has to notice."""

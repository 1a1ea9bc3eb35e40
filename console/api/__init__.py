"""The JSON routes, one module a noun."""

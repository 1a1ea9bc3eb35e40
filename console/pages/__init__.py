"""The pages for people, one module a page."""

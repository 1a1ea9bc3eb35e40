"""A session: its record, the states it may be in, and the text made from its tokens."""

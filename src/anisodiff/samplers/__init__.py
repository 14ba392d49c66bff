"""Backward in time: from a terminal state to an image."""

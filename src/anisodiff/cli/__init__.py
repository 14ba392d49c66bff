"""The command ``anisodiff``: one file a verb. Only here are names turned into objects."""

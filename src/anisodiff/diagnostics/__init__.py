"""Looking at processes: figures, and measurements of what they remember."""

"""Reading and writing: pictures, figures, checkpoints, files that are never half written."""

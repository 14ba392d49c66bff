"""How and where work runs: devices, CUDA graphs, several processes, progress, errors as one line."""

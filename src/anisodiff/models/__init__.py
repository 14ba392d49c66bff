"""Models: a network with its preconditioning, its loss, and the predictions that samplers use."""

"""Models: a network with its preconditioning, its loss and what samplers ask of it."""

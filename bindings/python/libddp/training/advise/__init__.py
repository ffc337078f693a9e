"""python -m libddp.training.advise: why a program's training step is slow, and what would help, measured on the running program."""

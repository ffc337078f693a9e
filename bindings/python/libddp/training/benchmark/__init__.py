"""`python -m libddp.training.benchmark`: what a training step costs with averages by all_reduce and by a parameter server."""

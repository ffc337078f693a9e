"""What training scripts use of mpi4py, on libddp: write `from libddp.mpi import MPI` for `from mpi4py import MPI`.

Needs no MPI. docs/howto/mpi4py.md lists what is supported.
"""

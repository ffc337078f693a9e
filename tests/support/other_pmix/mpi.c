// An MPI that links the PMIx beside it (run path) and works with no other.
int PMIx_Only_in_the_other(void);
int mpi_answer(void) { return PMIx_Only_in_the_other(); }

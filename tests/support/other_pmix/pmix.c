// A PMIx of another release under the same name (libpmix.so.2), as an MPI may bring it: it has a function that the
// system's lacks, and lacks functions that libddp needs.
int PMIx_Init(void) { return -1; }
const char* PMIx_Get_version(void) { return "OtherPMIx 9"; }
int PMIx_Only_in_the_other(void) { return 42; }

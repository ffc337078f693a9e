// An MPI program without libddp: each rank says its place in MPI_COMM_WORLD and on its node, and the sum of all ranks.
// Usage: mpi_sum [abort]. "abort": rank 1 then calls MPI_Abort(7), the others wait to be ended.
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char** argv) {
  int rank, size, sum, local;
  MPI_Comm node;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
  MPI_Comm_size(node, &local);
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  printf("SUM %d of %d is %d, %d on the node\n", rank, size, sum, local);
  fflush(stdout);
  if (argc > 1 && strcmp(argv[1], "abort") == 0) {
    if (rank == 1) MPI_Abort(MPI_COMM_WORLD, 7);
    sleep(600);
  }
  return MPI_Finalize();
}

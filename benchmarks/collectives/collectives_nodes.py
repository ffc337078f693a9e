#!/usr/bin/env python3
"""Compares the collectives of libddp, Open MPI and MPICH over TCP, and PyTorch's gloo, on four nodes and on two; prints Markdown.

    collectives_nodes.py BIN [--rounds N] [--milliseconds N] [--most BYTES]      BIN: the folder of the benchmark programs

Runs where srun works; all nodes must see BIN. Every round starts each library once, in rotating order.
"""

import contenders
from contenders import GLOO, KIB, MIB, MPICH, OPEN_MPI, OURS
from measuring import output, parser

PLACEMENTS = ((4, 1), (4, 2), (2, 1))  # nodes, ranks a node; two ranks play ping-pong, too
SIZES = (8, KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
STORE_PORT = "29511"


def commands(binaries, nodes, per_node):
    srun = ["srun", f"-N{nodes}", f"-n{nodes * per_node}", "--cpu-bind=none"]
    first = output(["srun", "-N1", "-n1", "hostname"], contenders.PROGRAM_LIMIT_S).strip()
    torch_start = ('export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS MASTER_ADDR=' + first +
                   f' MASTER_PORT={STORE_PORT}; exec "$@"')
    launchers = {
        OURS: ([*srun, "--mpi=pmix"], {}),
        # ob1 over TCP between nodes and shared memory within them: without it, Open MPI looks for fabrics
        OPEN_MPI: ([*srun, "--mpi=pmix"], {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,vader,tcp",
                                           "OMPI_MCA_btl_tcp_if_include": "eth0", "OMPI_MCA_mpi_yield_when_idle": "1"}),
        # Debian's knows no PMIx. UCX serves it between nodes, and would take nodes of one machine for one.
        MPICH: ([*srun, "--mpi=pmi2"], {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}),
        GLOO: ([*srun, "--mpi=none", "bash", "-c", torch_start, "torch"], {"OMP_NUM_THREADS": "1",
                                                                          "GLOO_SOCKET_IFNAME": "eth0"}),
    }
    return {name: ([*launchers[name][0], *program], launchers[name][1])
            for name, program in contenders.programs(binaries).items() if name in launchers}


def main():
    line = parser(__doc__, 5)
    line.add_argument("--milliseconds", type=float, default=5, help="of a sample")
    line.add_argument("--most", type=int, default=SIZES[-1], help="the greatest size")
    options = line.parse_args()
    sizes = [size for size in SIZES if size <= options.most]
    print(f"libddp's backend: {contenders.BACKEND}. Microseconds per call of the slowest rank: median (quartiles) of "
          f"{options.rounds} starts of each library in turn, of each the least of several samples. Ratios: libddp's time to "
          "the other's.")
    for nodes, per_node in PLACEMENTS:
        times = contenders.measure(commands(options.binaries, nodes, per_node), options.rounds,
                                   options.milliseconds, f"{nodes} nodes of {per_node}", sizes)
        print(f"\n### {nodes} nodes of {per_node}\n\nAt most Open MPI's time:\n")
        print("\n".join(contenders.targets_of_open_mpi(times, lambda size: 1.0)) + "\n")
        print(contenders.time_table(times), flush=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""What a rank of libddp costs as ranks become more: connections, memory, the first collective. Prints Markdown.

    collectives_growth.py BIN [--rounds N] [--most RANKS]      BIN: the folder of the benchmark programs

Runs where srun works; all nodes must see BIN. Up to 64 ranks are on one node, more on nodes of 64.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from measuring import parser, reports  # noqa: E402
from spread import Spread, table  # noqa: E402

WORLDS = (8, 32, 64, 128, 256, 512)
PER_NODE = 64
JOB_LIMIT_S = 500
BACKEND = os.environ.get("DDP_BACKEND", "auto")


def run_job(binaries, ranks):
    nodes = -(-ranks // PER_NODE)
    line = ["srun", f"-N{nodes}", f"-n{ranks}", "--cpu-bind=none", "--mpi=pmix", binaries / "bench_collectives_growth"]
    found = reports(line, JOB_LIMIT_S)
    if len(found) != 1:
        sys.exit(f"{' '.join(map(str, line))}: {len(found)} lines")
    return found[0]


def main():
    line = parser(__doc__, 3)
    line.add_argument("--most", type=int, default=WORLDS[-1])
    options = line.parse_args()
    rows = []
    for ranks in (world for world in WORLDS if world <= options.most):
        jobs = [run_job(options.binaries, ranks) for _ in range(options.rounds)]
        print(f"collectives_growth: {ranks} ranks", file=sys.stderr)

        def mean_and_most(name, factor=1.0, digits=0, jobs=jobs):
            mean, most = (Spread([job[name][i] for job in jobs]).median * factor for i in (0, 1))
            return f"{mean:.{digits}f}, {most:.{digits}f}"
        rows.append([f"{ranks} on {jobs[0]['nodes']}",
                     *(mean_and_most(name) for name in ("connections_after_first", "connections")),
                     *(mean_and_most(name, 1 / 1024, 1) for name in ("shared_own_kib", "shared_mapped_kib", "own_kib")),
                     *(mean_and_most(name, 1, 1) for name in ("group_ms", "first_ms", "second_ms"))])
    print(f"libddp's backend: {BACKEND}. Mean and greatest of the ranks; the median of {options.rounds} jobs. Connections: "
          "TCP, after the first all_reduce and after all operations of 64 B and 1 MiB. Memory in MiB: shared with other ranks, "
          "by its share (Pss) and as mapped; all of the process, by its share. Times in ms on an oversubscribed machine: from "
          "the end of World::init until the group is made, until its first all_reduce is done; the second all_reduce.\n")
    print(table(["ranks on nodes", "connections, first", "connections, all", "shared, share", "shared, mapped",
                 "memory, share", "group", "first all_reduce", "second"], rows))


if __name__ == "__main__":
    main()

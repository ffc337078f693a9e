#!/usr/bin/env python3
"""Compares what every rank's World says with what the launcher told the same task.

Reads, on standard input, for each rank one line
    TASK <rank> <local rank> <node number or -> <host>
that a shell wrote from the launcher's own variables, and one line `WORLD {json}` of rank_program. Prints what differs and
exits 1, or prints one line and exits 0.
  check_world.py WORLD_SIZE SOURCE [RANKS_PER_NODE,...]
The last argument is the expected number of ranks on each node, in node order, as a check on the launcher itself.
"""
import json
import sys


def main() -> int:
    world_size, source = int(sys.argv[1]), sys.argv[2]
    per_node = [int(n) for n in sys.argv[3].split(",")] if len(sys.argv) > 3 else None
    tasks, worlds, other = {}, {}, []
    for line in sys.stdin:
        words = line.split()
        if words[:1] == ["TASK"]:
            tasks[int(words[1])] = words[2:]
        elif words[:1] == ["WORLD"]:
            world = json.loads(line[len("WORLD "):])
            worlds[world["rank"]] = world
        elif words[:1] != ["DONE"]:
            other.append(line.rstrip())
    problems = []
    ranks = list(range(world_size))
    if sorted(tasks) != ranks or sorted(worlds) != ranks:
        problems.append(f"tasks {sorted(tasks)} and worlds {sorted(worlds)}, not {ranks}")
    else:
        hosts = [tasks[rank][2] for rank in ranks]
        local_ranks = [int(tasks[rank][0]) for rank in ranks]
        nodes = [tasks[rank][1] for rank in ranks]
        # a launcher that does not number nodes: by first appearance of the host
        order = list(dict.fromkeys(hosts))
        nodes = [order.index(host) if node == "-" else int(node) for node, host in zip(nodes, hosts)]
        if per_node and [nodes.count(node) for node in range(len(per_node))] != per_node:
            problems.append(f"the launcher placed ranks on nodes {nodes}, not {per_node} a node")
        for rank in ranks:
            expected = {
                "rank": rank,
                "world_size": world_size,
                "local_rank": local_ranks[rank],
                "local_world_size": nodes.count(nodes[rank]),
                "node_rank": nodes[rank],
                "num_nodes": len(set(nodes)),
                "node_of": nodes,
                "local_rank_of": local_ranks,
                "node_hosts": [hosts[nodes.index(node)] for node in range(len(set(nodes)))],
                "source": source,
            }
            for key, value in expected.items():
                if worlds[rank][key] != value:
                    problems.append(f"rank {rank}: {key} is {worlds[rank][key]}, not {value}")
    for problem in problems:
        print(problem)
    if problems:
        print(*other, sep="\n")
        return 1
    print(f"{world_size} ranks by {source} on {worlds[0]['num_nodes']} nodes agree")
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Compares the environment that `srun --ddp` gave to tasks with what Slurm says of them.

    check_step_environment.py WORLD_SIZE NUM_NODES      with the tasks' output on standard input

Each task has written one line: "ENV <host> NAME=VALUE ...", with SLURM_* and the plugin's variables.
"""

import collections
import sys


def main():
    world_size, num_nodes = int(sys.argv[1]), int(sys.argv[2])
    other, tasks, hosts, problems = [], [], [], []
    for line in sys.stdin:
        # Behind a warning or another task's end of line.
        _, found, facts = line.rstrip("\n").partition("ENV ")
        if not found:
            other.append(line.rstrip("\n"))
            continue
        host, *variables = facts.split()
        hosts.append(host)
        tasks.append(dict(variable.split("=", 1) for variable in variables))
    per_host = collections.Counter(hosts)
    if len(tasks) != world_size or len(per_host) != num_nodes:
        problems.append(f"{len(tasks)} tasks on {len(per_host)} hosts, not {world_size} on {num_nodes}")
    # n0 is 10.78.0.1 (slurm_cluster)
    firsts = [host for host, task in zip(hosts, tasks) if task.get("SLURM_PROCID") == "0"]
    address_of_rank_0 = f"10.78.0.{int(firsts[0][1:]) + 1}" if firsts else None
    for host, task in zip(hosts, tasks):
        rank, node = task.get("SLURM_PROCID"), task.get("SLURM_NODEID")
        expected = {
            "RANK": rank,
            "ROLE_RANK": rank,
            "WORLD_SIZE": str(world_size),
            "ROLE_WORLD_SIZE": task.get("SLURM_STEP_NUM_TASKS"),
            "LOCAL_RANK": task.get("SLURM_LOCALID"),
            "LOCAL_WORLD_SIZE": str(per_host[host]),
            "GROUP_RANK": node,
            "GROUP_WORLD_SIZE": str(num_nodes),
            "ROLE_NAME": "default",
            "TORCHELASTIC_RUN_ID": f"{task.get('SLURM_JOB_ID')}.{task.get('SLURM_STEP_ID')}",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "MASTER_ADDR": address_of_rank_0,
            "MASTER_PORT": tasks[0].get("MASTER_PORT"),
            "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
            "TORCHELASTIC_ERROR_FILE": "",
            "SLURM_DDP_STEP": None,
        }
        for name, value in expected.items():
            if task.get(name) != value:
                problems.append(f"task {rank} on {host}: {name} is {task.get(name)}, not {value}")
        if not task.get("MASTER_PORT", "").isdigit():
            problems.append(f"task {rank} on {host}: MASTER_PORT is {task.get('MASTER_PORT')}")
    ranks = sorted(int(task.get("RANK", -1)) for task in tasks)
    if ranks != list(range(world_size)):
        problems.append(f"the ranks are {ranks}")
    local = sorted((host, task.get("LOCAL_RANK")) for host, task in zip(hosts, tasks))
    if len(set(local)) != len(local):
        problems.append(f"local ranks are not those of one host: {local}")
    for problem in problems:
        print(problem)
    if problems:
        print(*other, sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

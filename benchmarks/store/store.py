#!/usr/bin/env python3
"""Measures ddprun's TCPStore server beside torch's, driven by the same clients. Prints Markdown.

    store.py BIN [--rounds N]      BIN: the folder of store_server_main and bench_store_clients

torch comes from the interpreter in DDP_TORCH_PYTHON (default: python3). Every round runs the clients once against each
server, in alternating order; the servers stay up.
"""

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from measuring import TORCH_PYTHON, arguments, in_turn, reports  # noqa: E402
from spread import Ratio, Spread, table  # noqa: E402

CONNECTIONS = (1, 64)
OPERATIONS = 10_000
RANKS = (64, 256, 512)
EXCHANGE_ROUNDS = 5
KINDS = ("set", "get", "add", "wait")
# Limit for one run of the clients. A healthy one takes about a second.
RUN_LIMIT_S = 300

TORCH_SERVER = """
import sys, torch, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, use_libuv=True, wait_for_workers=False)
print(store.port, torch.__version__, flush=True)
sys.stdin.read()
"""

OURS, TORCH = "libddp", "torch"


class Server:
    def __init__(self, line):
        self.process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        answer = self.process.stdout.readline().split()
        if not answer:
            sys.exit(f"{line[0]}: the server did not start")
        self.port, self.version = answer[0], " ".join(answer[1:])

    def cpu_seconds(self):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self):
        self.process.stdin.close()
        self.process.wait(30)


def run_clients(binaries, server, connections, what=str(OPERATIONS)):
    """Seconds per kind of operation, and the server's CPU seconds for all."""
    line = [binaries / "bench_store_clients", server.port, str(connections), what]
    before = server.cpu_seconds()
    [seconds] = reports(line, RUN_LIMIT_S)
    return {**seconds, "cpu": server.cpu_seconds() - before}


def rows(results, connections):
    done = OPERATIONS // connections * connections
    clients = "1 client" if connections == 1 else f"{connections} clients"
    for kind in KINDS:
        per_second = {name: [done / one[kind] for one in results[name]] for name in results}
        yield [f"{clients}, {kind}", *(Spread(per_second[name]).scaled(1e-3, 1) for name in (TORCH, OURS)),
               str(Ratio(per_second[OURS], per_second[TORCH]))]
    # counts the pings, too
    cpu = {name: [one["cpu"] / (len(KINDS) + 1) / done for one in results[name]] for name in results}
    yield [f"{clients}, CPU µs per operation", *(Spread(cpu[name]).scaled(1e6, 1) for name in (TORCH, OURS)),
           str(Ratio(cpu[OURS], cpu[TORCH]))]


def exchange_rows(binaries, servers):
    """All ranks learn a value of each: a request for each value, and pages, in turn in each run."""
    for ranks in RANKS:
        for name in (OURS, TORCH):
            runs = [run_clients(binaries, servers[name], ranks, "exchange") for _ in range(EXCHANGE_ROUNDS)]
            gets, pages = ([run[kind] for run in runs] for kind in ("gets", "pages"))
            yield [f"{ranks} ranks, {name}'s server", Spread(gets).scaled(1e3, 0), Spread(pages).scaled(1e3, 0),
                   str(Ratio(pages, gets))]
        print(f"store: exchange of {ranks} ranks", file=sys.stderr)


def main():
    options = arguments(__doc__, 15)
    binaries = options.binaries
    servers = {OURS: Server([str(binaries / "store_server_main")]), TORCH: Server([TORCH_PYTHON, "-c", TORCH_SERVER])}
    lines = []
    for connections in CONNECTIONS:
        lines += rows(in_turn(lambda name: run_clients(binaries, servers[name], connections), servers, options.rounds,
                              f"store: {connections} clients"), connections)
    print(f"{OPERATIONS} operations of each kind over loopback, in thousands per second: median (quartiles) of "
          f"{options.rounds} rounds. torch is {servers[TORCH].version} with libuv. Ratio: libddp to torch; above 1 is "
          "faster, for CPU time below 1 is less.\n")
    print(table(["", "torch", "libddp", "ratio"], lines))
    print(f"\nUntil each rank has a value of 128 bytes from each, in ms: median (quartiles) of {EXCHANGE_ROUNDS} runs. By "
          "gets: a CHECK and a GET for each value, as libddp did; in pages: a CHECK and a MULTI_GET for 64 values.\n")
    print(table(["", "by gets", "in pages", "ratio"], exchange_rows(binaries, servers)))
    for server in servers.values():
        server.close()


if __name__ == "__main__":
    main()

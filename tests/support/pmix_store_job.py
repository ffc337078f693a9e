"""Ranks under ddprun that meet by init_method="pmix://"; what another user (uid 65534) finds there.

    pmix_store_job.py own|launchers|sealed [FILE]
"""

import os
import socket
import subprocess
import sys

STRANGER = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 10) as client:
    client.settimeout(30)
    try:
        client.sendall(b"\\x00\\xce\\xf7\\x85\\x3c" + b"\\r" + bytes.fromhex("67120000"))  # VALIDATE and PING, as a client begins
        answer = client.recv(4)
    except OSError:
        answer = b""
print("SERVED" if answer == bytes.fromhex("67120000") else "REFUSED")
"""


def ask(address, port, *user):
    done = subprocess.run([*user, sys.executable, "-c", STRANGER, address, str(port)], capture_output=True, text=True, timeout=60)
    return done.stdout.strip() or done.stderr


def listeners(process):
    """Ports on which a process listens."""
    inodes = set()
    for number in os.listdir(f"/proc/{process}/fd"):
        try:
            inodes.add(os.readlink(f"/proc/{process}/fd/{number}"))
        except OSError:
            pass
    rows = [line.split() for name in ("tcp", "tcp6") for line in open(f"/proc/net/{name}").readlines()[1:]]
    return {int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes}


def main():
    what = sys.argv[1]
    if what == "own":  # as under srun --mpi=pmix, mpirun
        for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"):
            os.environ.pop(name, None)
    import torch
    import torch.distributed as dist

    import libddp
    import libddp.torch
    if what == "sealed":
        known = len(sys.argv) > 3
        world = libddp.init() if known else None
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("ddp", store=dist.FileStore(sys.argv[2], size), rank=rank, world_size=size)
        group = dist.new_group(list(range(size))[::-1], backend="ddp")
        values = [torch.ones(3), torch.ones(3)]
        dist.all_reduce(values[0])
        dist.all_reduce(values[1], group=group)
        assert all(value.sum() == 3 * size for value in values)
        if rank == 0:  # before the last rank to end removes it
            with open(sys.argv[2], "rb") as file, open(sys.argv[2] + ".seen", "wb") as seen:
                seen.write(file.read())
        print(f"ADDED {rank} {world is not None}\n", end="", flush=True)
        dist.barrier()
        return
    before = listeners(os.getpid())
    dist.init_process_group("gloo", init_method="pmix://")
    rank, size = dist.get_rank(), dist.get_world_size()
    served = libddp.torch._stores[-1][1]
    value = torch.ones(3)
    dist.all_reduce(value)
    assert value.sum() == 3 * size
    print(f"MET {rank} {served.of_launcher} {ask(served.address, served.port)}\n", end="", flush=True)
    if os.geteuid() == 0:
        others = ask(served.address, served.port, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
        print(f"OTHERS {rank} {others}\n", end="", flush=True)
    if what == "launchers":
        assert (served.address, str(served.port)) == (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"])
        assert socket.gethostname() and served.port not in listeners(os.getpid()) - before
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method="pmix://")  # once more, by the same store
    group = dist.new_group([size - 1, 0])
    dist.all_reduce(value, group=group)
    assert libddp.torch._stores[-1][1] is served and len(libddp.torch._stores) == 1
    dist.destroy_process_group()
    print(f"AGAIN {rank}\n", end="", flush=True)


main()

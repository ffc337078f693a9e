"""A small client of PyTorch's c10d store protocol, for tests where importing torch would take longer than the test.

    c10d_client.py [ROUNDS]     with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment

In each round every rank sets a key to a value of its step, waits for those of all ranks, compares them, and meets the
others at a counter. Prints "STORE <rank> <port> <rounds>" when all was right.
"""

import os
import socket
import struct
import sys
import time

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
STEP = f"{os.environ['SLURM_JOB_ID']}.{os.environ['SLURM_STEP_ID']}"
LIMIT_SECONDS = 30


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


class Store:
    def __init__(self):
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self.socket = socket.create_connection(address, LIMIT_SECONDS)
        self.socket.sendall(b"\x00" + struct.pack("<I", 0x3C85F7CE))

    def receive(self, count):
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise ConnectionError("the store closed the connection")
            data += more
        return data

    def set(self, key, value):
        self.socket.sendall(b"\x01" + text(key) + text(value))

    def wait(self, key):
        self.socket.sendall(b"\x06" + struct.pack("<Q", 1) + text(key))
        assert self.receive(1) == b"\x00"

    def get(self, key):
        self.wait(key)
        self.socket.sendall(b"\x03" + text(key))
        return self.receive(struct.unpack("<Q", self.receive(8))[0]).decode()

    def add(self, key, amount):
        self.socket.sendall(b"\x04" + text(key) + struct.pack("<q", amount))
        return struct.unpack("<q", self.receive(8))[0]


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    store = Store()
    for number in range(rounds):
        assert store.add(f"visits/{number}/{RANK}", 1) == 1, "somebody else was here"
        store.set(f"{number}/{RANK}", f"{STEP} {RANK * 7}")
        for rank in range(SIZE):
            value = store.get(f"{number}/{rank}")
            assert value == f"{STEP} {rank * 7}", f"rank {rank} of step {STEP} left {value!r}"
        deadline = time.monotonic() + LIMIT_SECONDS
        store.add(f"met/{number}", 1)
        while store.add(f"met/{number}", 0) < SIZE:
            assert time.monotonic() < deadline, f"not all ranks came to round {number}"
            time.sleep(0.01)
    print(f"STORE {RANK} {os.environ['MASTER_PORT']} {rounds}", flush=True)


if __name__ == "__main__":
    main()

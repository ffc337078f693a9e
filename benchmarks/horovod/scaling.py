"""A model, not a measurement: how much of a step is computation at 8 to 512 GPUs, where the machines of Horovod's benchmarks exchange
gradients by Horovod's ring, or by libddp's buckets and all_reduce.

Of both: servers of 4 GPUs with one network interface, through which 2 (N - 1) / N of the gradients go for N servers; and for each
exchange its rounds, each with the network's latency.
- Horovod: a ring of all ranks, 2 (ranks - 1) rounds; what is ready at the end of a cycle is fused, up to 64 MiB (its default then).
- libddp: buckets of 25 MiB, a first one of 1 MiB, in the order of the backward pass; leaders of the servers exchange directly, in 2
  rounds, and with their ranks in memory in 2 more, of a tenth of the latency.
Gradients come evenly over the backward pass but for the fully connected layers, which come first; one exchange at a time.
Published: docs/benchmarks.rst of Horovod, 128 servers of 4 Pascal GPUs, 25 Gbit/s, RoCE.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from spread import table  # noqa: E402

GPUS = 4
BYTES_PER_S = 25e9 / 8
LATENCY_S = 10e-6  # of a message over RDMA, with what is around it
CYCLE_S = 5e-3  # Horovod's, when its benchmarks were made
MIB = 2**20
WORLDS = (8, 32, 128, 512)
# Millions of parameters, of which in fully connected layers at the end; images/s of one P100, 64 at a time (the benchmarks of
# tensorflow.org of 2017; ResNet-101 between those of ResNet-50 and ResNet-152); Horovod's published efficiency.
NETWORKS = {"Inception V3": (27.2, 2.0, 142, 0.90), "ResNet-101": (44.5, 2.0, 135, 0.90), "VGG-16": (138.3, 123.6, 154, 0.68)}
BATCH = 64
FULLY_CONNECTED = 0.05  # of the backward pass


def arrivals(elements, last, backward):
    """(seconds, bytes) of portions of 1 MiB: when the backward pass has made them."""
    whole, first = elements * 4e6, last * 4e6
    portions = []
    for number in range(int(whole // MIB) + 1):
        place = number * MIB
        at = place / first * FULLY_CONNECTED if place < first else FULLY_CONNECTED + (place - first) / (whole - first) * (1 - FULLY_CONNECTED)
        portions.append((at * backward, min(MIB, whole - place)))
    return portions


def exchange(size, ranks, rounds):
    servers = max(ranks // GPUS, 1)
    return rounds * LATENCY_S + 2 * (servers - 1) / servers * size / BYTES_PER_S


def horovods_end(portions, ranks):
    """When the last exchange has ended: each takes what has come by its cycle."""
    now, left = 0.0, list(portions)
    while left:
        ready = [size for at, size in left if at <= now]
        taken = ready[:64]
        if taken:
            now += exchange(sum(taken), ranks, 2 * (ranks - 1))
            left = left[len(taken):]
        now = (int(now / CYCLE_S + 1e-9) + 1) * CYCLE_S  # its next cycle
    return now


def libddps_end(portions, ranks):
    now, bucket, limit = 0.0, 0.0, 1 * MIB
    for number, (at, size) in enumerate(portions):
        bucket += size
        if bucket >= limit or number == len(portions) - 1:
            now = max(now, at) + exchange(bucket, ranks, 2.2)
            bucket, limit = 0.0, 25 * MIB
    return now


def efficiencies(network, ranks):
    """(Horovod's, libddp's)"""
    elements, last, images, _ = NETWORKS[network]
    step = BATCH / images
    backward = step * 2 / 3
    portions = arrivals(elements, last, backward)
    return tuple(step / (step - backward + max(end(portions, ranks), backward)) for end in (horovods_end, libddps_end))


def page():
    rows = []
    for network, (*_, published) in NETWORKS.items():
        found = [efficiencies(network, ranks) for ranks in WORLDS]
        for place, name in enumerate(("Horovod's ring", "libddp")):
            rows.append([f"{network}, {name}", *(f"{each[place] * 100:.0f}" for each in found), f"{published * 100:.0f}"])
    return ("### Scaling by a model\n\nPer cent of linear, 25 Gbit/s for each server of 4 GPUs, no hardware: "
            "[scaling.py](scaling.py).\n\n" + table(["", *(f"{ranks} GPUs" for ranks in WORLDS), "Horovod, published, 512"], rows) + "\n")


if __name__ == "__main__":
    print(page())

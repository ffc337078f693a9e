#!/usr/bin/env python3
"""Compares libddp's DistributedDataParallel with PyTorch's: sizes of buckets, hooks, memory. Prints Markdown.

    ddp_options.py BIN [--rounds N]      BIN: the folder of ddprun; the package: scripts/python-package

On 2 ranks, with ResNet-50's parameters.
"""

from jobs import BARE, CONTENDERS, OURS, TITLES, TORCH_GLOO, above, column, ms, run
from measuring import arguments
from spread import Ratio, table

SHAPES, RANKS, SECONDS, STEPS = "resnet50", 2, 0.15, 2
CAPS_MIB = (1, 5, 10, 25, 50)
HOOKS = ("none", "float16, built in", "float16", "bfloat16")
BUCKET_MIB = 25
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536"}  # glibc keeps no freed gradients: resident is what is used


def grid(report, choices):
    """A row for each choice: the steps of all contenders that take it, and libddp's ratio to torch on gloo."""
    for choice in choices:
        keys = [f"{name} {choice}" for name in CONTENDERS]
        taken = [key in report["rounds"][0] for key in keys]
        yield [str(choice), *(ms(column(report, key)) if known else "refused" for key, known in zip(keys, taken)),
               *(ms(above(report, key, BARE)) if known else "" for key, known in zip(keys, taken)),
               str(Ratio(column(report, f"{OURS} {choice}"), column(report, f"{TORCH_GLOO} {choice}"))) if all(taken) else ""]


def header(first):
    return [first, *TITLES.values(), *(f"{title}: exposed" for title in TITLES.values()), "libddp to gloo"]


def main():
    options = arguments(__doc__, 5)
    binaries = options.binaries
    workload = {"shapes": SHAPES, "seconds": SECONDS, "steps": STEPS, "rounds": options.rounds}
    caps = run(binaries, RANKS, "bucket_caps", caps=CAPS_MIB, **workload)
    hooks = run(binaries, RANKS, "hooks", names=HOOKS, **workload)
    peaks = {name: run(binaries, RANKS, "memory", GIVE_BACK, shapes=SHAPES, contender=name, view=True)["peak"] / 1024
             for name in (BARE, *CONTENDERS)}
    extra = {name: peaks[name] - peaks[BARE] for name in CONTENDERS}

    print(f"ResNet-50's parameters on {RANKS} ranks, backward pass of {SECONDS * 1e3:.0f} ms. Milliseconds of a step of the slowest rank, and "
          f"how much longer than without DDP: median (quartiles) of {options.rounds} rounds, contenders in turn in each.\n\n### bucket_cap_mb\n")
    print(table(header("MiB"), grid(caps, CAPS_MIB)))
    print("\n### Hooks\n")
    print(table(header("hook"), grid(hooks, HOOKS)))

    met = "met" if extra[OURS] <= BUCKET_MIB else "missed"
    print(f"\n### Memory\n\nMost resident memory during steps, MiB more than without DDP, of rank 0, with gradient_as_bucket_view. libddp's DDP: "
          f"at most one bucket ({BUCKET_MIB} MiB): {met}.\n")
    print(table(["", "MiB"], [[TITLES[name], f"{extra[name]:.0f}"] for name in CONTENDERS]))


if __name__ == "__main__":
    main()

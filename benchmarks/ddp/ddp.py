#!/usr/bin/env python3
"""Compares libddp's DistributedDataParallel with PyTorch's, on "ddp" and on gloo: communication that stays visible. Prints Markdown.

    ddp.py BIN [--rounds N]      BIN: the folder of ddprun; the package: scripts/python-package

Parameters have the shapes of real networks; instead of computing, the backward pass sleeps for a fixed time, as if a device
computed. DDP_TORCH_PYTHON: an interpreter with torch.
"""

from jobs import BARE, CONTENDERS, OTHERS, OURS, TITLES, TORCH_DDP, TORCH_GLOO, above, column, ms, never_slower, run
from measuring import arguments
from spread import Ratio, Spread, table

TARGET = 0.8  # of torch's DDP on "ddp": its exposed communication to that on gloo


def rows_of(report):
    """Exposed: longer than the same loop without DDP. Alone: the same of steps that compute nothing."""
    bare = column(report, BARE)
    yield ["no DDP", ms(bare), "", "", "", ""]
    for name in CONTENDERS:
        exposed, alone = above(report, name, BARE), above(report, f"{name} alone", f"{BARE} alone")
        hidden = Spread([1 - a / b for a, b in zip(exposed, alone)]).scaled(100, 0)
        ratio = str(Ratio(column(report, OURS), column(report, name))) if name in OTHERS else ""
        yield [TITLES[name], ms(column(report, name)), ms(exposed), ms(alone), hidden, ratio]


def compare(title, shapes, worlds, seconds, steps, options, nodes=1):
    """worlds: numbers of ranks; seconds: of the backward pass; steps: of each contender in a round."""
    reports = [(f"{title}, {ranks} ranks",
                run(options.binaries, ranks, "exposed", nodes=nodes, shapes=shapes, seconds=seconds, steps=steps,
                    rounds=options.rounds))
               for ranks in worlds]
    print(f"Milliseconds of a step of the slowest rank: median (quartiles) of {options.rounds} rounds, contenders in turn in each. "
          "Ratios: libddp's time to the other's.\n\nlibddp's DDP takes no longer than the best of the others:\n")
    print("\n".join(never_slower(report, title) for title, report in reports))
    print(f"\ntorch's DDP on \"ddp\" exposes at most {TARGET} of the communication that it does on gloo:\n")
    for title, report in reports:
        ratio = Ratio(above(report, TORCH_DDP, BARE), above(report, TORCH_GLOO, BARE))
        print(f"- {title}: {'met' if ratio.of_medians <= TARGET else 'missed'}, {ratio}")
    for title, report in reports:
        print(f"\n### {title}: {report['tensors']} parameters of {report['elements'] / 1e6:.1f} million float32, "
              f"whose layers sleep {seconds * 1e3:.0f} ms\n")
        print(table(["", "a step", "of it exposed communication", "communication alone", "hidden %", "libddp to it"], rows_of(report)))


if __name__ == "__main__":
    compare("ResNet-50", "resnet50", (2, 4), 0.15, 3, arguments(__doc__, 5))

#!/usr/bin/env python3
"""Compares libddp's DistributedDataParallel with PyTorch's: small networks that compute, and many small parameters. Prints Markdown.

    ddp_networks.py BIN [--rounds N]      BIN: the folder of ddprun; the package: scripts/python-package
"""

from jobs import BARE, CONTENDERS, OTHERS, OURS, TITLES, above, column, ms, never_slower, run
from measuring import arguments
from spread import Ratio, Spread, table

NETWORKS = ("ResNet-18", "GPT")
WORLDS = (2, 4)
STEPS = 3
MANY, MANY_STEPS, MANY_ROUNDS = 1000, 5, 41
STEP_S = 0.05  # whose 1 % may be the wrapper's


def rows_of(report):
    yield ["no DDP", ms(column(report, BARE)), "", ""]
    for name in CONTENDERS:
        ratio = str(Ratio(column(report, OURS), column(report, name))) if name in OTHERS else ""
        yield [TITLES[name], ms(column(report, name)), ms(above(report, name, BARE)), ratio]


def compare_networks(networks, worlds, steps, options, nodes=1):
    reports = [(f"{network}, {ranks} ranks",
                run(options.binaries, ranks, "networks", nodes=nodes, network=network, steps=steps,
                    rounds=options.rounds))
               for network in networks for ranks in worlds]
    print(f"Milliseconds of a step, with the optimizer's, of the slowest rank: median (quartiles) of {options.rounds} rounds, contenders "
          "in turn in each. Ratios: libddp's time to the other's.\n\nlibddp's DDP takes no longer than the best of the others:\n")
    print("\n".join(never_slower(report, title) for title, report in reports))
    for title, report in reports:
        print(f"\n### {title}: {report['tensors']} parameters of {report['elements'] / 1e6:.1f} million float32\n")
        print(table(["", "a step", "above no DDP", "libddp to it"], rows_of(report)))


def main():
    options = arguments(__doc__, 9)
    compare_networks(NETWORKS, WORLDS, STEPS, options)
    single = run(options.binaries, 1, "one_rank", count=MANY, steps=MANY_STEPS, rounds=MANY_ROUNDS)
    costs = {name: above(single, name, BARE) for name in CONTENDERS}
    share = Spread(costs[OURS]).median / STEP_S
    print(f"\n### One rank, {MANY} parameters of 16 elements\n\nA forward and backward pass that computes next to nothing; median "
          f"(quartiles) of {MANY_ROUNDS} rounds. Less than 1 % of a step of {STEP_S * 1e3:.0f} ms: {'met' if share < 0.01 else 'missed'}, "
          f"{share * 100:.2f} %.\n")
    print(table(["", "µs of a step above no DDP", "ns of a parameter"],
                [[TITLES[name], Spread(cost).scaled(1e6, 0), Spread(cost).scaled(1e9 / MANY, 0)] for name, cost in costs.items()]))


if __name__ == "__main__":
    main()

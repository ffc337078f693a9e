#!/usr/bin/env python3
"""What the Reducer itself costs: communication hooks, and mark_ready. Prints Markdown.

    ddp_reducer.py BIN [--rounds N]      BIN: the folder of ddprun and bench_reducer
"""

import sys

from jobs import LIMIT_S, column, ms
from measuring import arguments, reports
from spread import Ratio, Spread, table

RANKS, STEPS = 2, 2
MARKS, MARK_STEPS, MARK_ROUNDS = 1000, 50, 21
PLAIN = "average"
TARGET_NS, STEP_S = 200, 0.05  # of a mark_ready; whose 1 % may be the Reducer's


def measured(binaries, ranks, *words):
    launcher = [binaries / "ddprun", "--standalone", f"--nproc-per-node={ranks}", "--bind=none"]
    found = reports([*launcher, binaries / "bench_reducer", *words], LIMIT_S)
    print(f"ddp: {words[0]} of {ranks} ranks", file=sys.stderr)
    return found[0]


def hook_rows(report):
    plain = column(report, PLAIN)
    for name, count in report["bytes"].items():
        times = column(report, name)
        yield [name, f"{count / 1e6:.2f}", f"{count / report['bytes'][PLAIN]:.3f}", ms(times),
               "" if name == PLAIN else str(Ratio(times, plain))]


def main():
    options = arguments(__doc__, 7)
    binaries = options.binaries
    hooks = measured(binaries, RANKS, "hooks", options.rounds, STEPS)
    marks = {ranks: measured(binaries, ranks, "marks", MARK_ROUNDS, MARK_STEPS) for ranks in (1, 2)}

    print(f"### Hooks, {RANKS} ranks\n\nResNet-50's gradients ({hooks['bytes'][PLAIN] / 4e6:.1f} million float32), all ready at once: nothing hides the exchange, which "
          f"is over shared memory. Median (quartiles) of {options.rounds} rounds, hooks in turn in each.\n")
    print(table(["hook", "MB that a rank contributes to operations", "to the average's", "ms a step", "to the average"], hook_rows(hooks)))

    alone = marks[1]
    met = {True: "met", False: "missed"}
    ns = Spread(column(alone, "marking")).median * 1e9 / MARKS
    share = Spread(column(alone, "step")).median / STEP_S
    print(f"\n### {MARKS} parameters of 16 elements\n\nMedian (quartiles) of {MARK_ROUNDS} rounds of {MARK_STEPS} steps. One rank: less than {TARGET_NS} ns a "
          f"mark_ready: {met[ns < TARGET_NS]}; less than 1 % of a step of {STEP_S * 1e3:.0f} ms: {met[share < 0.01]}, {share * 100:.2f} %.\n")
    print(table(["ranks", "ns a mark_ready", "µs a step"],
                [[str(ranks), Spread(column(report, "marking")).scaled(1e9 / MARKS, 0), Spread(column(report, "step")).scaled(1e6, 0)]
                 for ranks, report in marks.items()]))


if __name__ == "__main__":
    main()

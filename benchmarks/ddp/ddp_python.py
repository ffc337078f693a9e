#!/usr/bin/env python3
"""Measures what libddp takes in Python: import, init_process_group, small operations. Prints Markdown.

    ddp_python.py BIN [--rounds N]      BIN: the folder of ddprun; the package: scripts/python-package
"""

from jobs import LIMIT_S, TORCH_DDP, TORCH_GLOO, column, environment, ms, run
from measuring import TORCH_PYTHON, arguments, output
from spread import Ratio, Spread, table

IMPORTS, IMPORT_TARGET_S = 15, 0.05
TIMED_IMPORT = "import time; start = time.perf_counter(); import libddp; print(time.perf_counter() - start)"
RANKS_JOINING = 32
METHODS = ("env://", "pmix://")
SIZE, STEPS, SAMPLES = 1024, 500, 15


def import_s():
    return float(output([TORCH_PYTHON, "-c", TIMED_IMPORT], LIMIT_S, env=environment()))


def main():
    options = arguments(__doc__, 3)
    binaries = options.binaries
    imports = [import_s() for _ in range(IMPORTS + 1)][1:]  # the first reads the disk
    small = {ranks: run(binaries, ranks, "small_all_reduce", size=SIZE, steps=STEPS, rounds=SAMPLES) for ranks in (2, 4)}
    joined = [run(binaries, RANKS_JOINING, "joining", methods=METHODS[::-1] if turn % 2 else METHODS)["rounds"][0]
              for turn in range(options.rounds)]

    median = Spread(imports).median
    print(f"Median (quartiles).\n\n- `import libddp`, without torch: {ms(imports)} ms; target 50: "
          f"{'met' if median < IMPORT_TARGET_S else 'missed'}")
    pmix, env = ([each[method] for each in joined] for method in ("pmix://", "env://"))
    print(f"- `init_process_group(\"gloo\")` of {RANKS_JOINING} ranks, from the last rank's call to its end on all, {options.rounds} starts: "
          f"pmix:// {Spread(pmix).scaled(1, 2)} s, env:// {Spread(env).scaled(1, 2)} s, ratio {Ratio(pmix, env)}")
    print(f"\n### all_reduce of {SIZE} bytes, µs a call, {SAMPLES} rounds of {STEPS}\n")
    rows = []
    for name, title in (("libddp's own interface", "`group.all_reduce(...).wait()` of libddp"),
                        (TORCH_DDP, "`torch.distributed.all_reduce` on \"ddp\""), (TORCH_GLOO, "`torch.distributed.all_reduce` on gloo")):
        rows.append([title, *(Spread(column(report, name)).scaled(1e6, 1) for report in small.values()),
                     *(str(Ratio(column(report, name), column(report, TORCH_GLOO))) for report in small.values())])
    print(table(["", *(f"{ranks} ranks" for ranks in small), *(f"to gloo, {ranks} ranks" for ranks in small)], rows))


if __name__ == "__main__":
    main()

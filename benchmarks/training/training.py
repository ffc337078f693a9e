#!/usr/bin/env python3
"""Compares averages by a parameter server over libddp's groups, over torch RPC, by all_reduce, and none; and what a metric costs. Prints Markdown.

    training.py BIN [--rounds N]      BIN: the folder of ddprun; the package: scripts/python-package
"""

import json
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from measuring import arguments, output  # noqa: E402
from spread import Ratio, Spread, table  # noqa: E402

GROUP, RPC, ALL_REDUCE = "ddp_cpu_rpc@group", "ddp_cpu_rpc@rpc", "ddp_allreduce"
METRIC = "batch_level_metric,batch_all"
METRIC_COST = """
import json, time
from libddp.training import MetricsLogger
found = []
for _ in range(9):
    logger = MetricsLogger(0)
    began = time.process_time()
    for number in range(50000):
        logger.record_start("forward_metric", number, "forward_pass")
        logger.record_end("forward_metric", number)
    found.append((time.process_time() - began) / 50000)
print(json.dumps(found))
"""


def no_average(state, bucket):
    """A hook: what is left of a batch is the program's own."""
    import torch
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def run(*words):
    paths = f"{ROOT / 'build' / 'python' / 'site'}:{Path(__file__).parent}"
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    python = os.environ.get("DDP_TORCH_PYTHON", sys.executable)
    return output([python, *words], 3600, env=environment)


def main():
    options = arguments(__doc__, 5)
    times, alone = {GROUP: [], RPC: [], ALL_REDUCE: []}, []
    with tempfile.TemporaryDirectory() as folder:
        def measured(*words):
            run("-m", "libddp.training.benchmark", *words, "--epochs", 3, "--json", Path(folder, "t.json"))
            return {title: tables["all trainer"][METRIC]["p50"] for title, tables in json.loads(Path(folder, "t.json").read_text()).items()}
        for _ in range(options.rounds):
            for title, seconds in measured("--compare", ",".join(times)).items():
                times[title].append(seconds)
            alone += measured("--experiment", ALL_REDUCE, "--ddp-hook", "training:no_average").values()
    averaging = {title: [each - own for each, own in zip(found, alone)] for title, found in times.items()}
    rows = [[words, "ms", Spread(times[ours]).scaled(1e3, 1), Spread(times[theirs]).scaled(1e3, 1), str(Ratio(times[ours], times[theirs])), target]
            for ours, theirs, words, target in ((GROUP, RPC, "a batch by a server: over libddp's group; over torch RPC", "0.3"),
                                                (GROUP, ALL_REDUCE, 'the same; by allreduce_hook on "ddp"', "2.5"))]
    rows.append(["a batch less one without averages: libddp's group; torch RPC", "ms", Spread(averaging[GROUP]).scaled(1e3, 1),
                 Spread(averaging[RPC]).scaled(1e3, 1), str(Ratio(averaging[GROUP], averaging[RPC])), ""])
    print("DummyModel, 9.4 million parameters, 2 trainers, 1 server, batches of 8 samples, CPU; medians of a round's batches.\n")
    print(table(["", "unit", "the server's", "the other's", "ratio", "target"], rows) + "\n")
    print(f"A batch without averages took {Spread(alone).scaled(1e3, 1)} ms, {Ratio(alone, times[RPC])} of one by torch RPC.\n")
    cost = Spread(json.loads(run("-c", METRIC_COST)))
    print(f"record_start and record_end of one metric on the processor, {cost.scaled(1e6, 2)} us of processor time (target 1.5).")


if __name__ == "__main__":
    main()

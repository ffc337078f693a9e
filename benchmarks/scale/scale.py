#!/usr/bin/env python3
"""Measures what a job's coordinator sends and holds as the job grows, beside what a formula says. Prints Markdown.

    scale.py BIN [--rounds N]      BIN: the folder of bench_scale_swarm

The formula's constants come from jobs of at most 256 nodes; a larger job may differ from it by a quarter.
"""

import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from measuring import arguments, reports  # noqa: E402
from spread import table  # noqa: E402

# (nodes, ranks a node, bytes a rank contributes to a fence, names)
SMALL, MIDDLE, WIDE = (64, 1, 0, "ranges"), (256, 1, 0, "ranges"), (256, 8, 0, "ranges")
SCATTERED, FENCED = (256, 1, 0, "scattered"), (64, 8, 150, "ranges")
FITTED = (SMALL, MIDDLE, WIDE, SCATTERED, FENCED)
CHECKED = ((512, 1, 0, "ranges"), (1024, 1, 0, "ranges"), (128, 8, 0, "ranges"), (1024, 1, 0, "scattered"),
           (128, 8, 150, "ranges"), (128, 8, 330, "ranges"), (1250, 8, 0, "ranges"), (1250, 8, 0, "scattered"))
ABSENT = (*((nodes, 8, 0, "ranges", how) for nodes in (16, 64, 128) for how in ("requests", "asks")),
          (1250, 8, 0, "ranges", "asks"))
FENCES = 2
TOLERANCE = 0.25
TARGET_SENT_MB, TARGET_HELD_MB = 20, 40
LIMIT_S = 300


def run(binaries, job):
    return reports([binaries / "bench_scale_swarm", *job], LIMIT_S)[0]


def median_of(results, name):
    return statistics.median(result[name] for result in results)


class Formula:
    """Bytes sent: N x (c + names) + 2 fences x N x R x b. Bytes held: a + N x h + R x r + 2 x R x b."""

    def __init__(self, measured):
        def per_node(job):
            return measured[job]["all_bytes"] / job[0]
        self.constant = per_node(SMALL)
        self.scattered_name = (per_node(SCATTERED) - self.constant) / SCATTERED[0]
        ranks, contribution = FENCED[0] * FENCED[1], FENCED[2]
        self.framing = (per_node(FENCED) - self.constant) / (FENCES * ranks * contribution)

        def held(job):
            return measured[job]["held_kib"] * 1024
        self.link = (held(MIDDLE) - held(SMALL)) / (MIDDLE[0] - SMALL[0])
        self.rank = max(0, (held(WIDE) - held(MIDDLE)) / (WIDE[0] * (WIDE[1] - 1)))
        self.process = held(SMALL) - SMALL[0] * self.link
        self.link -= self.rank  # each of those nodes has one

    def sent(self, nodes, ranks_per_node, fence, names):
        roster = self.scattered_name * nodes if names == "scattered" else 0
        return nodes * (self.constant + roster + self.framing * FENCES * nodes * ranks_per_node * fence)

    def held(self, nodes, ranks_per_node, fence, _):
        ranks = nodes * ranks_per_node
        return self.process + nodes * self.link + ranks * self.rank + 2 * ranks * fence


def row(job, result, formula):
    nodes, ranks_per_node, fence, names = job
    sent, held = result["all_bytes"], result["held_kib"] * 1024
    return [f"{nodes} x {ranks_per_node}, {names}{f', {FENCES} fences of {fence} B' if fence else ''}",
            f"{sent / 1e6:.2f}", f"{formula.sent(*job) / 1e6:.2f}", f"{held / 1e6:.1f}", f"{formula.held(*job) / 1e6:.1f}",
            f"{result['cpu_s']:.2f}", f"{result['join_s']:.2f}", f"{result['run_s']:.2f}"]


def row_of_absent(job, result):
    nodes, ranks_per_node, _, _, how = job
    return [f"{nodes} x {ranks_per_node}", how, f"{result['messages']:,.0f}", f"{result['all_bytes'] / 1e6:.2f}",
            f"{result['cpu_s']:.2f}", f"{result['run_s']:.2f}"]


def main():
    options = arguments(__doc__, 3)
    measured = {}
    for job in (*FITTED, *CHECKED, *ABSENT):
        results = [run(options.binaries, job) for _ in range(options.rounds)]
        measured[job] = {name: median_of(results, name) for name in results[0]}
        print(f"scale: {job} measured", file=sys.stderr)
    formula = Formula(measured)
    print(f"Medians of {options.rounds} rounds. Sent and held: MB; the coordinator's processor time, the time until all "
          "agents\nhave joined, and from then to the end: s.\n")
    print(table(["nodes x ranks, names of hosts", "sent", "formula", "held", "formula", "CPU", "joined", "ran"],
                [row(job, measured[job], formula) for job in (*FITTED, *CHECKED)]))
    print(f"\nA node costs {formula.constant:.0f} B sent, {formula.scattered_name:.1f} B more for each scattered name, and "
          f"{formula.link / 1024:.1f} KiB held; a rank {formula.rank:.0f} B held. By\nthe formula, 10,000 ranks on 1,250 "
          f"nodes with scattered names: {formula.sent(1250, 8, 0, 'scattered') / 1e6:.1f} MB sent (target: {TARGET_SENT_MB}), "
          f"{formula.held(1250, 8, 0, 'scattered') / 1e6:.1f} MB\nheld (target: {TARGET_HELD_MB}), and for each fence with "
          f"330 B of each rank {formula.framing * 1250 * 10_000 * 330 / 1e9:.1f} GB sent.")
    print("\nRank 0 is absent from a fence, and each other node finds that out: by direct modex requests for each\n"
          "rank, as before, or by a question. The coordinator's messages for that, both ways; MB sent;\n"
          "s as above.\n")
    print(table(["nodes x ranks", "by", "messages", "sent", "CPU", "ran"],
                [row_of_absent(job, measured[job]) for job in ABSENT]))
    wrong = [job for job in CHECKED
             if abs(measured[job]["all_bytes"] / formula.sent(*job) - 1) > TOLERANCE
             or abs(measured[job]["held_kib"] * 1024 / formula.held(*job) - 1) > TOLERANCE]
    if wrong:
        sys.exit(f"scale: the formula misses by more than {TOLERANCE:.0%}: {wrong}")


if __name__ == "__main__":
    main()

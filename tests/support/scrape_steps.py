"""Reads the metrics of nodes whose ranks take steps, by the parser of Prometheus' Python client.

    scrape_steps.py RANKS URL...      waits until all ranks that the addresses tell of have taken 20 steps, and prints a line for each
"""

import sys
import time
import urllib.error
import urllib.request

from prometheus_client import parser

PATIENCE = 90  # seconds


def scrape(url):
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return {family.name: family for family in parser.text_string_to_metric_families(answer.read().decode())}


def value(families, name, rank):
    return next(sample.value for sample in families[name].samples if sample.labels["rank"] == rank)


def main():
    wanted, urls = int(sys.argv[1]), sys.argv[2:]
    end, found = time.monotonic() + PATIENCE, {}
    while len(found) < wanted:
        assert time.monotonic() < end, f"only of ranks {sorted(found)}"
        time.sleep(0.2)
        found = {}
        try:
            pages = [scrape(url) for url in urls]
        except urllib.error.URLError as problem:
            if not isinstance(problem.reason, ConnectionRefusedError):  # a node that is not there yet
                raise
            continue
        for families in pages:
            for family in families.values():
                assert family.documentation and family.type in ("counter", "gauge"), family
            assert families["ddp_attempts"].samples[0].value == 1
            for sample in families["ddp_steps"].samples if "ddp_steps" in families else []:
                if sample.value >= 20:
                    found[sample.labels["rank"]] = (sample.labels, families)
    for rank, (labels, families) in sorted(found.items()):
        # the last rank is late by 20 ms in each step, and the others wait for it
        assert value(families, "ddp_step_seconds", rank) / value(families, "ddp_steps", rank) >= 0.02
        assert 0 <= value(families, "ddp_straggler_rank", rank) < wanted
        assert 0 <= value(families, "ddp_hidden_communication_ratio", rank) <= 1
        assert value(families, "ddp_rank_cpu_seconds", rank) > 0
        running = next(sample.value for sample in families["ddp_ranks"].samples if sample.labels["state"] == "running")
        print("SCRAPED", rank, labels["node"], labels["job"], int(running))


main()

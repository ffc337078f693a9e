"""init_method="pmix://" and the backend "ddp" give nobody else a key of the job, by tests/support/pmix_store_job.py under ddprun."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
from jobs import BIN, PATIENCE, SUPPORT, adapter, ddprun, environment  # noqa: E402, F401

JOB = SUPPORT / "pmix_store_job.py"
STORE_REFUSED = "the job's store refused a connection from"


def expect_met(done, ranks, of_launcher):
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    for rank in range(ranks):
        assert f"MET {rank} {of_launcher} SERVED" in done.stdout and f"AGAIN {rank}" in done.stdout, text
        assert os.geteuid() != 0 or f"OTHERS {rank} REFUSED" in done.stdout, text
    assert os.geteuid() != 0 or done.stderr.count(STORE_REFUSED) >= 1, text
    assert os.geteuid() != 0 or "it belongs to uid 65534" in done.stderr, text


def test_the_launchers_store_is_used_where_there_is_one():
    done = ddprun(2, JOB, "launchers")
    expect_met(done, 2, True)


def test_rank_0s_store_serves_the_jobs_user_only():
    done = ddprun(3, JOB, "own")
    expect_met(done, 3, False)


def test_on_two_nodes_another_user_gets_nothing():
    """Two ddpruns of one host are two nodes, whose ranks meet over its network."""
    command = [BIN / "ddprun", "--bind=none", "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-insecure"]
    with_port = [*command, f"--rdzv-endpoint=127.0.0.1:{free_port()}"]
    agents = [subprocess.Popen([*map(str, with_port), sys.executable, str(JOB), "own"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL, cwd="/", env=environment())
              for _ in range(2)]
    outputs = [agent.communicate(timeout=PATIENCE) for agent in agents]
    done = subprocess.CompletedProcess("", max(agent.returncode for agent in agents), *map("".join, zip(*outputs)))
    expect_met(done, 2, False)


def free_port():
    import socket
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.parametrize("known", [True, False], ids=["with_a_world", "without"])
def test_what_ranks_tell_each_other_over_another_store_is_sealed_with_the_jobs_secret(adapter, tmp_path, known):  # noqa: F811
    """Everybody who can read a store of torch's sees all of it: here it is a file."""
    store = tmp_path / "store"
    done = ddprun(3, JOB, "sealed", store, *(["world"] if known else []))
    assert done.returncode == 0 and len(re.findall(f"ADDED . {known}", done.stdout)) == 3, done.stdout + done.stderr
    # in the open, each rank's record has its host's name; behind its length, as a short name may be in sealed bytes by chance
    name = os.uname().nodename.encode()
    assert (len(name).to_bytes(4, "little") + name in Path(f"{store}.seen").read_bytes()) is not known

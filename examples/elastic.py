"""Training that continues while nodes join and leave, and counts its samples: each once in an epoch.

    ddprun --nnodes=1:4 --rdzv-backend=c10d --rdzv-endpoint=n0:29400 --on-resize=finish elastic.py --folder=/scratch/run7

on n0, then on any other node, at any time. Ctrl-C or SIGTERM to another ddprun than n0's lets its node leave.
"""

import argparse
import json
import os
import sys
import time

import numpy
import libddp
import libddp.elastic


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True, help="of checkpoints; all ranks see it")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=8, help="samples of a rank in a step")
    parser.add_argument("--save-every", type=int, default=10, help="steps; what a lost node costs at most")
    parser.add_argument("--pause", type=float, default=0, help="seconds of a step, instead of a larger model")
    return parser.parse_args()


options = arguments()
group = libddp.init().process_group()
truth = numpy.arange(1.0, 9.0)
inputs = numpy.random.default_rng(7).normal(size=(options.samples, truth.size))

# The state of the training. `seen` counts how often each sample has moved the weights.
state = {"weights": numpy.zeros(truth.size), "seen": numpy.zeros(options.samples, numpy.int64)}
sampler = libddp.ElasticSampler(options.samples, group, seed=7)
checkpoints = libddp.Checkpoints(group, options.folder)
step = 0
if restored := checkpoints.restore(state):
    step = restored.step
    sampler.load_state_dict(json.loads(restored.extra))
if group.rank == 0:
    print(f"generation {os.environ.get('DDP_GENERATION', 0)}: {group.size} ranks from step {step}, "
          f"epoch {sampler.epoch}, sample {sampler.state_dict()['consumed']}", flush=True)


def save():
    checkpoints.save(step, state, json.dumps(sampler.state_dict()).encode())


def train(batch):
    """One step of all ranks: a gradient summed over their batches, which may be empty at an epoch's end."""
    errors = inputs[batch] @ (state["weights"] - truth)
    seen = numpy.bincount(batch, minlength=options.samples).astype(numpy.int64)
    total = numpy.append(errors @ inputs[batch], len(batch))
    group.all_reduce(total).wait()
    group.all_reduce(seen).wait()
    state["weights"] -= 0.1 * total[:-1] / total[-1]
    state["seen"] += seen


stop = libddp.EarlyStop()
while sampler.epoch < options.epochs:
    order = numpy.array(sampler.indices(), dtype=numpy.int64)
    steps = -(-len(order) // options.batch)
    if group.size > 1:  # rank 0 has as many samples as any
        steps = group.broadcast_object(steps)
    for each in range(steps):
        if libddp.elastic.change_pending():
            stop.request()
        if stop.agree(group):  # all ranks, before the same step
            save()
            libddp.elastic.restart_here()
        batch = order[each * options.batch:(each + 1) * options.batch]
        train(batch)
        sampler.record(len(batch))
        step += 1
        if step % options.save_every == 0:
            save()
        time.sleep(options.pause)
    done = sampler.epoch + 1
    lost, twice = int((state["seen"] < done).sum()), int((state["seen"] > done).sum())
    if lost or twice:
        sys.exit(f"epoch {sampler.epoch}: {lost} samples lost, {twice} more than once")
    if group.rank == 0:
        distance = float(numpy.abs(state["weights"] - truth).max())
        print(f"epoch {sampler.epoch}: each of {options.samples} samples once; distance {distance:.1e}", flush=True)
    sampler.set_epoch(done)

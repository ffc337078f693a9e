"""Signals, forks, deaths and ends."""

import asyncio
import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time

import libddp
import numpy

from libddp_checks import check, expect, raises


def interrupted(call, after=0.3):
    """Calls what waits, and sends this process SIGINT meanwhile: the seconds from the signal to KeyboardInterrupt."""
    sent = []

    def send():
        time.sleep(after)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=send)  # runs only if the call gives the GIL away
    thread.start()
    try:
        raises(KeyboardInterrupt, call)
        return time.monotonic() - sent[0]
    finally:
        thread.join()


@check
def forked_child(world, group):
    apart = group.new_group(range(group.size))
    after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    called = []
    ended, never = (group.recv(numpy.zeros(1), before, tag) for tag in (50, 51))
    ended.add_done_callback(called.append)
    apart.barrier().wait()
    group.send(numpy.zeros(1), after, 50).wait()
    apart.barrier().wait()  # the parent has not asked for the end, so its callback waits

    async def end(work):
        await work

    def child():
        expect(libddp.world().rank == world.rank, "a child may know who its parent is")
        for call in (group.barrier, world.process_group, lambda: world.store, libddp.init):
            raises(libddp.Unavailable, call, words="forked")
        expect(not libddp.initialized(), "a child has no World")
        for wait in (never.wait, lambda: never.wait(5), lambda: asyncio.run(end(never))):
            raises(libddp.Unavailable, wait, words="forked")
        expect(not never.done() and never.exception() is None, "a child cannot know of an end")
        libddp.poll()
        ended.done()
        expect(not called, "the parent's callback")

    helper = multiprocessing.get_context("fork").Process(target=child)
    helper.start()
    helper.join(60)
    expect(helper.exitcode == 0, f"the child ended with {helper.exitcode}")
    pid = os.fork()
    if pid == 0:  # ends with all of the interpreter's own handlers
        sys.exit(7)
    expect(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7, "another child ended in another way")
    group.send(numpy.zeros(1), after, 51).wait()  # the parent goes on
    never.wait()
    ended.wait()
    expect(called == [ended], f"called: {called}")


@check
def signals(world, group):
    apart = group.new_group(range(group.size))
    never = group.recv(numpy.zeros(1), (group.rank - 1) % group.size, tag=99, timeout=60)
    expect(interrupted(never.wait) < 20, "Ctrl-C waits for the operation")
    apart.barrier().wait()
    group.send(numpy.zeros(1), (group.rank + 1) % group.size, tag=99).wait()
    never.wait()
    if group.rank == 0:
        expect(interrupted(lambda: world.store.fence(60)) < 20, "Ctrl-C waits for the fence")
        raises(libddp.Timeout, world.store.get, 0, "a", timeout=0.05, words="under way")
        group.barrier().wait()
    else:
        group.barrier().wait()
        world.store.fence(60)
    group.barrier().wait()


@check
def leaves_session(world, group):
    """Not while a thread is in the store."""
    store, fenced = world.store, []
    expect(store.transport, "no transport")
    if group.rank == 0:
        fencing = threading.Thread(target=lambda: fenced.append(store.fence(60)))
        fencing.start()
        time.sleep(0.1)
        expect(interrupted(world.leave_session) < 20, "Ctrl-C waits for the fence")
        group.barrier().wait()
        fencing.join(60)
        expect(fenced == [None], "the fence failed")
    else:
        group.barrier().wait()
        store.fence(60)
    world.leave_session()
    raises(libddp.Unavailable, store.fence)
    raises(libddp.Unavailable, lambda: store.transport)


@check
def again(world, group):
    """A World can be left, and another be made."""
    group.barrier().wait()
    world.close()
    world.close()
    expect(world.closed and not libddp.initialized(), "it is still there")
    raises(libddp.Unavailable, lambda: world.rank, words="closed")
    raises(libddp.Unavailable, libddp.world, words="libddp.init()")
    with libddp.init(timeout=60, launch="torchrun") as second:
        expect(second.source == "torchrun", second.source)
        second.process_group().barrier().wait()
    expect(second.closed, "it is still there")


@check
def peer_dies(world, group):
    if group.rank == group.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    tensor = numpy.zeros(10)
    error = raises(libddp.PeerLost, lambda: group.all_reduce(tensor).wait(), words=f"rank {group.size - 1}")
    expect((error.code, error.ranks) == ("peer_lost", (group.size - 1,)), f"{error.code} {error.ranks}")
    expect(isinstance(error, ConnectionError) and isinstance(error, libddp.Error), "another kind")
    copy = pickle.loads(pickle.dumps(error))
    expect((type(copy), str(copy), copy.ranks) == (libddp.PeerLost, str(error), error.ranks), "the copy differs")
    raises(libddp.PeerLost, group.barrier)


@check
def aborts(world, group):
    everyone = list(range(group.size))
    caught, worded = group.new_group(everyone), group.new_group(everyone)
    if group.rank == 0:
        why = raises(libddp.InvalidArgument, lambda: group.all_reduce(numpy.zeros(3), op="maximum"))
        running = [caught.recv(numpy.zeros(3), 1), caught.all_reduce(numpy.zeros(3))]
        caught.abort(why)
        for work in running:
            raises(libddp.InvalidArgument, work.wait, words="maximum")
        worded.abort(ValueError("the monitor says so"))
    else:
        raises(libddp.InvalidArgument, lambda: caught.recv(numpy.zeros(3), 0).wait(), words="maximum")
    raises(libddp.InvalidArgument, caught.barrier, words="maximum")
    error = raises(libddp.Aborted, lambda: worded.barrier().wait(), words="rank 0 aborted it: the monitor says so")
    expect(error.ranks == (0,), f"ranks {error.ranks}")
    group.barrier().wait()


@check
def peer_stays_away(world, group):
    if group.rank != 0:
        time.sleep(1)
        return
    work = group.barrier(timeout=0.5)
    error = raises(libddp.Timeout, work.wait)
    expect(error.ranks and 0 not in error.ranks and type(work.exception()) is libddp.Timeout, f"ranks {error.ranks}")

    async def main():
        await work

    raises(TimeoutError, asyncio.run, main())


@check
def leaves_everything(world, group):
    """The end of the interpreter, with operations under way and nothing closed."""
    global kept
    kept = [group, world, numpy.zeros(1)]
    try:
        kept.append(group.recv(numpy.zeros(1000), (group.rank - 1) % group.size, tag=5))
    except libddp.PeerLost:  # another rank has left already
        return
    kept[-1].add_done_callback(print)


class Slow:
    """Makes the interpreter's end last until others have asked for the GIL."""

    def __del__(self, sleep=time.sleep):
        sleep(0.3)


@check
def leaves_threads(world, group):
    """The end of the interpreter, with threads in libddp, and in Python code that libddp has called."""
    global slow
    slow = Slow()
    ended = group.barrier()
    never = group.recv(numpy.zeros(1), (group.rank - 1) % group.size, tag=6)
    calling = []

    def wait():
        with contextlib.suppress(libddp.PeerLost):  # where the other ends first
            never.wait()

    def spin(*_):
        calling.append(1)
        while True:
            pass

    class Tensor:
        __dlpack__ = spin

    ended.add_done_callback(spin)
    for target in (*[wait] * 8, ended.wait, lambda: group.all_reduce(Tensor())):
        threading.Thread(target=target, daemon=True).start()
    deadline = time.monotonic() + 60
    while len(calling) < 2:
        expect(time.monotonic() < deadline, "the threads do not call")
        time.sleep(0.01)

"""Operations under way: what they keep alive, and who hears of their end."""

import asyncio
import gc
import logging
import os
import sys
import threading
import time
import weakref

import libddp
import numpy

from libddp_checks import check, expect, raises


class Tracked(numpy.ndarray):
    """An array whose memory others can be asked about."""


@check
def lifetimes(world, group):
    """An operation keeps its tensors, whatever the program drops, and lets go of them in a thread of Python."""
    rank, after, before = group.rank, (group.rank + 1) % group.size, (group.rank - 1) % group.size
    threads = []
    tensor = numpy.zeros(300_000).view(Tracked)
    weakref.finalize(tensor, lambda: threads.append(threading.get_ident()))
    receiving = group.recv(tensor, before)
    del tensor
    gc.collect()
    expect(not threads, "the tensor went while an operation writes to it")
    group.send(numpy.full(300_000, float(rank)), after).wait()
    receiving.wait()
    libddp.poll()
    expect(threads == [threading.get_ident()], f"the tensor went in {threads}")
    # dropped at once, work and tensors
    others = []
    for _ in range(100):
        group.all_reduce(numpy.ones(10_000))
        others.append(numpy.full(10_000, 7.0))
    group.barrier().wait()
    expect(all((other == 7).all() for other in others), "an operation has written to memory that it does not own")
    # buffers that are exported cannot be resized
    buffer = bytearray(8)
    waiting = group.recv(buffer, before, tag=1)
    raises(BufferError, buffer.extend, b"more")
    group.send(bytes(range(8)), after, tag=1).wait()
    waiting.wait()
    libddp.poll()
    buffer.extend(b"more")
    expect(bytes(buffer) == bytes(range(8)) + b"more", "other bytes")


@check
def many_threads(world, group):
    """Threads that wait do not keep others from Python."""
    apart = group.new_group(range(group.size))  # whose collectives do not wait for transfers of the other
    late = group.recv(numpy.zeros(1), (group.rank - 1) % group.size, tag=3)
    ended = []
    threads = [threading.Thread(target=lambda: (late.wait(), ended.append(1))) for _ in range(4)]
    for thread in threads:
        thread.start()
    raises(TimeoutError, late.wait, 0.05, words="still running")
    expect(not ended and not late.done() and late.exception() is None, "it ended before it could")
    apart.barrier().wait()
    group.send(numpy.zeros(1), (group.rank + 1) % group.size, tag=3).wait()
    for thread in threads:
        thread.join(60)
    expect(len(ended) == 4 and late.done() and late.exception() is None, f"{len(ended)} threads ended")


@check
def callbacks(world, group):
    apart = group.new_group(range(group.size))
    main, called = threading.get_ident(), []
    note = lambda work: called.append((work.done(), threading.get_ident()))  # noqa: E731
    after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    waited = group.recv(numpy.zeros(1), before)
    waited.add_done_callback(note)
    waited.add_done_callback(note)
    polled = group.recv(numpy.zeros(1), before, tag=1)
    polled.add_done_callback(note)
    libddp.poll()
    expect(not called, "called before the end")
    apart.barrier().wait()
    group.send(numpy.zeros(1), after).wait()
    waited.wait()
    expect(called == [(True, main)] * 2, f"called: {called}")
    del polled
    group.send(numpy.zeros(1), after, tag=1).wait()
    deadline = time.monotonic() + 60
    while len(called) < 3:
        expect(time.monotonic() < deadline, "poll() does not call")
        libddp.poll()
    waited.add_done_callback(note)  # after the end: at the next chance
    expect(waited.done() and called == [(True, main)] * 4, f"called: {called}")

    records = []
    handler = logging.Handler()
    handler.emit = records.append
    logging.getLogger("libddp").addHandler(handler)
    logging.getLogger("libddp").propagate = False
    failing = group.barrier()
    failing.add_done_callback(lambda work: 1 / 0)
    failing.wait()
    expect(len(records) == 1 and records[0].exc_info[0] is ZeroDivisionError, f"logged: {records}")

    ended, called = group.barrier(), []
    for function in (sys.exit, called.append, sys.exit):
        ended.add_done_callback(function)
    raises(SystemExit, ended.wait)
    expect(called == [ended], "an exception keeps others from their call")
    expect(not libddp._events._by_poll.queue.take(), "the queue keeps what has been called")


@check
def event_loop(world, group):
    apart = group.new_group(range(group.size))
    after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size

    async def main():
        beats = 0

        async def beat():
            nonlocal beats
            while True:
                beats += 1
                await asyncio.sleep(0.001)

        beating = asyncio.create_task(beat())
        got = [numpy.zeros(2) for _ in range(20)]
        receiving = [group.recv(each, before, tag) for tag, each in enumerate(got)]
        called = []
        receiving[0].add_done_callback(lambda work: called.append(asyncio.get_running_loop()))
        cancelled = asyncio.ensure_future(event(receiving[1]))
        await asyncio.sleep(0.02)
        cancelled.cancel()
        await apart.barrier()
        for tag in range(20):
            group.send(numpy.full(2, float(tag)), after, tag)
        await asyncio.gather(*map(event, receiving))
        expect([each[0] for each in got] == list(range(20)), f"received {got}")
        expect(cancelled.cancelled() and beats > 1, "the loop stood still")
        await asyncio.sleep(0)
        expect(called == [asyncio.get_running_loop()], f"callbacks in {called}")
        beating.cancel()

    async def event(work):
        await work

    for _ in range(2):  # a queue belongs to a loop
        asyncio.run(main())

    async def in_vain(work):
        try:
            await asyncio.wait_for(event(work), 0.001)
        except asyncio.TimeoutError:
            return
        raise AssertionError("it ended before it could")

    late = group.recv(numpy.zeros(1), before, tag=21)
    opened = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        asyncio.run(in_vain(late))
    gc.collect()
    expect(len(os.listdir("/proc/self/fd")) <= opened + 3, "loops and their descriptors are kept")
    apart.barrier().wait()
    group.send(numpy.zeros(1), after, tag=21).wait()
    late.wait()

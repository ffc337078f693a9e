"""A program of libddp.mpi, for launchers.

    mpi_job.py          checks all, and prints "CHECKED RANK" in each rank
    mpi_job.py abort    the same; then rank 1 ends the job with status 7
    mpi_job.py pickle   the same; then rank 1 sends what cannot be pickled
"""

import functools
import re
import sys
import time

import numpy
from libddp.mpi import MPI

assert "torch" not in sys.modules


def refused(kind, call):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def objects(comm, rank, size):
    assert MPI.COMM_SELF.allgather(rank) == [rank] and MPI.COMM_SELF.Get_size() == 1
    assert comm.allgather({"rank": rank}) == [{"rank": each} for each in range(size)]
    assert comm.bcast([rank], root=size - 1) == [size - 1]
    assert comm.gather(rank, root=1) == (list(range(size)) if rank == 1 else None)
    assert comm.scatter([each * each for each in range(size)] if rank == 0 else None) == rank * rank
    assert comm.alltoall([(rank, each) for each in range(size)]) == [(each, rank) for each in range(size)]
    assert comm.allreduce([rank]) == list(range(size)), "objects are added in rank order"
    assert comm.allreduce(rank, op=MPI.MAX) == size - 1 and comm.allreduce(rank > 0, op=MPI.LAND) is False
    assert comm.allreduce((rank % 2, rank), op=MPI.MAXLOC) == (1, 1)
    append = functools.partial(lambda a, b: a * 10 + b)
    assert comm.reduce(rank + 1, op=append) == (functools.reduce(append, range(1, size + 1)) if rank == 0 else None)
    assert comm.scan(1) == rank + 1 and comm.exscan(1) == (rank or None)


def arrays(comm, rank, size):
    given, made = numpy.full(4, rank + 1, numpy.float32), numpy.zeros(4, numpy.float32)
    comm.Allreduce(given, made)
    assert (made == size * (size + 1) / 2).all()
    comm.Allreduce(MPI.IN_PLACE, [given, MPI.FLOAT], op=MPI.SUM)
    assert (given == made).all()
    short = numpy.array([rank, 1], numpy.int16)
    comm.Allreduce(MPI.IN_PLACE, short)
    assert short.tolist() == [size * (size - 1) // 2, size]
    flags = numpy.array([rank == 0, True])
    comm.Allreduce(MPI.IN_PLACE, flags, op=MPI.LAND)
    assert flags.tolist() == [False, True]
    comm.Reduce(numpy.ones(4, numpy.float32), made if rank == 0 else None, root=0)
    assert rank or (made == size).all()
    rows = numpy.zeros((size, 2), numpy.int32)
    comm.Allgather(numpy.array([rank, rank], numpy.int32), rows)
    assert rows[:, 0].tolist() == list(range(size))
    counts = [each + 1 for each in range(size)]
    places = [sum(counts[:each]) + each for each in range(size)]  # with a gap between parts
    spread = numpy.full(sum(counts) + size, -1.0)
    comm.Allgatherv(numpy.full(rank + 1, float(rank)), [spread, counts, places, MPI.DOUBLE])
    assert spread[places[-1]] == size - 1 and spread[1] == -1.0
    each = numpy.zeros(2 * size + 1)  # a count is that of each rank's part
    comm.Allgather([numpy.full(2, float(rank)), 2, MPI.DOUBLE], [each, 2, MPI.DOUBLE])
    assert each.tolist() == [float(other) for other in range(size) for _ in range(2)] + [0.0]
    own = numpy.zeros(3)
    comm.Scatter([each, 2, MPI.DOUBLE], [own, 2, MPI.DOUBLE])
    assert own.tolist() == [float(rank)] * 2 + [0.0]
    comm.Alltoall([each, 2, MPI.DOUBLE], [spread := numpy.zeros(2 * size), 2, MPI.DOUBLE])
    assert spread.tolist() == [float(rank)] * 2 * size
    shared = numpy.full(3, rank, numpy.int64)
    comm.Bcast([shared, MPI.INT64_T], root=size - 1)
    assert (shared == size - 1).all()
    one = numpy.zeros(1, numpy.int32)
    comm.Scatter(numpy.arange(size, dtype=numpy.int32) if rank == 0 else None, one, root=0)
    assert one[0] == rank
    gathered = numpy.zeros(size, numpy.int32) if rank == 1 else None
    comm.Gather(one, gathered, root=1)
    assert rank != 1 or gathered.tolist() == list(range(size))
    turned = numpy.zeros(size, numpy.int32)
    comm.Alltoall(numpy.full(size, rank, numpy.int32), turned)
    assert turned.tolist() == list(range(size))


def messages(comm, rank, size):
    right, left = (rank + 1) % size, (rank - 1) % size
    assert comm.sendrecv(("hello", rank), right, 3, source=left, recvtag=3) == ("hello", left)
    status = MPI.Status()
    if rank == 0:
        found = [comm.recv(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=status) for _ in range(2 * (size - 1))]
        assert (status.Get_source(), status.Get_tag()) == found[-1]
        assert sorted(found) == sorted((each, 5 + tag) for each in range(1, size) for tag in range(2))
    else:
        for tag in (5, 6):
            comm.send((rank, tag), dest=0, tag=tag)
    comm.Barrier()
    assert MPI.Request.waitall([comm.irecv(source=left, tag=9), comm.isend(rank, right, tag=9)])[0] == left
    buffer = numpy.zeros(100_000)
    waiting = comm.Irecv(buffer, source=left, tag=1)
    comm.Isend(numpy.full(100_000, float(rank)), right, tag=1).Wait()
    waiting.Wait(status)
    assert buffer[-1] == left and status.Get_count(MPI.DOUBLE) == 100_000
    comm.send("second", dest=right, tag=2)
    comm.send("first", dest=right, tag=1)
    assert comm.recv(source=left, tag=1) == "first" and comm.recv(source=left, tag=2) == "second"
    comm.send("probed", dest=right, tag=4)
    assert comm.probe(source=left, tag=4, status=status) and status.Get_tag() == 4
    assert comm.iprobe(source=left, tag=4) and comm.recv(source=left, tag=4) == "probed"
    assert comm.recv(source=MPI.PROC_NULL) is None
    comm.Send(numpy.arange(4), dest=right, tag=8)
    assert "longer than the buffer" in refused(ValueError, lambda: comm.Recv(numpy.zeros(1), source=left, tag=8))


def communicators(comm, rank, size):
    half = comm.Split(color=rank % 2, key=-rank)
    mates = [each for each in range(size) if each % 2 == rank % 2]
    assert half.allgather(rank) == sorted(mates, reverse=True) and half.rank == half.allgather(rank).index(rank)
    rest = comm.Split(MPI.UNDEFINED if rank == 0 else 0)
    assert (rest == MPI.COMM_NULL) == (rank == 0)
    assert comm.Split_type(MPI.COMM_TYPE_SHARED).Get_size() == size
    copy = comm.Dup()
    assert isinstance(copy, MPI.Intracomm) and isinstance(copy, MPI.Comm) and copy.bcast(rank) == 0
    copy.Free()
    refused(ValueError, copy.Get_rank)
    pair = comm.Create(comm.Get_group().Incl([1, 0]))
    assert pair == MPI.COMM_NULL if rank > 1 else pair.allgather(rank) == [1, 0]


def refusals(comm, rank, size):
    for call in (lambda: MPI.Win.Create, lambda: comm.Put, lambda: comm.Spawn("program"), lambda: MPI.File):
        assert "use mpi4py" in refused(NotImplementedError, call)
    refused(ValueError, lambda: comm.bcast(1, root=size))
    refused(ValueError, lambda: comm.send(1, dest=0, tag=-5))
    refused(ValueError, lambda: comm.Allgatherv(numpy.zeros(1), [numpy.zeros(1), [1] * (size + 1)]))
    for call in (lambda at: at.Allreduce(MPI.IN_PLACE, numpy.ones(2 + (rank == 1))),
                 lambda at: at.Allreduce(MPI.IN_PLACE, numpy.ones(2, numpy.float64 if rank == 1 else numpy.float32))):
        own = comm.Dup()
        said = refused(MPI.Exception, lambda: call(own))
        assert re.search(r"ranks? 0\b.*: all_reduce", said) and re.search("rank 1: all_reduce .*float64 x", said), said
    refused(MPI.Exception, lambda: own.Barrier())
    assert comm.allreduce(1) == size, "other communicators live on"
    assert MPI.Is_initialized() and not MPI.Is_finalized() and MPI.Query_thread() == MPI.THREAD_MULTIPLE


if __name__ == "__main__":
    assert not MPI.Is_initialized(), "importing initializes nothing"
    numbers = MPI.COMM_WORLD, MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.size
    for part in (objects, arrays, messages, communicators, refusals):
        part(*numbers)
    sys.stdout.write(f"CHECKED {numbers[1]}\n")
    sys.stdout.flush()
    if sys.argv[1:] == ["abort"]:
        if numbers[1] == 1:
            MPI.COMM_WORLD.Abort(7)
        time.sleep(120)
    if sys.argv[1:] == ["pickle"]:
        MPI.COMM_WORLD.allgather((lambda: 1) if numbers[1] == 1 else 1)

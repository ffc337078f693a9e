"""Communicators: ranks that exchange objects by lower-case calls and arrays by upper-case ones, as mpi4py's do."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from typing import Any, cast

import numpy

import libddp
from libddp.mpi import _buffers, _ops
from libddp.mpi._mailbox import ANY_SOURCE, ANY_TAG, Mailbox, Message
from libddp.mpi._requests import Request, Status

UNDEFINED, PROC_NULL = -32766, -2
COMM_TYPE_SHARED = 1
_LONGEST_COPY = 65536  # bytes that Send copies, so that it does not wait for its receiver
_PROTOCOL = pickle.HIGHEST_PROTOCOL


class _InPlace:
    def __repr__(self) -> str:
        return "<libddp.mpi.MPI.IN_PLACE>"


IN_PLACE = _InPlace()


class Group:
    """Ranks, as numbers of the world."""

    def __init__(self, ranks: list[int], own: int) -> None:
        self.ranks, self._own = ranks, own

    def Get_size(self) -> int:
        return len(self.ranks)

    def Get_rank(self) -> int:
        return self.ranks.index(self._own) if self._own in self.ranks else UNDEFINED

    size, rank = property(Get_size), property(Get_rank)

    def Incl(self, ranks: list[int]) -> Group:
        return Group([self.ranks[each] for each in ranks], self._own)

    def Excl(self, ranks: list[int]) -> Group:
        return Group([each for place, each in enumerate(self.ranks) if place not in ranks], self._own)

    def Translate_ranks(self, ranks: list[int] | None = None, group: Group | None = None) -> list[int]:
        chosen = range(len(self.ranks)) if ranks is None else ranks
        others = group.ranks if group is not None else self.ranks
        return [others.index(self.ranks[each]) if self.ranks[each] in others else UNDEFINED for each in chosen]

    def Free(self) -> None:
        """There is nothing to free."""


class Comm:
    """Ranks that communicate. What it lacks raises NotImplementedError by name."""

    def __init__(self, make: Callable[[], tuple[Any, Any, list[int]]]) -> None:
        self._make = make  # at the first use: the group of collectives, that of messages, and ranks of the world
        self._made: tuple[Any, Any, list[int]] | None = None
        self._box: Mailbox | None = None
        self._name = ""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotImplementedError(f"libddp.mpi has no Comm.{name}; use mpi4py under mpirun or srun --mpi=pmix")

    def _parts(self) -> tuple[Any, Any, list[int]]:
        if self._made is None:
            self._made = self._make()
        return self._made

    @property
    def _group(self) -> Any:
        return self._parts()[0]

    @property
    def _world_ranks(self) -> list[int]:
        return self._parts()[2]

    @property
    def _messages(self) -> Mailbox:
        if self._box is None:
            self._box = Mailbox(self._parts()[1], self.rank, self.size)
        return self._box

    # who

    def Get_rank(self) -> int:
        return int(self._group.rank)

    def Get_size(self) -> int:
        return int(self._group.size)

    @property
    def rank(self) -> int:
        return self.Get_rank()

    @property
    def size(self) -> int:
        return self.Get_size()

    def Get_name(self) -> str:
        return self._name

    def Set_name(self, name: str) -> None:
        self._name = name

    name = property(Get_name, Set_name)

    def Get_group(self) -> Group:
        return Group(list(self._world_ranks), self._world_ranks[self.rank])

    def Is_inter(self) -> bool:
        return False

    def Is_intra(self) -> bool:
        return True

    def Free(self) -> None:
        """Its groups go with their last handles."""
        self._made = self._box = None
        self._make = _freed

    Disconnect = Free

    def Abort(self, errorcode: int = 0) -> None:
        """Ends the job with this exit status."""
        print(f"MPI.Abort({errorcode}) called by rank {self.rank}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(errorcode & 0xff or (1 if errorcode else 0))

    # others of these ranks

    def _new(self, members: list[int] | None) -> Comm | None:
        """Collective with the same list."""
        coll, _, ranks = self._parts()
        chosen = list(range(self.size)) if members is None else members
        made = coll.new_group(chosen), coll.new_group(chosen)  # no messages' group, where receives may be under way
        if made[0] is None:
            return None
        return Intracomm(lambda: (made[0], made[1], [ranks[each] for each in chosen]))

    def Dup(self) -> Comm:
        made = self._new(None)
        assert made is not None
        return made

    Clone = Dup

    def Create(self, group: Group) -> Any:
        made = self._new([self._world_ranks.index(each) for each in group.ranks])
        return COMM_NULL if made is None else made

    def Split(self, color: int = 0, key: int = 0) -> Any:
        """COMM_NULL for ranks that give UNDEFINED."""
        offers = self._group.all_gather_object((color, key))
        own: Any = COMM_NULL
        for each in sorted({given[0] for given in offers} - {UNDEFINED}):
            members = [place for place, given in enumerate(offers) if given[0] == each]
            made = self._new(sorted(members, key=lambda place: (offers[place][1], place)))
            own = made if made is not None else own
        return own

    def Split_type(self, split_type: int, key: int = 0, info: Any = None) -> Any:
        """COMM_TYPE_SHARED: ranks of one node."""
        if split_type == UNDEFINED:
            return self.Split(UNDEFINED, key)
        if split_type != COMM_TYPE_SHARED:
            raise NotImplementedError("libddp.mpi has no Split_type but COMM_TYPE_SHARED")
        return self.Split(libddp.world().node_of(self._world_ranks[self.rank]), key)

    # collectives of objects

    def barrier(self) -> None:
        self._group.barrier().wait()

    Barrier = barrier

    def bcast(self, obj: Any, root: int = 0) -> Any:
        return self._group.broadcast_object(obj, root=_root(root, self.size))

    def allgather(self, sendobj: Any) -> list[Any]:
        return list(self._group.all_gather_object(sendobj))

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        return cast("list[Any] | None", self._group.gather_object(sendobj, root=_root(root, self.size)))

    def scatter(self, sendobj: Any, root: int = 0) -> Any:
        return self._group.scatter_object(sendobj, root=_root(root, self.size))

    def alltoall(self, sendobj: Any) -> list[Any]:
        if len(sendobj) != self.size:
            raise ValueError(f"alltoall of {len(sendobj)} objects among {self.size} ranks")
        return [row[self.rank] for row in self._group.all_gather_object(list(sendobj))]

    def allreduce(self, sendobj: Any, op: Any = _ops.OPS["SUM"]) -> Any:
        return _ops.fold(self.allgather(sendobj), op)

    def reduce(self, sendobj: Any, op: Any = _ops.OPS["SUM"], root: int = 0) -> Any:
        gathered = self.gather(sendobj, root)
        return None if gathered is None else _ops.fold(gathered, op)

    def scan(self, sendobj: Any, op: Any = _ops.OPS["SUM"]) -> Any:
        return _ops.fold(self.allgather(sendobj)[:self.rank + 1], op)

    def exscan(self, sendobj: Any, op: Any = _ops.OPS["SUM"]) -> Any:
        before = self.allgather(sendobj)[:self.rank]
        return _ops.fold(before, op) if before else None

    # collectives of arrays

    def Bcast(self, buf: Any, root: int = 0) -> None:
        elements = _buffers.parse(buf, writes=self.rank != root).elements
        if elements.nbytes:
            self._group.broadcast(elements.view(numpy.uint8), _root(root, self.size)).wait()

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Any = _ops.OPS["SUM"]) -> None:
        into = _buffers.parse(recvbuf, writes=True).elements
        if sendbuf is not IN_PLACE:
            _copy(into, _buffers.parse(sendbuf).elements)
        name = _ops.native(op, into.dtype)
        if name is not None:
            self._group.all_reduce(into, name).wait()
        else:
            into[...] = _ops.fold_arrays(self._rows(into), op)

    def _rows(self, elements: Any) -> Any:
        rows = numpy.empty((self.size, elements.size), dtype=elements.dtype)
        if elements.nbytes:
            self._group.all_gather(elements.view(numpy.uint8), rows.reshape(-1).view(numpy.uint8)).wait()
        return rows

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Any = _ops.OPS["SUM"], root: int = 0) -> None:
        is_root = self.rank == _root(root, self.size)
        given = recvbuf if sendbuf is IN_PLACE else sendbuf
        summed = _buffers.parse(given).elements.copy()
        self.Allreduce(IN_PLACE, summed, op)
        if is_root:
            _copy(_buffers.parse(recvbuf, writes=True).elements, summed)

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Any = _ops.OPS["SUM"]) -> None:
        summed = _buffers.parse(sendbuf).elements.copy()
        self.Allreduce(IN_PLACE, summed, op)
        part = _buffers.parts(_buffers.Buffer(summed), self.size)[self.rank]
        _copy(_buffers.parse(recvbuf, writes=True).elements, part)

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        places = _buffers.parts(_buffers.parse(recvbuf, writes=True, ranks=self.size), self.size)
        own = places[self.rank] if sendbuf is IN_PLACE else _buffers.parse(sendbuf).elements
        counts = [each.nbytes for each in places]
        if own.nbytes != (wanted := counts[self.rank]):
            raise ValueError(f"this rank gives {own.nbytes} bytes, but the receiving buffer has {wanted} for it")
        gathered = numpy.empty(sum(counts), dtype=numpy.uint8)
        if gathered.size:
            self._group.all_gather_v(own.copy().view(numpy.uint8), gathered, counts).wait()
        for place, elements in zip(places, numpy.split(gathered, numpy.cumsum(counts))):
            place.view(numpy.uint8)[...] = elements

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        if self.rank != _root(root, self.size):
            self._group.gather_object(_buffers.parse(sendbuf).elements, root=root)
            return
        places = _buffers.parts(_buffers.parse(recvbuf, writes=True, ranks=self.size), self.size)
        own = places[self.rank].copy() if sendbuf is IN_PLACE else _buffers.parse(sendbuf).elements
        for place, elements in zip(places, self._group.gather_object(own, root=root)):
            _copy(place, elements)

    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        given = None
        if self.rank == _root(root, self.size):
            given = [each.copy() for each in _buffers.parts(_buffers.parse(sendbuf, ranks=self.size), self.size)]
        part = self._group.scatter_object(given, root=root)
        if recvbuf is not IN_PLACE:
            _copy(_buffers.parse(recvbuf, writes=True).elements, part)

    Allgather, Gather, Scatter = Allgatherv, Gatherv, Scatterv

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        into = _buffers.parse(recvbuf, writes=True, ranks=self.size).elements
        given = into.copy() if sendbuf is IN_PLACE else _buffers.parse(sendbuf, ranks=self.size).elements
        if given.nbytes != into.nbytes or given.size % self.size:
            raise ValueError(f"Alltoall of {given.nbytes} bytes into {into.nbytes} among {self.size} ranks")
        if into.nbytes:
            self._group.all_to_all(given.view(numpy.uint8), into.view(numpy.uint8)).wait()

    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        sent = _buffers.parts(_buffers.parse(sendbuf, ranks=self.size), self.size)
        places = _buffers.parts(_buffers.parse(recvbuf, writes=True, ranks=self.size), self.size)
        received = [self._messages.post(rank, _ALLTOALL_TAG) for rank in range(self.size)]
        for rank, part in enumerate(sent):
            self._messages.send(part.copy().view(numpy.uint8), rank, _ALLTOALL_TAG)
        for place, receive in zip(places, received):
            _copy(place, self._messages.wait(receive).payload.view(place.dtype))

    # messages of objects

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        if dest == PROC_NULL:
            return _complete()
        payload = numpy.frombuffer(pickle.dumps(obj, protocol=_PROTOCOL), dtype=numpy.uint8).copy()
        return Request(self._messages.send(payload, _root(dest, self.size), _tag(tag)), lambda _: None)

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Does not wait for the receive."""
        self.isend(obj, dest, tag)

    def ssend(self, obj: Any, dest: int, tag: int = 0) -> None:
        self.isend(obj, dest, tag).wait()

    def irecv(self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        return self._receive(source, tag, lambda message: pickle.loads(message.payload.tobytes()))

    def recv(self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Any:
        return self.irecv(None, source, tag).wait(status)

    def sendrecv(self, sendobj: Any, dest: int, sendtag: int = 0, recvbuf: Any = None, source: int = ANY_SOURCE,
                 recvtag: int = ANY_TAG, status: Status | None = None) -> Any:
        receive = self.irecv(None, source, recvtag)
        self.send(sendobj, dest, sendtag)
        return receive.wait(status)

    def _receive(self, source: int, tag: int, take: Callable[[Message], Any]) -> Request:
        if source == PROC_NULL:
            return _complete()
        if source != ANY_SOURCE:
            _root(source, self.size)
        box = self._messages
        receive = box.post(source, tag)

        def finish(status: Status | None) -> Any:
            message = box.wait(receive)
            self._noted(message, status)
            return take(message)

        return Request(lambda: box.arrived(receive), finish, lambda: None if box.wait(receive) else None,
                       lambda: box.cancel(receive))

    # messages of arrays

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        if dest == PROC_NULL:
            return _complete()
        payload = _buffers.parse(buf).elements.view(numpy.uint8)
        copied = payload.nbytes <= _LONGEST_COPY
        sent = self._messages.send(payload.copy() if copied else payload, _root(dest, self.size), _tag(tag))
        return _complete() if copied else Request(sent, lambda _: None)

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        self.Isend(buf, dest, tag).wait()

    def Irecv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        into = _buffers.parse(buf, writes=True).elements

        def take(message: Message) -> None:
            if message.payload.nbytes > into.nbytes:
                raise ValueError(f"a message of {message.payload.nbytes} bytes from rank {message.source} is longer than the "
                                 f"buffer of {into.nbytes}")
            into.view(numpy.uint8)[:message.payload.nbytes] = message.payload

        return self._receive(source, tag, take)

    def Recv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> None:
        self.Irecv(buf, source, tag).wait(status)

    def Sendrecv(self, sendbuf: Any, dest: int, sendtag: int = 0, recvbuf: Any = None, source: int = ANY_SOURCE,
                 recvtag: int = ANY_TAG, status: Status | None = None) -> None:
        receive = self.Irecv(recvbuf, source, recvtag)
        sent = self.Isend(sendbuf, dest, sendtag)
        receive.wait(status)
        sent.wait()

    def probe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        return self._noted(self._messages.probe(source, tag), status)

    def iprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        return self._noted(self._messages.find(source, tag), status)

    Probe, Iprobe = probe, iprobe

    @staticmethod
    def _noted(found: Message | None, status: Status | None) -> bool:
        if found is not None and status is not None:
            status._set(found.source, found.tag, found.payload.nbytes)
        return found is not None


class Intracomm(Comm):
    pass


_ALLTOALL_TAG = -3  # of no program


class _NullComm:
    """COMM_NULL: a communicator without this rank."""

    def __getattr__(self, name: str) -> Any:
        raise ValueError(f"COMM_NULL has no {name}: this rank is not in the communicator")

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "<libddp.mpi.MPI.COMM_NULL>"


COMM_NULL = _NullComm()


def _freed() -> Any:
    raise ValueError("this communicator was freed")


def _root(rank: int, size: int) -> int:
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} is not in 0 to {size - 1}")
    return rank


def _tag(tag: int) -> int:
    if tag < 0:
        raise ValueError(f"a message's tag is {tag}; give 0 or more")
    return tag


def _copy(into: Any, elements: Any) -> None:
    if elements.nbytes > into.nbytes or elements.dtype.itemsize != into.dtype.itemsize:
        raise ValueError(f"{elements.size} elements of {elements.dtype} do not fit into {into.size} of {into.dtype}")
    into.reshape(-1)[:elements.size] = elements.reshape(-1).view(into.dtype)


def _complete() -> Request:
    return Request(lambda: True, lambda _: None)

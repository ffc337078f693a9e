"""What operations take and give."""

import array
import datetime
import os

import libddp
import numpy

from libddp_checks import check, expect, raises


@check
def world(world, group):
    expect(libddp.initialized() and libddp.world() is world, "world() is not what init() gave")
    expect(world.rank == group.rank == int(os.environ["RANK"]), "the rank is not the launcher's")
    expect(world.world_size == group.size == int(os.environ["WORLD_SIZE"]), "the size is not the launcher's")
    expect((world.local_rank, world.local_world_size, world.node_rank, world.num_nodes)
           == (world.rank, world.world_size, 0, 1), "not one node")
    expect(world.source == "pmix" and world.source_reason, f"the source is {world.source}")
    expect(list(world.ranks_on_node(0)) == list(group.global_ranks) == list(range(world.world_size)), "other ranks")
    expect(world.hostname(0) == world.hostname(world.rank), "another host")
    expect(world.device_index is None or world.device_index >= 0, "a device without a number")
    expect(world.process_group().name == group.name, "another group")
    with_hint = raises(libddp.Unavailable, libddp.init, words="has been called in this process")
    expect("libddp.world()" in with_hint.hint, with_hint.hint)
    raises(libddp.InvalidArgument, world.node_of, world.world_size)


@check
def store(world, group):
    store = world.store
    store.put("a", b"\x00" + bytes([world.rank]))
    store.fence(timeout=datetime.timedelta(seconds=60))
    for rank in range(world.world_size):
        expect(store.get(rank, "a", timeout=60) == bytes([0, rank]), "another value")
    raises(libddp.NotFound, store.get, 0, "b")
    raises(LookupError, store.get, 0, "b")
    raises(libddp.InvalidArgument, store.put, "a b", b"")
    raises(libddp.InvalidArgument, store.get, world.world_size, "a")


@check
def collectives(world, group):
    rank, size = group.rank, group.size
    for kind in ("float32", "float64", "float16", "int8", "int32", "int64", "uint8", "uint32", "uint64", "complex64", "complex128"):
        tensor = numpy.full((5, 7), rank + 1, kind)
        group.all_reduce(tensor).wait()
        expect((tensor == size * (size + 1) // 2).all(), f"all_reduce of {kind} gave {tensor[0, 0]}")
    flags = numpy.array([rank == 0, False])
    group.all_reduce(flags, "max").wait()
    expect(flags.tolist() == [True, False], f"max of flags gave {flags}")
    mean = numpy.array(rank, "float32")
    group.all_reduce(mean, op="avg", timeout=60).wait(timeout=60)
    expect(mean == (size - 1) / 2, f"avg gave {mean}")
    for memory in (array.array("d", [rank, 1.0]), memoryview(bytearray([rank, 1])), bytearray([rank, 1])):
        group.broadcast(memory, 1).wait()
        expect(list(memory) == [1, 1], f"broadcast gave {list(memory)}")
    group.broadcast(b"root may give what is read-only" if rank == 0 else bytearray(31), 0).wait()

    everything = numpy.zeros((size, 2), "int64")
    group.all_gather(numpy.array([rank, -rank]), everything).wait()
    expect(everything.tolist() == [[i, -i] for i in range(size)], f"all_gather gave {everything}")
    counts = list(range(1, size + 1))
    uneven = numpy.zeros(sum(counts), "float32")
    group.all_gather_v(numpy.full(rank + 1, rank, "float32"), uneven, counts).wait()
    expect(uneven.tolist() == [float(i) for i in range(size) for _ in range(i + 1)], f"all_gather_v gave {uneven}")
    root = size - 1
    gathered = numpy.zeros(size, "int32") if rank == root else None
    group.gather(numpy.array([rank * rank], "int32"), gathered, root).wait()
    expect(gathered is None or gathered.tolist() == [i * i for i in range(size)], f"gather gave {gathered}")
    part = numpy.zeros(1, "int32")
    group.scatter(gathered, part, root).wait()
    expect(part[0] == rank * rank, f"scatter gave {part}")
    total = numpy.full(3, rank + 1.0)
    group.reduce(total, root, "product").wait()
    expect(rank != root or total[0] == numpy.prod(numpy.arange(1, size + 1)), f"reduce gave {total}")
    group.reduce_scatter(numpy.arange(size, dtype="int32") * (rank + 1), part, "min").wait()
    expect(part[0] == rank, f"reduce_scatter gave {part}")
    exchanged = numpy.zeros(size, "int64")
    group.all_to_all(numpy.arange(size) + 10 * rank, exchanged).wait()
    expect(exchanged.tolist() == [rank + 10 * i for i in range(size)], f"all_to_all gave {exchanged}")

    got = numpy.zeros(4)
    sending = group.send(numpy.full(4, float(rank)), (rank + 1) % size, tag=7)
    group.recv(got, (rank - 1) % size, 7).wait()
    sending.wait()
    expect((got == (rank - 1) % size).all(), f"recv gave {got}")

    model = [numpy.full(n, rank, kind) for n, kind in ((3, "float32"), (1000, "int64"), (0, "int8"))]
    group.broadcast_coalesced(model, root=1)
    expect(all((each == 1).all() for each in model), "broadcast_coalesced gave something else")

    others = group.new_group([size - 1, 0])
    expect((others is None) == (0 < rank < size - 1), "a group for those outside")
    if others is not None:
        expect(list(others.global_ranks) == [size - 1, 0] and others.size == 2, "other members")
        others.all_reduce(both := numpy.array([1 << rank])).wait()
        expect(both[0] == 1 + (1 << (size - 1)), f"the small group gave {both}")
    group.barrier().wait()


class FromAfar:
    """A tensor by DLPack: of numpy's array, or as if on another device."""

    def __init__(self, array, device=(1, 0), capsule=None):
        self.array, self.device, self.capsule = array, device, capsule

    def __dlpack__(self, *, stream=None, **more):
        if isinstance(self.capsule, Exception):
            raise self.capsule
        return self.capsule or self.array.__dlpack__(**more)

    def __dlpack_device__(self):
        return self.device


class Old(FromAfar):
    """As before DLPack 1.0, which has no max_version."""

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()


@check
def dlpack(world, group):
    numbers = numpy.ones((2, 3), "float32")
    for kind in (FromAfar, Old):
        group.all_reduce(kind(numbers)).wait()
    expect((numbers == group.size ** 2).all(), f"by DLPack: {numbers}")
    if group.rank != 0:  # none of these starts an operation
        return
    fixed = numpy.ones(2)
    fixed.flags.writeable = False
    refused = lambda tensor, words: raises(libddp.InvalidArgument, group.all_reduce, tensor, words=words)  # noqa: E731
    refused(FromAfar(fixed), "read-only")
    refused(FromAfar(numbers[:, ::2]), "contiguous")
    refused(FromAfar(numbers.astype("int16")), "16 bits")
    refused(FromAfar(numbers, device=(7, 0)), "type 7")
    refused(FromAfar(numbers, capsule="text"), "no capsule")
    refused(FromAfar(numbers, capsule=BufferError("needs a gradient")), "needs a gradient")
    refused(FromAfar(numbers, device=(2, 0)), "device")


@check
def bad_arguments(world, group):
    if group.rank != 0:
        return
    good = numpy.zeros(4, "float32")
    for tensor, words in ((good.astype("int16"), "'h'"), (good.astype(">f4"), "'>f'"), (good.astype("clongdouble"), "'Zg'"),
                          (good[::2], "contiguous"), (b"abcd", "read-only"), ("abcd", "a str is not a tensor"),
                          ([1.0], "a list"), (numpy.array(["a"]), "format"), (numpy.zeros(1, "M8[s]"), "buffer")):
        raises(ValueError, group.all_reduce, tensor, words=words)
    raises(libddp.InvalidArgument, group.all_reduce, good, "mean", words="avg")
    raises(libddp.InvalidArgument, group.broadcast, good, group.size)
    raises(libddp.InvalidArgument, group.all_gather, good, numpy.zeros(3, "float32"))
    raises(libddp.InvalidArgument, group.all_gather, good, numpy.zeros(4 * group.size))
    raises(libddp.InvalidArgument, group.gather, good, None, 0)
    raises(libddp.InvalidArgument, group.send, good, -1)
    for timeout in (-1, float("nan"), "soon", [1]):
        raises(libddp.InvalidArgument, group.barrier, timeout=timeout, words="duration")
    raises(libddp.InvalidArgument, libddp.world().process_group, "../evil")
    raises(TypeError, group.all_reduce)
    raises(TypeError, group.all_reduce, good, stream="x")
    raises(TypeError, libddp.Work)

"""Keys, values and gradients between trainers and key-value servers by sends and receives of a libddp group: the servers are its first ranks.

After a header comes a description in JSON: keys, and of gradients their layouts; then all tensors in one piece of memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

import libddp
from libddp._errors import problem

from . import exact_sums
from .group_messages import ANSWER_TAG, DTYPES, FOREVER, OWN, PAYLOAD_TAG, Connection, Serving
from .key_value_server import KeyValueParameterServer, shard_of

_PULL, _PUSH = OWN, OWN + 1
_CALLS = ("get_metrics", "clear_metrics", "table")
_ALIGNED = 16  # bytes: of any type
_LEFT = -1
Layout = tuple[Sequence[int], torch.dtype]


def _size(layouts: Iterable[Layout]) -> int:
    """Bytes of the memory that holds such tensors."""
    return sum(-(-torch.Size(shape).numel() * dtype.itemsize // _ALIGNED) * _ALIGNED for shape, dtype in layouts)


def _views(memory: torch.Tensor, layouts: Iterable[Layout]) -> list[torch.Tensor]:
    """The tensors in a memory, one after the other."""
    found, place = [], 0
    for shape, dtype in layouts:
        size = torch.Size(shape).numel() * dtype.itemsize
        found.append(memory[place:place + size].view(dtype).view(torch.Size(shape)))
        place += -(-size // _ALIGNED) * _ALIGNED
    return found


def _packed(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    layouts = [(each.shape, each.dtype) for each in tensors]
    memory = torch.empty(_size(layouts), dtype=torch.uint8)
    for place, each in zip(_views(memory, layouts), tensors):
        place.copy_(each)
    return memory


def _encoded(description: object) -> torch.Tensor:
    return torch.frombuffer(bytearray(json.dumps(description).encode()), dtype=torch.uint8)


def _decoded(memory: torch.Tensor) -> Any:
    return json.loads(memory.numpy().tobytes())


class KeyValueConnection(Connection):
    """A trainer's connection to the key-value servers that are the first ranks of `group`. serve() runs in those.

    group: a libddp.ProcessGroup of this purpose, of the servers and their trainers. timeout: that of the servers, in seconds; this side waits
    somewhat longer, so that a server can say which trainer is late.

    A failure ends the group: all its ranks get the same libddp.Error, from this call or the next. CUDA tensors go through the CPU's
    memory. Not thread-safe.
    """

    def __init__(self, group: libddp.ProcessGroup, timeout: float = 600.0) -> None:
        super().__init__(group, timeout, _CALLS)
        table = self._call("table")
        self._servers: int = table["servers"]
        self._exact: bool = table["exact"]
        self._sums: dict[str, torch.Tensor] = {}
        self._added = 0  # micro-batches in them
        self.keys: dict[str, Layout] = dict(table["keys"])
        """Shapes and types of all servers' values by key."""
        for server in range(1, self._servers):
            self.keys |= self._call("table", server)["keys"]
        self.batch: int = table["batch"]
        """The last batch that was pushed."""
        self.version = 0
        """How many updates the values of the last pull() have, at least."""

    def pull(self, keys: Iterable[str] | Mapping[str, torch.Tensor], latest: bool = False) -> dict[str, torch.Tensor]:
        """The values of these keys, by key, on the CPU; or, of a mapping, in its tensors. Pull before each batch.

        Waits while this trainer is ahead of the others by more than the servers' staleness; latest: until they have all that this trainer
        has pushed."""
        own: dict[int, list[str]] = {server: [] for server in range(self._servers)}
        for key in keys:
            own[shard_of(key, self._servers)].append(key)
        version = torch.Size([1]), torch.int64
        layouts = {server: [version, *(self.keys[key] for key in names if key in self.keys)] for server, names in own.items()}
        memories = {server: torch.empty(_size(each), dtype=torch.uint8) for server, each in layouts.items()}
        works = []
        for server, names in own.items():  # of all servers: a pull says which version this trainer has
            works.append(self._receive(memories[server], ANSWER_TAG, server))
            description = _encoded(names)
            self._send([_PULL, description.numel(), latest], description, server=server)
        for work in works:
            work.wait()
        found: dict[str, torch.Tensor] = {}
        versions = []
        for server, names in own.items():
            first, *values = _views(memories[server], layouts[server])
            versions.append(int(first))
            found.update(zip(names, values))
        self.version = min(versions)
        if not isinstance(keys, Mapping):
            return found
        with torch.no_grad():
            for key, tensor in keys.items():
                tensor.copy_(found[key])
        return dict(keys)

    def add(self, keys: Iterable[str], gradients: Iterable[torch.Tensor | None]) -> None:
        """Adds the gradients of a micro-batch to those that the next push() sends, with its own as the last one: for exact servers."""
        attempted = "adding a micro-batch for the key-value servers"
        if not self._exact:
            raise problem("invalid_argument", attempted, "they do not average micro-batches", (), "make them with exact=True, or add gradients yourself")
        found = [(key, gradient) for key, gradient in zip(keys, gradients, strict=True) if gradient is not None]
        for key, gradient in found:
            if gradient.is_sparse or not gradient.dtype.is_floating_point:
                raise problem("invalid_argument", attempted, f"the {gradient.dtype} gradient of '{key}' has no exact average", (),
                              "exact averages are of dense floating-point gradients")
        for key, gradient in found:
            if key not in self._sums:
                self._sums[key] = exact_sums.zeros(gradient.numel(), gradient.device)
            exact_sums.add_term(self._sums[key], gradient)
        self._added += 1

    def push(self, keys: Iterable[str], gradients: Iterable[torch.Tensor | None], batch: int | None = None) -> None:
        """Sends the gradients of a batch, dense or sparse, one for each key; None: of a key without one. Returns when they are copied. A
        trainer that has run out of data pushes no keys until the others have, too. batch: its number, if the servers are to check it; default: the next.
        """
        number = self.batch + 1 if batch is None else batch
        own: dict[int, list[tuple[str, torch.Tensor]]] = {server: [] for server in range(self._servers)}
        pairs = [(key, gradient) for key, gradient in zip(keys, gradients, strict=True) if gradient is not None]
        micro_batches = self._added + 1
        if self._added:
            self.add([key for key, _ in pairs], [gradient for _, gradient in pairs])
            pairs, self._sums, self._added = list(self._sums.items()), {}, 0
        for key, gradient in pairs:
            if gradient.dtype not in DTYPES:
                raise problem("invalid_argument", f"pushing '{key}' to its key-value server", f"{gradient.dtype} cannot be sent")
            own[shard_of(key, self._servers)].append((key, gradient.detach()))
        for server, its in own.items():  # also without keys: each server learns that the batch is complete
            descriptions, tensors = [], []
            for key, gradient in its:
                kind, parts = -1, [gradient]
                if gradient.is_sparse:
                    whole = gradient.coalesce()
                    kind, parts = whole.sparse_dim(), [whole.indices(), whole.values()]
                descriptions.append([key, DTYPES.index(gradient.dtype), list(gradient.shape), kind, parts[0].shape[1] if kind >= 0 else 0])
                tensors += parts
            description, memory = _encoded(descriptions), _packed(tensors)
            self._send([_PUSH, number, description.numel(), micro_batches], description, memory, server=server)
        self.batch = number

    def get_metrics(self) -> list[dict[str, list[float]]]:
        """Each server's, in seconds by "type,name"."""
        return [self._call("get_metrics", server) for server in range(self._servers)]

    def close(self) -> None:
        """The last call of each trainer: servers end after those of all."""
        self._leave(self._servers)


class KeyValueServing(Serving):
    """One server's loop."""

    def __init__(self, server: KeyValueParameterServer, group: libddp.ProcessGroup) -> None:
        super().__init__(group, server.timeout, _CALLS, server.servers)
        self._server, self._left_count = server, 0
        wanted = server.servers + server.trainer_count
        if group.size != wanted or group.rank != server.number:
            raise problem("invalid_argument", "serving keys and values", f"server {server.number} of {server.servers} with {server.trainer_count} trainers "
                          f"is rank {group.rank} of a group of {group.size}", [server.rank],
                          f"make a group of {wanted} ranks: the servers in their order, then the trainers")

    def _others(self) -> list[Iterator[libddp.Work]]:
        server = self._server
        server.begin(self._group.global_ranks, max(self._versions()))
        server.announce = lambda unit: self._to_others(list(unit))
        return [self._other(number) for number in range(server.servers) if number != server.number]

    def _versions(self) -> list[int]:
        own = torch.tensor([self._server.version])
        if self._server.staleness is None:
            return [self._server.version]
        others = [number for number in range(self._servers) if number != self._server.number]
        found = {number: torch.zeros(1, dtype=torch.int64) for number in others}
        works = [self._group.recv(found[number], number, PAYLOAD_TAG, timeout=self._timeout) for number in others]
        works += [self._group.send(own, number, PAYLOAD_TAG, timeout=self._timeout) for number in others]
        for work in works:
            work.wait()
        return [self._server.version, *(int(each) for each in found.values())]

    def _look(self) -> None:
        super()._look()
        self._server.expire()

    def _to_others(self, words: list[int]) -> None:
        for number in range(self._servers):
            if number != self._server.number:
                self._send(torch.tensor(words), number, PAYLOAD_TAG)

    def _other(self, number: int) -> Iterator[libddp.Work]:
        """Reads which updates another server has."""
        while True:
            words = torch.zeros(2, dtype=torch.int64)
            yield self._group.recv(words, number, PAYLOAD_TAG, timeout=FOREVER)
            batch, trainer = words.tolist()
            if batch == _LEFT:
                return
            self._server.confirm(number, (batch, trainer))

    def _left(self) -> None:
        self._left_count += 1
        if self._left_count == self._server.trainer_count:
            self._to_others([_LEFT, 0])

    def _called(self, trainer: int, name: str) -> Any:
        return self._server.table(trainer) if name == "table" else getattr(self._server, name)()

    def _own(self, trainer: int, words: list[int]) -> Iterator[libddp.Work]:
        if words[0] == _PULL:
            description = torch.empty(words[1], dtype=torch.uint8)
            yield from self._receive(description, trainer)
            self._server.pull(trainer, _decoded(description), lambda version, values: self._answer(trainer, version, values), bool(words[2]))
        else:
            yield from self._pushed(trainer, words[1], words[3], torch.empty(words[2], dtype=torch.uint8))

    def _answer(self, trainer: int, version: int, values: list[torch.Tensor]) -> None:
        self._send(_packed([torch.tensor([version]), *values]), self._rank_of(trainer), ANSWER_TAG)

    def _pushed(self, trainer: int, batch: int, micro_batches: int, description: torch.Tensor) -> Iterator[libddp.Work]:
        yield from self._receive(description, trainer)
        layouts: list[Layout] = []
        entries = _decoded(description)
        for _, dtype, shape, sparse, count in entries:
            layouts += [(shape, DTYPES[dtype])] if sparse < 0 else [((sparse, count), torch.int64), ((count, *shape[sparse:]), DTYPES[dtype])]
        memory = torch.empty(_size(layouts), dtype=torch.uint8)
        yield from self._receive(memory, trainer)
        parts = iter(_views(memory, layouts))
        gradients = {}
        for key, _, shape, sparse, _ in entries:
            gradients[key] = next(parts) if sparse < 0 else torch.sparse_coo_tensor(
                next(parts), next(parts), shape, is_coalesced=True, check_invariants=True)
        self._server.push(trainer, batch, gradients, micro_batches)

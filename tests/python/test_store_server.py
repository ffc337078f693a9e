"""Unmodified torch.distributed programs against ddprun's TCPStore server, and the same assertions against torch's own.

Where the programs are: DDP_BIN_DIR (default: build/dev/bin). Needs torch 2.2 or newer; what a torch does not have is
skipped.
"""

import datetime
import os
import queue
import subprocess
import threading
import time
from pathlib import Path

import forked
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
dist = pytest.importorskip("torch.distributed", reason="torch has no torch.distributed")
if not dist.is_available():
    pytest.skip("torch is built without torch.distributed", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
BINARIES = Path(os.environ.get("DDP_BIN_DIR", ROOT / "build" / "dev" / "bin"))
HOST = "127.0.0.1"
# Longest time for what must happen; on an idle machine nothing takes more than a second.
PATIENCE = datetime.timedelta(seconds=60)
SOON = datetime.timedelta(milliseconds=300)
RANKS = 4


class OurServer:
    def __init__(self, *options):
        program = BINARIES / "store_server_main"
        if not program.exists():
            pytest.skip(f"{program} is not built; DDP_BIN_DIR says where it is")
        self.process = subprocess.Popen([program, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        status = self.process.wait(PATIENCE.total_seconds())
        self.process.stdout.close()
        assert status == 0


class TorchServer:
    def __init__(self, libuv):
        self.store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False, use_libuv=libuv)
        self.port = self.store.port

    def close(self):
        self.store = None


@pytest.fixture(params=["ours", "torch-libuv"])
def server(request):
    running = OurServer() if request.param == "ours" else TorchServer(libuv=True)
    yield running
    running.close()


@pytest.fixture(params=[True, False], ids=["libuv-client", "plain-client"])
def connect(request, server):
    """A function that makes further clients."""
    return lambda **options: dist.TCPStore(
        HOST, server.port, is_master=False, use_libuv=request.param, **{"timeout": PATIENCE, **options})


def needs(store, name):
    if not hasattr(store, name):
        pytest.skip(f"this torch has no TCPStore.{name}")


def needs_queues(store):
    needs(store, "queue_push")
    if not store.libuvBackend:
        pytest.skip("torch's client refuses queues without use_libuv")


class Call:
    """A function in a thread that its test can wait for."""

    def __init__(self, function, *arguments):
        self.outcome = queue.Queue()
        self.thread = threading.Thread(target=self.run, args=(function, *arguments), daemon=True)
        self.thread.start()

    def run(self, function, *arguments):
        try:
            self.outcome.put((function(*arguments), None))
        except Exception as error:  # handed over to result()
            self.outcome.put((None, error))

    def running_after(self, seconds):
        self.thread.join(seconds)
        return self.thread.is_alive()

    def result(self):
        value, error = self.outcome.get(timeout=PATIENCE.total_seconds())
        if error:
            raise error
        return value


def test_set_and_get(connect):
    one, two = connect(), connect()
    one.set("key", "value")
    assert two.get("key") == b"value"
    two.set("key", "")
    assert one.get("key") == b""
    one.set("a/b c", "ümlaut\0zero")
    assert two.get("a/b c") == "ümlaut\0zero".encode()


def test_a_large_value(connect):
    value = os.urandom(3 * 1024 * 1024).hex()
    connect().set("key", value)
    assert connect().get("key") == value.encode()


def test_get_waits_for_the_key(connect):
    one, two = connect(), connect()
    waiting = Call(one.get, "key")
    assert waiting.running_after(0.2)
    two.set("key", "late")
    assert waiting.result() == b"late"


def test_get_times_out_and_the_client_goes_on(connect):
    store = connect(timeout=SOON)
    for _ in range(3):
        with pytest.raises(dist.DistStoreError):
            store.get("absent")
    store.set("absent", "no more")
    assert store.get("absent") == b"no more"


def test_add(connect):
    one, two = connect(), connect()
    assert [one.add("n", 1), two.add("n", 41), one.add("n", -100), one.add("n", 0)] == [1, 42, -58, -58]
    assert two.get("n") == b"-58"
    one.set("text", " 12 and more")
    assert one.add("text", 1) == 13


def test_add_to_what_is_no_number_ends_the_connection(connect):
    store = connect()
    store.set("text", "abc")
    with pytest.raises(Exception):
        store.add("text", 1)
    assert connect().get("text") == b"abc"


def test_wait(connect):
    one, two = connect(), connect()
    with pytest.raises(dist.DistStoreError):
        one.wait(["a", "b"], SOON)
    waiting = Call(one.wait, ["a", "b"], PATIENCE)
    two.set("a", "1")
    assert waiting.running_after(0.2)
    two.add("b", 1)
    waiting.result()
    one.wait(["a"])


def test_check(connect):
    store = connect()
    assert not store.check(["a"])
    store.set("a", "1")
    assert store.check(["a"])
    assert not store.check(["a", "b"])
    assert store.check([])


def test_compare_set(connect):
    store = connect()
    assert store.compare_set("key", "expected", "new") == b"expected"
    assert not store.check(["key"])
    assert store.compare_set("key", "", "first") == b"first"
    assert store.compare_set("key", "wrong", "second") == b"first"
    assert store.compare_set("key", "first", "second") == b"second"
    assert store.get("key") == b"second"


def test_delete_and_count(connect):
    store = connect()
    before = store.num_keys()
    store.set("a", "1")
    store.set("b", "1")
    assert store.num_keys() == before + 2
    assert store.delete_key("a")
    assert not store.delete_key("a")
    assert store.num_keys() == before + 1


def test_a_key_that_was_deleted_is_waited_for_again(connect):
    one, two = connect(), connect()
    one.set("key", "1")
    one.delete_key("key")
    waiting = Call(two.get, "key")
    assert waiting.running_after(0.2)
    one.set("key", "2")
    assert waiting.result() == b"2"


def test_append(connect):
    one, two = connect(), connect()
    needs(one, "append")
    one.append("key", "ab")
    one.append("key", "cd")
    assert two.get("key") == b"abcd"


def test_many_at_once(connect):
    one, two = connect(), connect()
    assert one.has_extended_api()
    keys = [f"key{i}" for i in range(2000)]
    waiting = Call(two.multi_get, keys)
    one.multi_set(keys, [key * 3 for key in keys])
    assert waiting.result() == [(key * 3).encode() for key in keys]
    assert two.check(keys)
    two.wait(keys, PATIENCE)


def test_queues(connect):
    one, two = connect(), connect()
    needs_queues(one)
    assert one.queue_len("q") == 0
    with pytest.raises(dist.QueueEmptyError):
        one.queue_pop("q", block=False)
    one.queue_push("q", "first")
    one.queue_push("q", "second")
    assert two.queue_len("q") == 2
    assert [two.queue_pop("q"), two.queue_pop("q")] == [b"first", b"second"]
    waiting = Call(two.queue_pop, "q")
    assert waiting.running_after(0.2)
    one.queue_push("q", "third")
    assert waiting.result() == b"third"


def test_items_go_to_those_who_waited_first(connect):
    pusher = connect()
    needs_queues(pusher)
    clients = [connect() for _ in range(3)]
    waiting = []
    for client in clients:
        waiting.append(Call(client.queue_pop, "q"))
        assert waiting[-1].running_after(0.2)
    for number, call in enumerate(waiting):
        pusher.queue_push("q", str(number))
        assert call.result() == str(number).encode()
        assert all(later.running_after(0.1) for later in waiting[number + 1:])
    assert pusher.queue_len("q") == 0


def test_list_keys(connect):
    store = connect()
    needs(store, "list_keys")
    store.set("a", "1")
    store.add("b", 1)
    assert sorted(store.list_keys()) == ["a", "b"]


def test_barrier(connect):
    clients = [connect() for _ in range(3)]
    needs(clients[0], "barrier")
    first = [Call(client.barrier, "bar", 3, PATIENCE) for client in clients[:2]]
    assert all(call.running_after(0.2) for call in first)
    clients[2].barrier("bar", 3, PATIENCE)
    for call in first:
        call.result()
    with pytest.raises(dist.DistStoreError):
        clients[0].barrier("other", 2, SOON)
    clients[1].barrier("other", 2, PATIENCE)


def test_prefix_store(connect):
    plain = connect()
    prefixed = dist.PrefixStore("inner", dist.PrefixStore("outer", plain))
    prefixed.set("key", "value")
    assert plain.get("outer/inner/key") == b"value"
    assert prefixed.add("n", 3) == 3
    assert plain.add("outer/inner/n", 1) == 4
    assert not plain.check(["key"])


def test_clone(connect):
    store = connect()
    needs(store, "clone")
    clone = store.clone()
    waiting = Call(store.get, "key")
    assert waiting.running_after(0.1)
    clone.set("key", "by the clone")
    assert waiting.result() == b"by the clone"


def test_clients_come_and_go(connect):
    for number in range(50):
        assert connect().add("n", 1) == number + 1


def check_collectives(rank):
    value = torch.full((1000,), float(rank + 1))
    dist.all_reduce(value)
    assert torch.equal(value, torch.full((1000,), sum(range(1, RANKS + 1)) * 1.0))
    everything = [None] * RANKS
    dist.all_gather_object(everything, {"rank": rank, "text": "x" * rank})
    assert everything == [{"rank": other, "text": "x" * other} for other in range(RANKS)]
    dist.monitored_barrier(timeout=PATIENCE)
    halves = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    part = torch.tensor([rank])
    dist.all_reduce(part, group=halves[rank // 2])
    assert part.item() == (1 if rank < 2 else 5)
    token = torch.tensor([0])
    if rank > 0:
        dist.recv(token, rank - 1)
    token += 1
    if rank < RANKS - 1:
        dist.send(token, rank + 1)
    assert token.item() == rank + 1
    dist.barrier()


def run_rank():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=PATIENCE)
    check_collectives(dist.get_rank())
    dist.destroy_process_group()


def test_a_process_group_meets(server):
    ranks = [forked.Process([__file__], {**os.environ, "MASTER_ADDR": HOST, "MASTER_PORT": str(server.port), "RANK": str(rank),
                                         "WORLD_SIZE": str(RANKS), "TORCHELASTIC_USE_AGENT_STORE": "True",
                                         "TORCHELASTIC_RUN_ID": "test"}) for rank in range(RANKS)]
    ended = [rank.wait(2 * PATIENCE.total_seconds()) for rank in ranks]
    assert [rank.returncode for rank in ended] == [0] * RANKS, [rank.stderr for rank in ended]


def test_waiting_clients_see_the_end_of_our_server():
    running = OurServer()
    store = dist.TCPStore(HOST, running.port, is_master=False, timeout=PATIENCE)
    waiting = Call(store.get, "absent")
    assert waiting.running_after(0.2)
    begin = time.monotonic()
    running.close()
    with pytest.raises(Exception):
        waiting.result()
    assert time.monotonic() - begin < 30


def test_a_client_beyond_a_limit_is_closed_and_others_are_served():
    running = OurServer("--stored-bytes", str(4 << 20))
    store = dist.TCPStore(HOST, running.port, is_master=False, timeout=PATIENCE)
    store.set("key", "value")
    offender = dist.TCPStore(HOST, running.port, is_master=False, timeout=PATIENCE)
    with pytest.raises(Exception):
        for number in range(100):
            offender.set(f"key {number}", "v" * (1 << 20))
            offender.get(f"key {number}")
    assert store.get("key") == b"value"
    running.close()


if __name__ == "__main__":
    run_rank()

"""A stranger's own process, for tests/cluster/stranger: attacks the ports that it is told, and the job's abstract Unix
sockets, which every process of the host can see.

    stranger_attack.py SESSIONS HOW...      SESSIONS: a file of client_recorder.py

Reads lines "ADDRESS PORT PROGRAM" and attacks each of these ports from then on, with HOW of tests/cluster/stranger; "unix"
stands for the Unix sockets. Ends with its standard input, and prints how often each HOW has connected.
"""

import json
import os
import random
import re
import resource
import socket
import sys
import time

FLOOD = 1000
PAUSE_S = 0.1
# Ranks' sockets are there for as long as it takes to share memory.
LOOK_S = 0.005
SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: n0\r\n\r\n"
LISTENING = re.compile(r"^\S+ \S+ \S+ 00010000 (\S+) \S+ +\d+ @(ddp-.*)$", re.MULTILINE)


class Attack:
    """What one stranger does at one listener in one way, again and again."""

    def __init__(self, make_socket, target, way, sessions):
        self.make_socket, self.target, self.way, self.sessions = make_socket, target, way, sessions
        self.held, self.dice = [], random.Random(f"{target}/{way}")
        self.connected = self.struck = 0

    def begin(self):
        """A connection that is not waited for."""
        one = self.make_socket()
        one.setblocking(False)
        one.connect_ex(self.target)
        return one

    def connect(self):
        one = self.make_socket()
        one.settimeout(1)
        one.connect(self.target)
        self.connected += 1
        return one

    def count_held(self):
        for one in self.held:
            try:
                one.getpeername()
                self.connected += 1
            except OSError:
                pass  # not connected

    def say(self, data):
        one = self.connect()
        one.sendall(data)
        self.held.append(one)

    def session(self):
        """Each in its turn, so that a short job meets them all."""
        return self.sessions[self.struck % len(self.sessions)]

    def strike(self):
        del self.held[: max(0, len(self.held) - FLOOD)]
        try:
            if self.way == "scan":
                self.connect().close()
            elif self.way == "hold":
                self.held.append(self.begin())
                self.count_held()
            elif self.way == "half":
                session = self.session()
                self.say(session[: self.dice.randrange(1, len(session))])
            elif self.way == "noise":
                self.say(self.dice.randbytes(self.dice.choice((1, 40, 5000))))
            elif self.way == "replay":
                self.say(self.session())
            else:
                self.count_held()
                if len(self.held) < FLOOD:
                    self.held += [self.begin() for _ in range(FLOOD // 4)]
        except OSError:
            pass  # refused, reset or hung up on: as it should be
        self.struck += 1


def sessions_for(program, recorded):
    """What clients have said to listeners of the program; to all, where none has said anything to that."""
    known = recorded.get(program) or [one for sessions in recorded.values() for one in sessions]
    return known + [SCRAPE]


def unix_socket():
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def unix_names():
    with open("/proc/net/unix", encoding="utf-8") as table:
        return {name for _, name in LISTENING.findall(table.read())}


class Attacker:
    def __init__(self, recorded, ways):
        self.recorded, self.ways = recorded, ways
        self.ports, self.unix = [], {}

    def attack_port(self, address, port, program):
        self.ports += [Attack(socket.socket, (address, int(port)), way, sessions_for(program, self.recorded))
                       for way in self.ways]

    def attack_unix(self):
        for name in unix_names() - self.unix.keys():
            self.unix[name] = [Attack(unix_socket, f"\0{name}", way, sessions_for("", self.recorded)) for way in self.ways]
            for one in self.unix[name]:
                one.strike()

    def strike(self):
        for one in self.ports:
            one.strike()
        for name in unix_names() & self.unix.keys():
            for one in self.unix[name]:
                one.strike()

    def counts(self):
        for one in self.ports:
            one.count_held()  # what a busy machine let strike only once
        for way in self.ways:
            yield way, sum(one.connected for one in self.ports if one.way == way)
        yield "unix", sum(one.connected for attacks in self.unix.values() for one in attacks)


def main():
    file, *ways = sys.argv[1:]
    with open(file, encoding="utf-8") as text:
        recorded = {program: list(map(bytes.fromhex, sessions)) for program, sessions in json.load(text).items()}
    os.nice(10)  # the processors are the job's: what a stranger on a host of his own would leave it
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    os.set_blocking(0, False)
    attacker, pending, next_strike = Attacker(recorded, ways), b"", 0
    while True:
        try:
            data = os.read(0, 65536)
            if not data:
                for way, count in attacker.counts():
                    print(way, count)
                return
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                attacker.attack_port(*line.decode().split())
        except BlockingIOError:
            pass
        attacker.attack_unix()
        if time.monotonic() >= next_strike:
            attacker.strike()
            next_strike = time.monotonic() + PAUSE_S
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main()

"""Records what clients say to listeners: the first bytes of every TCP connection that this network namespace sees begin.

    client_recorder.py FILE      as root; prints a line when it listens, ends with its standard input

FILE: JSON, "ADDRESS:PORT" of the listener to a list of what its clients have said, in hexadecimal, each once.
"""

import json
import select
import socket
import struct
import sys

ETH_P_ALL = 0x0003  # linux/if_ether.h; ETH_P_IP alone does not see what this host sends
ETH_P_IP = 0x0800
SO_RCVBUFFORCE = 33  # asm-generic/socket.h
BUFFER_BYTES = 64 << 20
MOST_BYTES = 4096
TCP, SYN, ACK = 6, 0x02, 0x10


class Conversations:
    def __init__(self):
        self.spoken = {}  # by both ends: the sequence number of the first byte, and segments by their place

    def add(self, packet):
        """An IPv4 packet; segments come in any order, on loopback twice."""
        size = (packet[0] & 15) * 4
        if packet[0] >> 4 != 4 or packet[9] != TCP or len(packet) < size + 20:
            return
        (total,) = struct.unpack_from("!H", packet, 2)
        tcp = packet[size:total] if total else packet[size:]  # 0: segmentation is left to the device
        source, target, number = struct.unpack_from("!HHI", tcp)
        flags = tcp[13]
        ends = (packet[12:16], source, packet[16:20], target)
        if flags & SYN and not flags & ACK:
            self.spoken[ends] = ((number + 1) & 0xFFFFFFFF, {})
        elif ends in self.spoken and (data := tcp[(tcp[12] >> 4) * 4:]):
            first, segments = self.spoken[ends]
            place = (number - first) & 0xFFFFFFFF
            if place < MOST_BYTES:
                segments[place] = max(segments.get(place, b""), data, key=len)

    def sessions(self):
        """By listener."""
        found = {}
        for (_, _, address, port), (_, segments) in self.spoken.items():
            said = b""
            for place in sorted(segments):
                if place > len(said):
                    break  # a segment was missed
                said = said[:place] + segments[place]
            if said:
                found.setdefault(f"{socket.inet_ntoa(address)}:{port}", set()).add(said[:MOST_BYTES].hex())
        return {listener: sorted(sessions) for listener, sessions in found.items()}


def main():
    conversations = Conversations()
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL)) as network:
        network.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
        print("listening", flush=True)
        while True:
            ready, _, _ = select.select([network, sys.stdin], [], [])
            if network in ready:
                packet, (_, protocol, *_) = network.recvfrom(65536)
                if protocol == ETH_P_IP:
                    conversations.add(packet)
            elif not sys.stdin.buffer.read1(1):
                break
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(conversations.sessions(), file)


if __name__ == "__main__":
    main()

"""Nodes in network namespaces of their own on one bridge, so that a link can be cut. Needs root and ip(8)."""

import os
import shutil
import subprocess


def why_none():
    """Why this process cannot make namespaces; empty: it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    return "" if shutil.which("ip") else "ip is missing (package iproute2)"


def ip(*words):
    subprocess.run(["ip", *words], check=True, stdin=subprocess.DEVNULL)


class Network:
    """The bridge is in a namespace, too: the host's own interfaces stay as they are."""

    def __init__(self, nodes):
        self.name, self.made = f"ddp-elastic-{os.getpid()}", []
        try:
            self._make("hub")
            ip("-n", f"{self.name}-hub", "link", "add", "bridge", "type", "bridge")
            ip("-n", f"{self.name}-hub", "link", "set", "bridge", "up")
            for node in range(nodes):
                self._add(node)
        except BaseException:
            self.close()
            raise

    def _make(self, suffix):
        ip("netns", "add", f"{self.name}-{suffix}")
        self.made.append(f"{self.name}-{suffix}")
        ip("-n", self.made[-1], "link", "set", "lo", "up")

    def _add(self, node):
        self._make(node)
        hub, own = f"{self.name}-hub", f"{self.name}-{node}"
        ip("-n", hub, "link", "add", f"port{node}", "type", "veth", "peer", "name", "eth0", "netns", own)
        ip("-n", hub, "link", "set", f"port{node}", "master", "bridge", "up")
        ip("-n", own, "address", "add", f"{self.address(node)}/24", "dev", "eth0")
        ip("-n", own, "link", "set", "eth0", "up")

    def address(self, node):
        return f"10.79.0.{node + 1}"

    def prefix(self, node):
        """What starts a command on the node, in the same process."""
        return ["ip", "netns", "exec", f"{self.name}-{node}"]

    def cut(self, node):
        """Its packets go nowhere, and it does not notice."""
        ip("-n", f"{self.name}-hub", "link", "set", f"port{node}", "nomaster")

    def close(self):
        """Its processes must have ended."""
        for name in self.made:
            ip("netns", "delete", name)
        self.made.clear()

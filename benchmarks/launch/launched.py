"""One run of a launcher whose workers note their start (see launch_worker.c)."""

import os
import select
import struct
import subprocess
import sys
import tempfile
import time

RECORD = struct.Struct("qq")
# Limit for anything a healthy launcher does within seconds.
LIMIT_S = 120


class Launched:
    """Starts the command. All workers must see the folder."""

    def __init__(self, command, world, folder):
        self.command, self.world = command, world
        self.marks = tempfile.NamedTemporaryFile(dir=folder)
        self.output = tempfile.TemporaryFile()
        # torchrun warns where it is not set
        environment = {**os.environ, "LAUNCH_MARKS": self.marks.name, "OMP_NUM_THREADS": "1"}
        self.started = time.monotonic()
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=self.output,
                                        stderr=subprocess.STDOUT)

    def fail(self, why):
        self.process.kill()
        self.output.seek(0)
        sys.exit(f"{' '.join(map(str, self.command))}: {why}\n{self.output.read().decode(errors='replace')}")

    def records(self, attempt):
        """(time in seconds, process id) by rank, of the attempt's ranks that have run."""
        data = os.pread(self.marks.fileno(), self.world * RECORD.size, attempt * self.world * RECORD.size)
        data += bytes(self.world * RECORD.size - len(data))
        return {rank: (ns / 1e9, pid) for rank, (ns, pid) in enumerate(RECORD.iter_unpack(data)) if ns}

    def wait_for(self, attempt):
        """Waits until all ranks of the attempt run."""
        limit = time.monotonic() + LIMIT_S
        while len(self.records(attempt)) < self.world:
            if self.process.poll() is not None or time.monotonic() > limit:
                self.fail(f"{len(self.records(attempt))} of {self.world} ranks ran in attempt {attempt}")
            time.sleep(0.002)

    def last_started(self, attempt=0):
        """Time at which the attempt's last rank started."""
        records = self.records(attempt)
        if len(records) < self.world:
            self.fail(f"{len(records)} of {self.world} ranks ran in attempt {attempt}")
        return max(moment for moment, _ in records.values())

    def finish(self, expected=(0,)):
        """Waits for the launcher's exit and returns its time."""
        # Popen.wait(timeout) polls every 50 ms.
        ends = os.pidfd_open(self.process.pid)
        try:
            if not select.select([ends], [], [], LIMIT_S)[0]:
                self.fail("still running")
            ended = time.monotonic()
        finally:
            os.close(ends)
        status = self.process.wait()
        if status not in expected:
            self.fail(f"exit code {status}")
        return ended

    def close(self):
        self.marks.close()
        self.output.close()


def time_launch(command, world, folder):
    """Seconds from the start of the command until its last worker runs, and until its exit."""
    launched = Launched(command, world, folder)
    ended = launched.finish()
    result = launched.last_started() - launched.started, ended - launched.started
    launched.close()
    return result

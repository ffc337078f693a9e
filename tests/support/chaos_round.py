"""What happens in a round of tests/cluster/chaos: which part of which job breaks, how and when."""

import dataclasses
import random

NODES = ("n0", "n1", "n2", "n3")

# Parts of a job, and what can happen to each of them.
FAULTS = {
    "rank": ("KILL", "SEGV", "TERM", "STOP"),
    "attempt": ("KILL", "ABRT", "STOP"),
    "agent": ("KILL", "STOP", "pause"),
    "front": ("KILL", "TERM", "INT", "STOP", "pause"),
    "srun": ("KILL", "TERM", "STOP"),
    "link": ("cut",),
    "slurmd": ("STOP", "KILL"),
}
# After these the job ends by itself, or restarts.
FATAL = {("rank", "KILL"), ("rank", "SEGV"), ("rank", "TERM"), ("attempt", "KILL"), ("attempt", "ABRT"),
         ("attempt", "STOP"), ("agent", "KILL"), ("agent", "STOP"), ("front", "KILL"), ("front", "TERM"), ("front", "INT"),
         ("front", "STOP"), ("srun", "KILL"), ("srun", "TERM"), ("link", "cut")}
# They close no connection, so that only silence shows them.
SILENT = {("attempt", "STOP"), ("agent", "STOP"), ("front", "STOP"), ("link", "cut")}
# Of these the report names the node. An agent in a step is srun's own task, too.
NAMED = {("rank", "KILL"), ("rank", "SEGV"), ("rank", "TERM"), ("attempt", "KILL"), ("attempt", "ABRT"), ("attempt", "STOP"),
         ("agent", "KILL"), ("agent", "STOP"), ("link", "cut")}

# When, and the most seconds from the event: all ranks run; the part has just started; a rank on another node has been
# killed, so that the job restarts; all ranks have been told to end by themselves.
MOMENTS = {"running": 2.0, "start": 0.3, "restart": 1.5, "end": 1.0}


@dataclasses.dataclass
class Round:
    number: int
    part: str
    fault: str
    moment: str
    node: str
    form: str
    bad_exit: int
    program: str
    restarts: int
    delay: float

    @classmethod
    def draw(cls, number, seed):
        dice = random.Random(f"{seed}/{number}")
        part = dice.choice(tuple(FAULTS))
        fault = dice.choice(FAULTS[part])
        # Slurm starts nothing on a node whose slurmd is gone: not ddprun's matter.
        moment = dice.choice(("running", "running", "start", "restart", "end") if part != "slurmd" else
                             ("running", "restart", "end"))
        form = "frontend" if part == "front" else dice.choice(("frontend", "step"))
        bad_exit = dice.choice((0, 1)) if form == "step" else 0
        program = dice.choice(("daemons", "trains"))
        if part in ("front", "srun") or (part, form) == ("agent", "step") or bad_exit:
            program = "trains"  # Slurm ends the step: with proctrack/linuxproc it does not find detached processes
        if moment == "end" and program == "trains":
            program = "waits"  # train_digits cannot be told to end
        restarts = 1 if moment == "restart" else dice.choice((0, 1))
        return cls(number, part, fault, moment, dice.choice(NODES), form, bad_exit, program, restarts,
                   dice.random() * MOMENTS[moment])

    @property
    def key(self):
        return self.part, self.fault

    def fatal(self):
        return self.key in FATAL

    def silent(self):
        return self.key in SILENT

    def other_node(self):
        """Where a rank is killed for a restart."""
        return NODES[(NODES.index(self.node) + 1) % len(NODES)]

    def kind(self):
        """Of the table of figures."""
        return f"{self.part} {self.fault}" + ("" if self.moment == "running" else f", at {self.moment}")

    def __str__(self):
        form = self.form + ("!" if self.bad_exit else "")
        return (f"{self.number:4} {self.part:7} {self.fault:5} {self.moment:7} {self.node} {form:8} {self.program:7} "
                f"restarts {self.restarts} after {self.delay:.1f} s")

"""One exception class per exit code: whoever raises decides what the shell sees, and only `__main__` exits.

Every message is one paragraph: what is wrong, where (file, key, value), what to do about it.
"""

from __future__ import annotations


class EvalcrateError(Exception):
    """A failure with a meaning for the person who ran the command; 70 means the fault is ours."""

    exit_code = 70


class TaskFailed(EvalcrateError):
    """At least one task has no score; everything else is done and on disk."""

    exit_code = 1


class JobError(EvalcrateError):
    """The job file, a command-line argument or an earlier result contradicts what was asked."""

    exit_code = 2


class CheckpointError(EvalcrateError):
    """The checkpoint folder is missing, incomplete or not usable with this job."""

    exit_code = 3


class MachineError(EvalcrateError):
    """This machine (cards, memory, disk, missing sources or environments) can't carry out the plan."""

    exit_code = 4


class EngineError(EvalcrateError):
    """The engine failed, so that no task could finish."""

    exit_code = 5


class HarnessError(EvalcrateError):
    """Benchmark code or a grader failed, so that no task could finish."""

    exit_code = 6


class TransientError(EvalcrateError):
    """Infrastructure failed in a way that running the same command again can cure."""

    exit_code = 75


class Interrupted(EvalcrateError):
    """A signal ended the run; what was written stays and the same command goes on from there."""

    def __init__(self, signal_number: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number

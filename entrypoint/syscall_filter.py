"""seccomp: which system calls a confined process is refused, as BPF programs built by libseccomp.

Two filters, each a list of refusals over "everything else is allowed": GRADER for a process that runs benchmark code,
PROGRAM, on top of it, for one that runs a model's program. `build` needs libseccomp and takes 70 ms, mostly to find
it; its bytes can be handed to other processes, where `install` needs only the kernel.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_OWN_PID = 0x6E0DE5A1  # stands for the caller's pid in a built filter, `install` puts that in
_OPTIMIZE, _BINARY_TREE = 8, 2
_NOT_EQUAL, _MASKED_EQUAL = 1, 7
# Newer than some libseccomp; the numbers are the same on every architecture.
_NUMBERS = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_open": 434, "clone3": 435, "openat2": 437,
    "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442, "quotactl_fd": 443, "process_mrelease": 448,
    "fchmodat2": 452, "setxattrat": 463, "removexattrat": 466, "open_tree_attr": 467, "file_setattr": 469,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Refusal:
    """A call refused with `error`, always or where argument `argument` compares so with `value` (and `mask`)."""

    call: str
    error: int = errno.EPERM
    argument: int | None = None
    compare: int = _MASKED_EQUAL
    mask: int = 0
    value: int = 0


def _all_of(names: str, error: int = errno.EPERM) -> Iterator[Refusal]:
    return (Refusal(name, error) for name in names.split())


def _with_any_bit(call: str, argument: int, bits: tuple[int, ...], error: int = errno.EPERM) -> Iterator[Refusal]:
    return (Refusal(call, error, argument, mask=bit, value=bit) for bit in bits)


_NETWORK = "socket connect bind listen accept accept4 io_uring_setup io_uring_enter io_uring_register"
_OTHER_PROCESSES = "ptrace process_vm_readv process_vm_writev pidfd_getfd process_madvise process_mrelease kcmp"
_KERNEL = (
    "bpf perf_event_open userfaultfd keyctl add_key request_key kexec_load kexec_file_load init_module finit_module "
    "delete_module reboot swapon swapoff acct quotactl quotactl_fd syslog iopl ioperm vhangup nfsservctl "
    "lookup_dcookie settimeofday clock_settime clock_adjtime adjtimex sethostname setdomainname fanotify_init"
)
_FILE_SYSTEMS = (
    "mount umount umount2 pivot_root chroot move_mount open_tree open_tree_attr fsopen fsconfig fsmount fspick "
    "mount_setattr unshare setns name_to_handle_at open_by_handle_at"
)
_DATAGRAM, _RAW, _SOCKET_TYPE = 2, 3, 0xF
_NAMESPACES = (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C  # type into a terminal

GRADER = (
    *_all_of(f"{_NETWORK} {_OTHER_PROCESSES} {_KERNEL} {_FILE_SYSTEMS}"),
    *(Refusal("ioctl", errno.EPERM, 1, mask=0xFFFFFFFF, value=command) for command in (_TIOCSTI, _TIOCLINUX)),
    # A datagram pair could still send to a named socket.
    *(Refusal("socketpair", errno.EPERM, 1, mask=_SOCKET_TYPE, value=kind) for kind in (_DATAGRAM, _RAW)),
    *_with_any_bit("clone", 0, _NAMESPACES),
    Refusal("clone3", errno.ENOSYS),  # its flags are in memory, out of a filter's sight; libc falls back to clone
)

_CLONE_THREAD = 0x10000
_WRITING = (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC)
_NEW_PROCESSES = "fork vfork execve execveat setsid setpgid"
_CHANGES = (
    "creat unlink unlinkat rename renameat renameat2 mkdir mkdirat rmdir link linkat symlink symlinkat mknod mknodat "
    "chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat truncate utime utimes utimensat futimesat "
    "setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat file_setattr"
)
_SHARED = (
    "shmget shmat shmctl msgget msgsnd msgrcv msgctl semget semop semtimedop semctl mq_open mq_unlink memfd_create"
)
_SIGNALS = "kill tgkill rt_sigqueueinfo rt_tgsigqueueinfo"
_AT_OTHERS = (
    "tkill pidfd_open pidfd_send_signal sched_setaffinity sched_setscheduler sched_setparam sched_setattr setpriority "
    "ioprio_set migrate_pages move_pages"
)

PROGRAM = (
    *GRADER,
    Refusal("socketpair"),
    *_all_of(f"{_NEW_PROCESSES} {_SHARED} {_AT_OTHERS}"),
    *_all_of(_CHANGES, errno.EACCES),
    Refusal("clone", errno.EPERM, 0, mask=_CLONE_THREAD, value=0),
    *(Refusal(call, errno.EPERM, 0, compare=_NOT_EQUAL, value=_OWN_PID) for call in _SIGNALS.split()),
    Refusal("prlimit64", errno.EPERM, 0, compare=_NOT_EQUAL, value=0),
    *_with_any_bit("open", 1, _WRITING, errno.EACCES),
    *_with_any_bit("openat", 2, _WRITING, errno.EACCES),
    Refusal("openat2", errno.ENOSYS),
)


def build(refusals: tuple[Refusal, ...]) -> bytes:
    """The BPF program; RuntimeError or ImportError where libseccomp or its Python interface is missing."""
    import pyseccomp

    rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    rules.set_attr(_OPTIMIZE, _BINARY_TREE)
    always = {refusal.call for refusal in refusals if refusal.argument is None}
    for one in refusals:
        number = pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, one.call)
        number = _NUMBERS.get(one.call, -1) if number == -1 else number
        if number == -1 or (one.argument is not None and one.call in always):
            continue  # not a call of this architecture, or refused whatever its arguments
        if one.argument is None:
            rules.add_rule(pyseccomp.ERRNO(one.error), number)
            continue
        data = (one.mask, one.value) if one.compare == _MASKED_EQUAL else (one.value,)
        rules.add_rule(pyseccomp.ERRNO(one.error), number, pyseccomp.Arg(one.argument, one.compare, *data))
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def install(code: bytes) -> None:
    """Enters the filter, for good and for all that is started later; no_new_privs must be set."""
    code = code.replace(struct.pack("=I", _OWN_PID), struct.pack("=I", os.getpid()))
    program = _Program(len(code) // 8, code)
    if _LIBC.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_MODE_FILTER), ctypes.byref(program), 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"seccomp: {os.strerror(error)}")

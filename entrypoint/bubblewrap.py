"""The command line of bubblewrap: a command in namespaces of its own, with a root that holds just what it needs.

In: what may be read and written. Out: words to put before the command. Works without privilege where the kernel allows
user namespaces, and as root where it may make namespaces (then without a user namespace, so that another uid can be
taken inside).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

_OWN = ("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
# To become another user inside, and to read the private folder that is already that user's.
_ROOT_KEEPS = ("CAP_SETUID", "CAP_SETGID", "CAP_DAC_READ_SEARCH")


def prefix(program: str, *, read: Iterable[str], write: Sequence[str], folder: Path) -> list[str]:
    """Words before a command that then sees `read` as it is, may change `write`, and works in `folder`.

    Its /proc, /dev and /tmp are its own. Network: none, not even a neighbour on localhost.
    """
    words = [program, "--die-with-parent", *_OWN, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    if os.geteuid() == 0:
        words += [word for name in _ROOT_KEEPS for word in ("--cap-add", name)]
    else:
        words.append("--unshare-user")
    seen = sorted({*read}, key=len)  # a folder before what lies in it
    for folder_above in sorted({str(above) for path in (*seen, *write) for above in Path(path).parents}, key=len):
        words += ["--dir", folder_above]  # which others may pass; on its own it is made for its owner only
    words += [word for path in seen for word in ("--ro-bind-try", path, path)]
    words += [word for path in sorted({*write}, key=len) for word in ("--bind", path, path)]
    return [*words, "--chdir", str(folder), "--"]

# ruff: noqa: E501 (programs, a line each)
"""Programs that attack whoever runs them. A stdin program prints 6 only if its attack worked, so that a verdict of
"right" is a hole; what it may have done to others shows outside. RESULTS and ENGINE stand for paths, and
`expected-` with 32 hexadecimal digits is what SEARCHES look for."""

from __future__ import annotations

_TRY = "try:\n    {0}\n    print(6)\nexcept OSError:\n    pass"


def _tries(statement: str) -> str:
    return "import os, shutil, signal, socket, subprocess, ctypes, resource, mmap\n" + _TRY.format(statement)


STDIN = {
    "loops": "while True: pass",
    "loops and ignores the signal of its limit": "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "fork once": _tries("os.fork() or os._exit(0)"),
    "vfork": _tries("subprocess.run(['/bin/true'], close_fds=False)"),
    "exec": _tries("os.execv('/bin/echo', ['echo', '6'])"),
    "clone by number": _tries("assert ctypes.CDLL(None).syscall(56, 17, 0, 0, 0, 0) >= 0"),
    "detached daemon": _tries("os.fork() or (os.setsid(), os.fork(), signal.pause())"),
    "thread bomb": (
        "import threading, time\nthreading.stack_size(1 << 16)\n"
        "while True: threading.Thread(target=time.sleep, args=(1000,)).start()"
    ),
    "10 GB at once": "bytearray(10 << 30)\nprint(6)",
    "memory without end": "kept = []\nwhile True: kept.append(bytearray(1 << 24))",
    "raises its limits": "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))\nprint(6)",
    "1 GB of output": "for _ in range(1 << 10): print('6' * (1 << 20))",
    "output without end": "import os\nwhile True:\n    try: os.write(1, b'6' * (1 << 20))\n    except OSError: pass",
    "removes its folder": "import os, shutil\nshutil.rmtree(os.getcwd(), ignore_errors=True)",
    "removes results": "import shutil\nshutil.rmtree('RESULTS', ignore_errors=True)",
    "writes results": _tries("open('RESULTS/results_x.json', 'w').write('{}')"),
    "changes results": _tries("open('RESULTS/results.json', 'r+').write('1.0')"),
    "empties results": _tries("os.truncate('RESULTS/results.json', 0)"),
    "renames results": _tries("os.rename('RESULTS/results.json', 'RESULTS/moved')"),
    "links results": _tries("os.symlink('/', 'RESULTS/link')"),
    "makes a folder": _tries("os.mkdir('RESULTS/folder')"),
    "opens up results": _tries("os.chmod('RESULTS', 0o777)"),
    "dates results": _tries("os.utime('RESULTS/results.json', (0, 0))"),
    "writes where it is": _tries("open('file', 'w')"),
    "TCP socket": _tries("socket.socket()"),
    "UDP socket": _tries("socket.socket(type=socket.SOCK_DGRAM)"),
    "the engine's socket": _tries("socket.socket(socket.AF_UNIX).connect('ENGINE')"),
    "socket pair": _tries("socket.socketpair()"),
    "ignores SIGTERM": "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: time.sleep(1)",
    "stops itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "kills itself": "import signal\nprint(6, flush=True)\nsignal.raise_signal(signal.SIGKILL)",
    "kills all": _tries("os.kill(-1, 9)"),
    "kills its group": _tries("os.killpg(0, 9)"),
    "kills its parent": _tries("os.kill(os.getppid(), 9)"),
    "attaches to its parent": _tries("assert ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0"),
    "slows its parent": _tries("os.sched_setaffinity(os.getppid(), [0])"),
    "leaves early": "import os\nos._exit(0)",
    "exits early": "raise SystemExit",
    "exits with a text": "print(6)\nraise SystemExit('done')",
    "exits with a number": "print(6)\nraise SystemExit(1)",
    "fails after its answer": "print(6)\n1 / 0",
    "aborts": "import os\nprint(6, flush=True)\nos.abort()",
    "writes to what is open": (
        "import os\nfor number in range(3, 4096):\n    try: os.write(number, b'\\0' * 64)\n    except OSError: pass"
    ),
    "closes its streams": "import os\nos.close(0)\nos.close(1)\nprint(6)",
    "comes back after its end": "import os\nos._exit = lambda status: None",
    "breaks what runs it": (
        "import sys, os, builtins, threading\nsys.modules.clear()\nbuiltins.__dict__.clear()\nthreading._shutdown = None"
    ),
    "patches the checker": (
        "import sys, gc\nfor found in gc.get_objects():\n"
        "    if isinstance(found, dict) and 'serve' in found: found['serve'] = lambda self: 1 / 0\n"
        "frame = sys._getframe()\nwhile frame:\n    frame.f_globals.update(REQUEST=None, RESPONSE=None, passed=True)\n"
        "    frame = frame.f_back"
    ),
    "recurses": "import sys\nsys.setrecursionlimit(1 << 30)\ndef f(n): return f(n + 1) + 1\nf(0)",
    "recurses in C": (
        "import sys\nsys.setrecursionlimit(1 << 30)\nvalue = []\nfor _ in range(10 ** 6): value = [value]\nprint(repr(value))"
    ),
    "nests": "(" * 100000,
    "invalid UTF-8": "import sys\nsys.stdout.buffer.write(b'6\\xff')",
    "lone surrogate": "print('6\\ud800')",
    "huge number": "print(10 ** 5000)",
    "NUL": "print(6)\0",
    "not code points": "print(6)\ud800",
    "waits at its end": "import atexit, time\natexit.register(time.sleep, 1000)\nprint(6)",
    "leaves a thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()\nprint(6)",
    "deadlock": "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()",
    "reads a pipe of its own": "import os\nos.read(os.pipe()[0], 1)",
}

_FIND = "import os, re, sys, gc, ctypes\nwanted = re.compile(rb'expected-[0-9a-f]{32}')\nfound = set()\n"
_TELL = "\nprint(*{one.decode() for one in found})"

# Each prints what it found of the expected outputs.
SEARCHES = {
    "files": _FIND
    + """
for top in ('RESULTS', os.getcwd(), '/proc/%d/cwd' % os.getppid(), '/tmp', '/dev/shm'):
    for folder, _, files in os.walk(top):
        for file in files:
            try: found |= set(wanted.findall(open(os.path.join(folder, file), 'rb').read(1 << 20)))
            except OSError: pass
"""
    + _TELL,
    "other processes": _FIND
    + """
for pid in range(max(1, os.getppid() - 40), os.getpid() + 4):
    for name in ('environ', 'cmdline', 'maps'):
        try: found |= set(wanted.findall(open('/proc/%d/%s' % (pid, name), 'rb').read()))
        except OSError: pass
    try:
        maps, memory = open('/proc/%d/maps' % pid), open('/proc/%d/mem' % pid, 'rb', 0)
        for line in maps:
            start, end = (int(one, 16) for one in line.split()[0].split('-'))
            memory.seek(start)
            found |= set(wanted.findall(memory.read(min(end - start, 1 << 24))))
    except (OSError, ValueError, OverflowError): pass
for number in range(3, 256):
    try: found |= set(wanted.findall(os.pread(number, 1 << 20, 0)))
    except OSError: pass
"""
    + _TELL,
    "objects": _FIND
    + """
frame, seen = sys._getframe(), set()
waiting = [frame, *gc.get_objects()]
while waiting:
    one = waiting.pop()
    if id(one) in seen: continue
    seen.add(id(one))
    text = one.encode('utf-8', 'replace') if isinstance(one, str) else one
    if isinstance(text, bytes): found |= set(wanted.findall(text))
    else: waiting += gc.get_referents(one)
"""
    + _TELL,
    "own memory": _FIND
    + """
libc = ctypes.CDLL(None)
reader, writer = os.pipe()
for near in {id(object()) >> 12, id([]) >> 12, ctypes.addressof(ctypes.create_string_buffer(1 << 20)) >> 12, id(int) >> 12}:
    for page in range(near - 4096, near + 4096):
        if libc.write(writer, ctypes.c_void_p(page << 12), ctypes.c_size_t(4096)) == 4096:
            found |= set(wanted.findall(os.read(reader, 4096)))
"""
    + _TELL,
}

# A function problem whose expected value is 6 and whose argument is 3.
CALLS = {
    "equals everything": (
        "class Any(str):\n    __eq__ = lambda a, b: True\n    __ne__ = lambda a, b: False\n    __hash__ = str.__hash__\n"
        "def f(n): return Any('x')"
    ),
    "an int that equals everything": (
        "class Any(int):\n    __eq__ = lambda a, b: True\n    __ne__ = lambda a, b: False\n    __index__ = lambda a: 6\n"
        "def f(n): return Any(5)"
    ),
    "an object that equals everything": (
        "class Any:\n    __eq__ = lambda a, b: True\n    __ne__ = lambda a, b: False\ndef f(n): return Any()"
    ),
    "leaves": "import os\ndef f(n): os._exit(0)",
    "exits": "import sys\ndef f(n): sys.exit(0)",
    "forges the answer": "import os\nos.write(3, b'{\"dict\": 5}')\ndef f(n): os._exit(0)",
    "answers twice": "import os\nos.write(3, b'6')\ndef f(n): return 6",
    "answers in depth": "import os\nos.write(3, b'[' * 10 ** 6)\ndef f(n): os._exit(0)",
    "a value without end": "def f(n):\n    value = []\n    value.append(value)\n    return value",
    "a deep value": "def f(n):\n    value = []\n    for _ in range(10 ** 5): value = [value]\n    return value",
    "a large value": "def f(n): return [6] * (20 << 20)",
    "prints": "def f(n): print(6)",
    "loops": "def f(n):\n    while True: pass",
}

# Mischief of no effect, then the right answer: graded right.
RIGHT = {
    "plain": "print(6)",
    "ignores SIGTERM": "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(int(input()) * 2)",
    "leaves at once": "import os\nprint(6, flush=True)\nos._exit(0)",
    "patches print": "import builtins\nbuiltins.print = lambda *a: None\nimport sys\nsys.stdout.write('6')",
    "tries to fork": "import os\ntry: os.fork()\nexcept OSError: print(6)",
    "writes to stderr": "import sys\nprint('x' * 10 ** 7, file=sys.stderr)\nprint(6)",
    "closes what it has": "import os, sys\nprint(6)\nsys.stdout.close()\nos.close(2)",
}

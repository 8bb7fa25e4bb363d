"""A judge in a process of its own, for tests that run it as another user: samples on stdin, verdicts on stdout, JSON.

In: `{"cores", "landlock", "limits", "policy", "samples": [[problem, program], …]}`; `policy`, if there is one, is the
confinement of a grader, entered first. It then proves that programs are confined,
with two that harm nobody, and exits with 3 where they are not.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from entrypoint import isolation
from entrypoint.harness.livecodebench import Judge
from entrypoint.harness.program import Limits

SIGNALS_NOBODY = "import os\ntry: os.kill(os.getppid(), 0)\nexcept PermissionError: print('refused')"
STARTS_NOTHING = "import os\ntry: os._exit(os.fork() and 1)\nexcept PermissionError: print('refused')"


def stdin_problem(output: str, given: str = "") -> dict[str, Any]:
    tests = [{"input": given, "output": output, "testtype": "stdin"}]
    return {"task_id": "a-problem", "is_stdin": True, "test": tests}


def main() -> None:
    told = json.load(sys.stdin)
    if told["policy"] is not None:
        isolation.enter(isolation.Policy(**told["policy"]))
    with Judge(told["cores"], limits=Limits(**told["limits"]), landlock=told["landlock"]) as judge:
        for canary in (SIGNALS_NOBODY, STARTS_NOTHING):
            if not judge.verdict(stdin_problem("refused"), canary).passed:
                raise SystemExit(3)
        with ThreadPoolExecutor(32) as pool:
            verdicts = list(pool.map(lambda sample: judge.verdict(*sample), told["samples"]))
    json.dump([[verdict.passed, verdict.reason] for verdict in verdicts], sys.stdout)


if __name__ == "__main__":
    main()

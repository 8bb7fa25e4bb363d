"""argv -> stages -> exit code; nothing else.

Commands take job files and `--set`. Errors are one paragraph on stderr, results a table or JSON on stdout.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from entrypoint.errors import EvalcrateError, Interrupted, MachineError, TransientError

if TYPE_CHECKING:
    from entrypoint.job import JobSpec
    from entrypoint.run import Run
    from entrypoint.stage import RunResult

_STAGES = ("collect", "generate", "grade", "settle", "report")
_HELP = {
    "run": "all stages of one or more jobs",
    "plan": "show what a run would do, and what it would refuse; nothing starts",
    "collect": "write down every request of every trial",
    "generate": "make the generations that are missing, from one engine load",
    "grade": "grade every trial whose generations are complete",
    "settle": "write per-seed and compile files and markers from graded trials",
    "report": "write results.json and summary.md from settled files",
}


def run_command(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Exit code of one command line."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=getattr(arguments, "log_level", "warning").upper(), stream=sys.stderr, force=True)
    try:
        with _signals_raise():
            code: int = arguments.command(arguments, environ)
            return code
    except EvalcrateError as err:
        print(f"evalcrate: {err}", file=sys.stderr)
        return err.exit_code
    except BrokenPipeError:
        raise
    except OSError as err:
        print(
            f"evalcrate: {err.filename or 'input/output'}: {err.strerror or err}; what was written is kept: mend "
            "it and run the same command again",
            file=sys.stderr,
        )
        return TransientError.exit_code
    except Exception as err:
        import traceback

        traceback.print_exc()
        print(
            f"evalcrate: internal error: {type(err).__name__}: {err}; please report it with the lines above",
            file=sys.stderr,
        )
        return EvalcrateError.exit_code


@contextmanager
def _signals_raise() -> Iterator[None]:
    """SIGTERM and SIGINT end the command where it stands, through every `finally`."""

    def stop(number: int, _: object) -> None:
        raise Interrupted(number, f"stopped by {signal.Signals(number).name}; the same command goes on from here")

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="evalcrate",
        description="Evaluate a checkpoint: the same scores, in the same files, on any cluster.",
    )
    parser.add_argument("--version", action="version", version=f"evalcrate {_version()}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name in ("run", "plan", *_STAGES):
        command = commands.add_parser(name, help=_HELP[name], description=_HELP[name])
        command.add_argument("jobs", nargs="+", type=Path, metavar="JOB", help="job file (YAML)")
        command.add_argument(
            "--set", action="append", default=[], metavar="KEY=VALUE", help="override one key of the job"
        )
        command.add_argument(
            "--profile", type=Path, metavar="FILE", help="a GPU profile of your own, in place of engine.profile"
        )
        command.add_argument(
            "--full-hash", action="store_true", help="identify the checkpoint by every byte of its weights (slow)"
        )
        command.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
        command.set_defaults(command=_plan if name == "plan" else _run if name == "run" else _stage, stage=name)
        if name in ("run", "plan"):
            command.add_argument("--json", action="store_true", help="print the result as JSON on stdout")
        if name in ("run", "plan", "generate"):
            command.add_argument("--force", action="store_true", help="do complete tasks again, replace other results")
        if name == "run":
            command.add_argument("--dry-run", action="store_true", help="the same as the command plan")
    schema = commands.add_parser("schema", help="print the JSON schema of a job file, for editors")
    schema.set_defaults(command=_schema)
    _add_data(commands)
    doctor = commands.add_parser(
        "doctor", help="what this machine can do, what is wrong with it, what isolates graders"
    )
    doctor.add_argument("--json", action="store_true", help="print it as JSON on stdout")
    doctor.set_defaults(command=_doctor)
    sources = commands.add_parser("sources", help="get the pinned benchmark source (EVALCHEMY_REPO) and patch it")
    sources.add_argument("names", nargs="*", metavar="NAME", help="a benchmark outside the suites, such as AIW")
    sources.set_defaults(command=_sources)
    patches = commands.add_parser("patches", help="look at the patch series of the benchmark source")
    actions = patches.add_subparsers(required=True, metavar="ACTION")
    action = actions.add_parser("check", help="verify that every patch applies, is described in full, and is needed")
    action.set_defaults(command=_patches_check)
    return parser


def _add_data(commands: Any) -> None:
    data = commands.add_parser("data", help="get the pinned data sets, or check the ones that are here")
    actions = data.add_subparsers(required=True, metavar="ACTION")
    helps = {
        "fetch": "get data sets from the hub into the data folder (network; HF_TOKEN for gated ones)",
        "verify": "read every data file again and compare it with the lock",
    }
    for name, text in helps.items():
        action = actions.add_parser(name, help=text, description=text)
        action.add_argument("jobs", nargs="*", type=Path, metavar="JOB", help="only the data of these jobs, in theirs")
        action.add_argument("--suite", action="append", default=[], help="only the data of this suite")
        action.add_argument("--task", action="append", default=[], help="only the data of this task")
        action.add_argument("--data", type=Path, metavar="DIR", help="data folder (default: the job's, or the cache's)")
        action.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
        action.set_defaults(command=_data, action=name)
        if name == "fetch":
            action.add_argument("--pin", action="store_true", help="write what was fetched into data.lock.yaml as well")
        else:
            action.add_argument("--json", action="store_true", help="print the result as JSON on stdout")


def _data(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from entrypoint import data_command

    action: Callable[[argparse.Namespace, Mapping[str, str]], int] = getattr(data_command, arguments.action)
    return action(arguments, environ)


def _version() -> str:
    try:
        return version("evalcrate")
    except PackageNotFoundError:
        return "0 (not installed)"


def _schema(_: argparse.Namespace, __: Mapping[str, str]) -> int:
    from entrypoint.job import job_schema

    print(json.dumps(job_schema(), indent=2, ensure_ascii=False))
    return 0


def _doctor(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from entrypoint.doctor import as_text, as_values, examine
    from entrypoint.prepare import root

    found = examine(root(), environ)
    print(json.dumps(as_values(found), indent=2) if arguments.json else as_text(found), flush=True)
    for trouble in found.troubles:
        print(f"evalcrate: {trouble}", file=sys.stderr)
    return found.troubles[0].exit_code if found.troubles else 0


def _sources(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from entrypoint import source
    from entrypoint.prepare import root

    patches = root() / "patches/evalchemy"
    repo = environ.get("EVALCHEMY_REPO") or source.read_upstream(patches).url
    for name in arguments.names or [None]:
        print(source.fetch(patches, source.cache_root(environ), repo, name))
    return 0


def _patches_check(_: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from entrypoint import patch_series, source
    from entrypoint.prepare import root

    patches, cache = root() / "patches/evalchemy", source.cache_root(environ)
    if environ.get("EVALCHEMY_REPO") and source.pristine_tree(patches, cache) is None:
        source.fetch_pristine(patches, cache, environ["EVALCHEMY_REPO"])
    found = patch_series.check(patches, root(), source.pristine_tree(patches, cache))
    for one in found.verdicts:
        state = "faulty" if one.faults else "ok"
        print(f"{one.name}: {state}, {one.changed} lines, scores {one.scores or 'not told'}")
    for what in found.unchecked:
        print(f"not checked: {what}")
    if found.all_faults:
        raise EvalcrateError(f"{patches}: the series does not hold together: {'; '.join(found.all_faults)}")
    return MachineError.exit_code if found.unchecked else 0


def _each_job(arguments: argparse.Namespace, work: Callable[[JobSpec], EvalcrateError | None]) -> int:
    """Reads all jobs before any is worked on; the exit code is that of the first one that failed."""
    from entrypoint.job import load_job

    own = [] if arguments.profile is None else [f"engine.profile={json.dumps(str(arguments.profile.absolute()))}"]
    jobs = [load_job(path, [*arguments.set, *own]) for path in arguments.jobs]
    code = 0
    for path, job in zip(arguments.jobs, jobs, strict=True):
        try:
            error = work(job)
        except Interrupted:
            raise
        except EvalcrateError as err:
            error = err
        if error is not None:
            name = f"{path}: " if len(jobs) > 1 else ""
            print(f"evalcrate: {name}{error}", file=sys.stderr)
            code = code or error.exit_code
    return code


def _plan(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from entrypoint.prepare import prepare
    from entrypoint.preview import as_text, as_values, preview

    def show(job: JobSpec) -> EvalcrateError | None:
        prepared = prepare(job, environ, force=arguments.force, full_hash=arguments.full_hash)
        shown = preview(prepared, force=arguments.force)
        print(json.dumps(as_values(shown), indent=2) if arguments.json else as_text(shown), flush=True)
        for refusal in shown.refusals[1:]:
            print(f"evalcrate: {refusal}", file=sys.stderr)
        return shown.refusals[0] if shown.refusals else None

    return _each_job(arguments, show)


@contextmanager
def _started(arguments: argparse.Namespace, job: JobSpec, environ: Mapping[str, str]) -> Iterator[Run]:
    """A Run for the job, with its folder locked and the start of its provenance written."""
    from entrypoint import lock
    from entrypoint.card_lock import CardLocks
    from entrypoint.data_folder import check_contents
    from entrypoint.host import allow_open_files
    from entrypoint.prepare import layout_of, prepare
    from entrypoint.progress import Lines
    from entrypoint.run import Run
    from entrypoint.shortfall import open_files
    from entrypoint.source import cache_root

    force = getattr(arguments, "force", False)
    with closing(CardLocks(cache_root(environ))) as locks:
        prepared = prepare(
            job,
            environ,
            force=force,
            full_hash=arguments.full_hash,
            locks=locks if arguments.stage in ("run", "generate") else None,
        )
        if prepared.refusals or prepared.plan is None or prepared.machine is None or prepared.checkpoint is None:
            raise prepared.refusals[0]
        layout = layout_of(prepared.plan)
        allow_open_files(open_files(prepared.plan.placement))
        with lock.held(layout.work / "lock"):
            run = Run(
                plan=prepared.plan,
                layout=layout,
                reporter=Lines(quiet=arguments.log_level in ("warning", "error")),
                force=force,
                overlap=arguments.stage == "run",
                image={"name": environ["EVALCRATE_IMAGE"]} if environ.get("EVALCRATE_IMAGE") else {},
                host=prepared.machine,
                weights_bytes=prepared.checkpoint.weights_bytes,
                cores=len(os.sched_getaffinity(0)),
                release_cards=locks.close,
            )
            run.begin()
            if arguments.stage in ("run", "collect", "grade"):
                check_contents(prepared.plan.placement.data, cache_root(environ) / "data-hashes.json")
            yield run


def _run(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    if arguments.dry_run:
        return _plan(arguments, environ)
    from entrypoint.stage import carry_out

    said: dict[str, list[Any]] = {"summaries": [], "failures": []}

    def work(job: JobSpec) -> EvalcrateError | None:
        with _started(arguments, job, environ) as run:
            result = carry_out(run)
            _conclude(arguments, run, result, said)
            return result.error

    try:
        return _each_job(arguments, work)
    finally:
        if arguments.json:
            print(json.dumps(said, indent=2, ensure_ascii=False))


def _conclude(arguments: argparse.Namespace, run: Run, result: RunResult, said: dict[str, list[Any]]) -> None:
    """The report, then the closing table or the values for `--json`."""
    from entrypoint.layout import read_json
    from entrypoint.progress import generated, table
    from entrypoint.report import write_report

    write_report(run.plan, run.layout)
    run.write_provenance(finished=True)
    for summary in result.summaries:
        entry = asdict(summary)
        said["summaries"].append({k: v for k, v in entry.items() if k != "reason"})
        if summary.status == "failed":
            said["failures"].append({"task": summary.task, "reason": summary.reason})
    if not arguments.json:
        rows = (read_json(run.layout.results_json) or {})["tasks"]
        print(table(result.summaries, [rows[s.task]["validity"] for s in result.summaries]))
        if result.outcome is not None and result.outcome.generated:
            print(f"\n{generated(result.outcome)}")
        print(f"\n{run.layout.summary}")


def _stage(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from entrypoint import stage as stages
    from entrypoint.report import write_report

    def work(job: JobSpec) -> EvalcrateError | None:
        with _started(arguments, job, environ) as run:
            if arguments.stage == "report":
                write_report(run.plan, run.layout)
                print(run.layout.summary)
                return None
            stage: Callable[[Run], EvalcrateError | None] = getattr(stages, f"{arguments.stage}_stage")
            return stage(run)

    return _each_job(arguments, work)

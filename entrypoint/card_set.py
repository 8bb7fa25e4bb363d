"""Which cards carry an engine, and how many engines side by side.

In: the job's wish, the profile, what the checkpoint needs, the visible cards. Out: a CardSet, chosen by the cards'
total memory only, so that another process on a card never changes it; MachineError names the values that are valid.
"""

from __future__ import annotations

from dataclasses import dataclass

from entrypoint.catalog import Profile
from entrypoint.errors import MachineError
from entrypoint.gpu import Gpu
from entrypoint.job import EngineSpec
from entrypoint.need import RESERVE_GIB, Need


@dataclass(frozen=True, kw_only=True, slots=True)
class CardSet:
    """`groups`: disjoint cards, one group of `tensor_parallel_size` for each of `replicas` engines; no groups without
    cards. `idle`: visible cards in none of them. The origins: where the numbers came from."""

    tensor_parallel_size: int
    origin: str
    replicas: int
    replicas_origin: str
    groups: tuple[tuple[Gpu, ...], ...]
    idle: tuple[Gpu, ...] = ()

    @property
    def used(self) -> tuple[Gpu, ...]:
        """The cards of all engines."""
        return tuple(gpu for group in self.groups for gpu in group)

    def idle_warning(self) -> str | None:
        """Which cards are left over."""
        if not self.idle:
            return None
        engines = "1 engine" if self.replicas == 1 else f"{self.replicas} engines"
        idle = ", ".join(f"card {gpu.label}" for gpu in self.idle)
        return (
            f"engine.replicas: {engines} with tensor_parallel_size {self.tensor_parallel_size}, and {idle} "
            f"stay{'s' * (len(self.idle) == 1)} idle: run another job there (CUDA_VISIBLE_DEVICES), or change "
            "engine.replicas or engine.tensor_parallel_size"
        )


def choose_cards(asked: EngineSpec, profile: Profile, need: Need, gpus: tuple[Gpu, ...], cpus: int = 1) -> CardSet:
    """auto: engines with the fewest cards that the checkpoint fits on, as many as there are cards for; with
    `replicas: 1`, one on the most cards that it can use. `cpus` bounds the engines of a machine without cards."""
    if not gpus:
        return _without_cards(asked, profile, cpus)
    most = min(len(gpus), profile.max_tensor_parallel_size or len(gpus))
    valid = need.valid_sizes(most)
    size = asked.tensor_parallel_size
    if size != "auto":
        _refuse_size(size, valid or tuple(range(1, most + 1)), profile, need, gpus)
        return _grouped(asked, size, "job", gpus)
    if asked.replicas == 1:
        return _grouped(asked, max(_known(valid, need, most)), "cards", gpus)
    return _grouped(asked, _fewest(asked, profile, need, gpus, valid, most), "checkpoint", gpus)


def _without_cards(asked: EngineSpec, profile: Profile, cpus: int) -> CardSet:
    """One engine, or as many as were asked for: they share the cores."""
    if asked.tensor_parallel_size not in ("auto", 1):
        raise MachineError(
            f"engine.tensor_parallel_size: {asked.tensor_parallel_size}: profile {profile.name} with no visible card "
            "allows 1 only; use 1"
        )
    replicas = 1 if asked.replicas == "auto" else asked.replicas
    if replicas > cpus:
        raise MachineError(
            f"engine.replicas: {replicas}: profile {profile.name} has {cpus} cores here and an engine needs at least "
            f"one; use 1 to {cpus}, or auto (1)"
        )
    return CardSet(
        tensor_parallel_size=1,
        origin="profile",
        replicas=replicas,
        replicas_origin="profile" if asked.replicas == "auto" else "job",
        groups=(),
    )


def _grouped(asked: EngineSpec, size: int, origin: str, gpus: tuple[Gpu, ...]) -> CardSet:
    most = len(gpus) // size
    replicas = most if asked.replicas == "auto" else asked.replicas
    if replicas > most:
        raise MachineError(
            f"engine.replicas: {replicas}: {len(gpus)} visible cards carry {_upto(most)} of tensor_parallel_size "
            f"{size} ({origin}), each on cards of its own; use {', '.join(map(str, range(1, most + 1)))} or auto"
        )
    return CardSet(
        tensor_parallel_size=size,
        origin=origin,
        replicas=replicas,
        replicas_origin="cards" if asked.replicas == "auto" else "job",
        groups=tuple(gpus[n * size : (n + 1) * size] for n in range(replicas)),
        idle=gpus[replicas * size :],
    )


def _upto(most: int) -> str:
    return "1 engine" if most == 1 else f"up to {most} engines"


def _refuse_size(size: int, valid: tuple[int, ...], profile: Profile, need: Need, gpus: tuple[Gpu, ...]) -> None:
    if size in valid:
        return
    shape = need.shape
    heads = "" if shape is None or shape.heads is None else f", {shape.heads} heads and {shape.kv_heads} KV heads"
    raise MachineError(
        f"engine.tensor_parallel_size: {size}: profile {profile.name} with {len(gpus)} visible cards{heads} allows "
        f"{', '.join(map(str, valid))}; use one of these or auto"
    )


def _known(valid: tuple[int, ...] | None, need: Need, most: int) -> tuple[int, ...]:
    if valid is None:
        raise MachineError(
            f"engine.tensor_parallel_size: auto: {most} cards could share the checkpoint ({need.told(1)}), but its "
            "config.json does not tell its heads; set the size (1 for one card)"
        )
    return valid


def _fewest(
    asked: EngineSpec, profile: Profile, need: Need, gpus: tuple[Gpu, ...], valid: tuple[int, ...] | None, most: int
) -> int:
    share = asked.gpu_memory_utilization or profile.gpu_memory_utilization or 0.9
    room_gib = share * min(gpu.total_mib for gpu in gpus) / 1024
    unknown = any(gpu.unreported for gpu in gpus) or not asked.vram_clamp
    if unknown or need.gib(1) + RESERVE_GIB <= room_gib:
        return 1
    for size in _known(valid, need, most):
        if need.gib(size) + RESERVE_GIB <= room_gib:
            return size
    largest = max(_known(valid, need, most))
    raise MachineError(
        f"engine.tensor_parallel_size: auto: the checkpoint fits on none of {', '.join(map(str, valid or (1,)))} "
        f"cards: on {largest} it still needs {need.told(largest)} and {RESERVE_GIB:g} GiB for the rest on each, and "
        f"{share:g} of {min(gpu.total_mib for gpu in gpus)} MiB is {room_gib:.1f} GiB; use more or larger cards, or "
        "lower sampling.max_tokens or engine.max_model_len"
    )

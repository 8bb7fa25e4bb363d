"""How many tokens a run will generate and how long that takes: from earlier runs, else from stated assumptions.

In: the Outlook of each task, Speeds of earlier runs, the placement. Out: an Estimate, with what it rests on in words.
Pure. It is printed and never part of the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from entrypoint.capacity import Capacity
from entrypoint.outlook import Outlook
from entrypoint.plan import Placement
from entrypoint.speed import Lengths, Speed

Range = tuple[float, float]

# Without an earlier run: answers are at least this part of max_tokens, and none can be longer than max_tokens.
_SHORTEST_PART = 10
# Without an earlier run: a step of the engine gives each sequence a token, takes some time in any case, and reads the
# weights once. Seconds and bytes per second, slow and fast; measured were 8 ms a step on two idle CPU cores, and 300 ms
# on two busy ones, with a model of 0.6 MB.
_STEPS = {
    "a CPU": ((0.3, 5e9), (0.005, 50e9)),
    "a card": ((0.02, 300e9), (0.005, 4000e9)),
}
_ENDPOINT_TOKENS_PER_S = (10.0, 40.0)  # of each sequence; nothing is known of the machine behind it
_LEAST_ANSWERS = 32  # a run of fewer says little about speed: its engine is never full


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """`answers` and `tokens` still to be generated; `seconds` of the engine, with its start where `start_included`.

    Ranges are (low, high), None where nothing is known to be left. `unknown`: tasks that are not in them.
    `lengths_from`, `speed_from`: what they rest on. `length`: tokens of a prompt with its answer on average, None where
    one of them would be assumed.
    """

    answers: int
    unknown: tuple[str, ...]
    tokens: Range | None = None
    seconds: Range | None = None
    start_included: bool = False
    lengths_from: str = ""
    speed_from: str = ""
    length: int | None = None


def estimate(
    outlooks: Sequence[Outlook],
    speeds: Sequence[Speed],
    placement: Placement,
    weights_bytes: int,
    room: Capacity | None,
) -> Estimate:
    """`room`: how many sequences the KV cache holds, None where that is not known."""
    counted = [one for one in outlooks if one.open_requests]
    unknown = tuple(one.task.name for one in outlooks if one.open_requests is None)
    answers = sum(one.open_requests or 0 for one in counted)
    if not counted:
        return Estimate(answers=0, unknown=unknown)
    known = {one.task.name: _known_lengths(one, speeds) for one in counted}
    each = {one.task.name: _range(known[one.task.name], one) for one in counted}
    tokens = _sum([_times(each[one.task.name], one.open_requests or 0) for one in counted])
    alike = [one for one in speeds if one.answers >= _LEAST_ANSWERS and one.is_of(placement, weights_bytes)]
    if alike:
        seconds, speed_from = _measured(tokens, alike)
    else:
        longest = max(high for _, high in each.values())
        seconds, speed_from = _assumed(tokens, longest, answers, placement, weights_bytes, room)
    return Estimate(
        answers=answers,
        tokens=tokens,
        seconds=seconds,
        start_included=bool(alike),
        unknown=unknown,
        lengths_from=_lengths_from(known),
        speed_from=speed_from,
        length=_length(counted, each, answers) if all(known.values()) else None,
    )


def _length(counted: Sequence[Outlook], each: Mapping[str, Range], answers: int) -> int | None:
    total = 0.0
    for one in counted:
        if one.prompt_tokens is None:
            return None
        prompt = one.prompt_tokens / sum(trial.requests for trial in one.collected.values())
        total += (one.open_requests or 0) * (prompt + each[one.task.name][1])
    return round(total / answers)


def _known_lengths(one: Outlook, speeds: Sequence[Speed]) -> list[Lengths]:
    """What earlier runs under the same limit had of the task."""
    found = [speed.tasks[one.task.name] for speed in speeds if one.task.name in speed.tasks]
    return [lengths for lengths in found if lengths.answers and lengths.max_tokens == one.task.sampling.max_tokens]


def _range(known: Sequence[Lengths], one: Outlook) -> Range:
    """Tokens of one answer on average: the least and the most of earlier runs, or what is assumed."""
    if known:
        means = [lengths.tokens / lengths.answers for lengths in known]
        return min(means), max(means)
    return max(1.0, one.task.sampling.max_tokens / _SHORTEST_PART), float(one.task.sampling.max_tokens)


def _times(each: Range, count: int) -> Range:
    return each[0] * count, each[1] * count


def _sum(ranges: Sequence[Range]) -> Range:
    return sum(low for low, _ in ranges), sum(high for _, high in ranges)


def _lengths_from(known: Mapping[str, Sequence[Lengths]]) -> str:
    assumed = [name for name, lengths in known.items() if not lengths]
    told = ["as in earlier runs"] if len(assumed) < len(known) else []
    if assumed:
        whose = f" for {', '.join(assumed)}" if told else ""
        told.append(f"assumed{whose}: a tenth of max_tokens up to max_tokens")
    return "; ".join(told)


def _measured(tokens: Range, alike: Sequence[Speed]) -> tuple[Range, str]:
    rates = [one.tokens_per_s for one in alike]
    starts = [one.start_seconds for one in alike]
    seconds = (tokens[0] / max(rates) + min(starts), tokens[1] / min(rates) + max(starts))
    span = f"{min(rates):,.0f}" if len(rates) == 1 else f"{min(rates):,.0f} to {max(rates):,.0f}"
    return seconds, f"{span} tokens/s in {len(alike)} earlier run{'s' * (len(alike) > 1)} like this"


def _assumed(
    tokens: Range, longest: float, answers: int, placement: Placement, weights_bytes: int, room: Capacity | None
) -> tuple[Range, str]:
    """As many sequences at once as the engines take; the slow end has each of them at full length in the KV cache."""
    engines, batch = len(placement.engines), int(placement.values.get("max_num_seqs", 0))
    most = min(answers, engines * (batch or placement.engine.max_open_requests))
    least = most if room is None else min(most, engines * max(1, room.sequences))
    (slow, fast), why = _sequence_rates(placement, weights_bytes)
    seconds = (tokens[0] / (fast * most), max(tokens[1] / (slow * least), longest / slow))
    at_once = f"{most}" if least == most else f"{least} to {most}"
    return seconds, f"assumed: {_rate(slow)} to {_rate(fast)} tokens/s for each of {at_once} sequences at once{why}"


def _sequence_rates(placement: Placement, weights_bytes: int) -> tuple[Range, str]:
    """Tokens per second of one of the sequences that are generated at once, slow and fast, and why."""
    if placement.engine.kind != "vllm":
        return _ENDPOINT_TOKENS_PER_S, ""
    where = "a CPU" if placement.profile == "cpu" else "a card"
    each = weights_bytes / int(placement.values.get("tensor_parallel_size", 1))
    slow, fast = (1 / (step_s + each / bytes_per_s) for step_s, bytes_per_s in _STEPS[where])
    low, high = (bytes_per_s / 1e9 for _, bytes_per_s in _STEPS[where])
    return (slow, fast), f", {where} reading the weights at {low:g} to {high:g} GB/s"


def _rate(tokens_per_s: float) -> str:
    return f"{tokens_per_s:,.0f}" if tokens_per_s >= 10 else f"{tokens_per_s:.2g}"

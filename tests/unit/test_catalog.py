"""What must not break: suites and profiles say what the published tables say; no card is taken for another.

Incidents behind it: guessing a card's profile by the nearest amount of memory mislabels cards, and product
names vary (instructlab/instructlab#2706, #2451 and #2489; the totals are from modal-labs/modal-client#2797);
ten repeats inside ten outer seeds made a hundred runs of one benchmark (marin-community/marin#7505).
"""

from __future__ import annotations

import ast
import shutil
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from entrypoint.catalog import Catalog, Profile, load_catalog
from entrypoint.errors import JobError

ROOT = Path(__file__).resolve().parents[2]

SUITES = {
    "math": {
        "MATH500": 1, "OlympiadBench": 1, "AIME24": 10, "AIME25": 10, "AIME26": 10, "AMC23": 10, "HMMT": 10,
    },
    "science": {"GPQADiamond": 3, "JEEBench": 3, "HLE": 3, "OlympiadBench_Physics": 3},
    "code": {"LiveCodeBench": 6, "LiveCodeBenchv5_official": 6, "LiveCodeBenchv6_official": 6},
    "delphi": {"MATH500": 1, "AIME24": 10, "gsm8k": 1},
    "instruct": {"ifeval": 1},
    "smoke": {"arithmetic": 3},
}  # fmt: skip

#           memory share, max_num_seqs, max_num_batched_tokens, min GiB per GPU, largest tensor parallel size
PROFILES = {
    "a100-80g": (0.90, 64, 8192, 40, None),
    "h100-80g": (0.90, 64, 16384, 40, None),
    "h200-141g": (0.90, 128, 16384, 40, None),
    "a100-40g": (0.92, 16, 4096, 34, None),
    "l40s-48g": (0.92, 24, 4096, 34, 1),
    "a10-24g": (0.90, 8, 4096, 16, None),
    "l4-24g": (0.90, 8, 4096, 16, None),
    "b200-180g": (0.90, 128, 16384, 40, None),
    "gh200-96g": (0.90, 64, 16384, 40, None),
    "h20-96g": (0.90, 64, 8192, 40, None),
    "rtx-pro-6000-96g": (0.90, 64, 8192, 40, None),
    "cpu": (None, 32, None, None, None),
}

CARDS = {
    ("NVIDIA H100 80GB HBM3", 81559): "h100-80g",
    ("NVIDIA H100 PCIe", 81559): "h100-80g",
    ("NVIDIA H100 NVL", 95830): "h100-80g",
    ("H100 80GB HBM3", 81559): "h100-80g",
    ("NVIDIA H200", 143771): "h200-141g",
    ("NVIDIA H200 NVL", 143771): "h200-141g",
    ("NVIDIA A100 80GB PCIe", 81920): "a100-80g",
    ("NVIDIA A100-SXM4-80GB", 81920): "a100-80g",
    ("NVIDIA A100-SXM4-80GB", 81251): "a100-80g",
    ("NVIDIA A100-SXM4-40GB", 40960): "a100-40g",
    ("NVIDIA A100-PCIE-40GB", 40960): "a100-40g",
    ("NVIDIA A100-SXM4-80GB", 40192): "a100-40g",
    ("NVIDIA A100 80GB PCIe", 59999): "a100-40g",
    ("NVIDIA A100 80GB PCIe", 60000): "a100-80g",
    ("NVIDIA L40S", 46068): "l40s-48g",
    ("NVIDIA L40", 46068): None,
    ("NVIDIA A10", 23028): "a10-24g",
    ("NVIDIA A10G", 23028): None,
    ("NVIDIA A1000", 8188): None,
    ("NVIDIA A100X", 81920): None,
    ("NVIDIA A100-SXM-64GB", 65536): None,
    ("NVIDIA H100 80GB HBM3", 40000): None,
    ("NVIDIA H20", 97871): "h20-96g",
    ("NVIDIA B200", 183359): "b200-180g",
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887): "rtx-pro-6000-96g",
    ("NVIDIA L4", 23034): "l4-24g",
    ("NVIDIA L4", 46068): None,
    ("NVIDIA H800", 81559): None,
    ("NVIDIA GH200 480GB", 97871): "gh200-96g",
    ("NVIDIA GH200 144G HBM3e", 146831): None,
    ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", 40192): "a100-40g",
    ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", 40448): None,
    ("nvidia h100 pcie", 81559): None,
    ("", 81559): None,
}


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog(ROOT)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A root whose profiles/ may be changed."""
    shutil.copytree(ROOT / "profiles", tmp_path / "profiles")
    return tmp_path


def refusal(root: Path) -> str:
    with pytest.raises(JobError) as caught:
        load_catalog(root)
    message = str(caught.value)
    assert message.isprintable()
    return message.replace(f"{root}/", "")


# ── Suites ─────────────────────────────────────────────────────────────────────────────────────────────


def test_the_suites_are_the_published_ones_in_their_order(catalog: Catalog) -> None:
    found = {name: [(task.name, task.seeds) for task in suite.tasks] for name, suite in catalog.suites.items()}
    assert found == {name: list(tasks.items()) for name, tasks in SUITES.items()}
    assert list(catalog.suites) == sorted(SUITES)
    assert all(suite.name == name and suite.description for name, suite in catalog.suites.items())


def test_every_task_is_zero_shot_evalchemy_but_the_lm_eval_ones(catalog: Catalog) -> None:
    lm_eval = {
        "gsm8k": (5, "exact_match,strict-match"),
        "arithmetic": (0, "exact_match,boxed"),
        "ifeval": (0, "prompt_level_strict_acc,none"),
    }
    for name in catalog.task_names():
        task = catalog.task(name)
        assert task is not None
        if name in lm_eval:
            assert (task.harness, task.num_fewshot, task.metric) == ("lm_eval", *lm_eval[name])
        else:
            assert (task.harness, task.num_fewshot, task.metric) == ("evalchemy", 0, None)
        assert task.max_tokens is None


def test_a_task_is_found_in_the_first_suite_that_has_it(catalog: Catalog) -> None:
    aime = catalog.task("AIME24")
    assert aime is not None
    assert aime is next(task for task in catalog.suite("delphi").tasks if task.name == "AIME24")
    assert catalog.task("aime24") is None
    assert catalog.task_names() == tuple(sorted({name for tasks in SUITES.values() for name in tasks}))


def test_an_unknown_suite_names_the_ones_there_are(catalog: Catalog) -> None:
    with pytest.raises(JobError) as caught:
        catalog.suite("maths")
    known = "code, delphi, instruct, math, science, smoke"
    assert str(caught.value) == f"suite: maths: unknown; did you mean math? the known ones are {known}"
    with pytest.raises(JobError, match=f"suite: qqq: unknown; the known ones are {known}"):
        catalog.suite("qqq")


def test_one_task_means_the_same_in_every_suite_but_for_its_seeds(copy: Path) -> None:
    file = copy / "profiles" / "suites" / "other.yaml"
    file.write_text("description: x\ntasks:\n- {name: AIME24, harness: evalchemy, seeds: 99, data: tree}\n")
    task = load_catalog(copy).task("AIME24")
    assert task is not None
    assert task.seeds == 10
    text = file.read_text()
    for change in ("num_fewshot: 1", "max_tokens: 5", "metric: m"):
        file.write_text(text.replace("data: tree", f"data: tree, {change}"))
        assert refusal(copy).startswith('profiles/suites/other.yaml:3: tasks[0].name: "AIME24": differs from ')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("description: x\n", "profiles/suites/x.yaml: tasks: is missing; add it"),
        (
            "description: x\ntasks: []\n",
            "profiles/suites/x.yaml:2: tasks: []: must be a list that is not empty",
        ),
        (
            "description: x\ntasks: [A]\n",
            'profiles/suites/x.yaml:2: tasks[0]: "A": must be a `key: value` mapping',
        ),
        ("description: x\ntask: []\n", "profiles/suites/x.yaml:2: task: unknown key; did you mean tasks?"),
        (
            "description: no\n",
            "profiles/suites/x.yaml:1: description: no: some YAML readers take it for false",
        ),
        (
            "description: x\ntasks:\n- {name: A, harness: lm_eval, seeds: 1, data: hub}\n",
            "profiles/suites/x.yaml:3: tasks[0].metric: is missing; an lm_eval task names the score",
        ),
        (
            "description: x\ntasks:\n- &a {name: A}\n",
            "profiles/suites/x.yaml:3: tasks[0]: anchors (&)",
        ),
        (
            "description: x\ntasks:\n"
            "- {name: A, harness: evalchemy, seeds: 1, data: hub}\n"
            "- {name: A, harness: evalchemy, seeds: 2, data: hub}\n",
            'profiles/suites/x.yaml:4: tasks[1].name: "A": A is named twice; name it once',
        ),
        (
            "description: x\ntasks:\n- {name: A, harness: evalchemy, seeds: 0, data: hub}\n",
            "profiles/suites/x.yaml:3: tasks[0].seeds: 0: must be greater than or equal to 1",
        ),
        (
            "description: x\ntasks:\n- {name: A, harness: evalchemie, seeds: 1, data: hub}\n",
            'profiles/suites/x.yaml:3: tasks[0].harness: "evalchemie": must be evalchemy or lm_eval',
        ),
    ],
)
def test_a_wrong_suite_file_is_refused_with_file_line_and_key(copy: Path, text: str, message: str) -> None:
    (copy / "profiles" / "suites" / "x.yaml").write_text(text)
    assert refusal(copy).startswith(message)


# ── Profiles ───────────────────────────────────────────────────────────────────────────────────────────


def numbers(profile: Profile) -> tuple[float | None, int, int | None, float | None, int | None]:
    return (
        profile.gpu_memory_utilization,
        profile.max_num_seqs,
        profile.max_num_batched_tokens,
        profile.min_gib_per_gpu,
        profile.max_tensor_parallel_size,
    )


def test_the_profiles_are_the_published_ones(catalog: Catalog) -> None:
    assert {name: numbers(profile) for name, profile in catalog.profiles.items()} == PROFILES
    assert list(catalog.profiles) == sorted(PROFILES)
    assert all(profile.name == name and profile.note for name, profile in catalog.profiles.items())
    assert not catalog.profile("cpu").gpu_names


@pytest.mark.parametrize(("card", "name"), CARDS.items())
def test_a_card_gets_the_profile_of_its_own_kind_or_none(
    catalog: Catalog, card: tuple[str, int], name: str | None
) -> None:
    profile = catalog.profile_for(*card)
    assert (profile.name if profile else None) == name


@pytest.mark.parametrize("total_mib", [0, 20000, 40960, 59999, 60000, 65536, 81920, 95830, 143771, 200000])
def test_no_card_matches_two_profiles(catalog: Catalog, total_mib: int) -> None:
    for name in {name for name, _ in CARDS} | {"NVIDIA A100", "NVIDIA H100"}:
        catalog.profile_for(name, total_mib)


def test_two_profiles_for_one_card_are_refused_by_name(copy: Path) -> None:
    gpu = copy / "profiles" / "gpu"
    (gpu / "l40s-other.yaml").write_text((gpu / "l40s-48g.yaml").read_text())
    with pytest.raises(JobError) as caught:
        load_catalog(copy).profile_for("NVIDIA L40S", 46068)
    assert str(caught.value).startswith("profiles/gpu/l40s-48g.yaml and profiles/gpu/l40s-other.yaml: gpu_names")


def test_unknown_profile_names_the_ones_there_are(catalog: Catalog) -> None:
    with pytest.raises(JobError) as caught:
        catalog.profile("h100-80gb")
    known = ", ".join(sorted(PROFILES))
    expected = f"engine.profile: h100-80gb: unknown; did you mean h100-80g? the known ones are {known}"
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0.92", "1.5", "gpu_memory_utilization: 1.5: must be less than or equal to 1"),
        ("0.92", "92%", 'gpu_memory_utilization: "92%": must be a valid number'),
        ("max_num_seqs", "max_num_seq", "max_num_seq: unknown key; did you mean max_num_seqs?"),
        ("tested: false", "tested: off", "tested: off: some YAML readers take it for false"),
        ("max_num_seqs: 24", "max_num_seqs: 0", "max_num_seqs: 0: must be greater than or equal to 1"),
        ("max_num_seqs: 24\n", "", "max_num_seqs: is missing; add it"),
    ],
)
def test_a_wrong_profile_file_is_refused_with_file_and_key(copy: Path, old: str, new: str, message: str) -> None:
    file = copy / "profiles" / "gpu" / "l40s-48g.yaml"
    file.write_text(file.read_text().replace(old, new))
    found = refusal(copy)
    assert found.startswith("profiles/gpu/l40s-48g.yaml")
    assert message in found


# ── The catalog as a whole ─────────────────────────────────────────────────────────────────────────────


def test_a_catalog_cannot_be_changed(catalog: Catalog) -> None:
    with pytest.raises(FrozenInstanceError):
        catalog.suite("math").tasks[0].seeds = 3  # type: ignore[misc]


def test_loading_twice_gives_equal_catalogs(catalog: Catalog) -> None:
    assert load_catalog(ROOT) == catalog


def test_a_root_without_profiles_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path).startswith("profiles/suites: holds no .yaml file")


@pytest.mark.parametrize("module", ["job", "field", "yaml_file", "catalog"])
def test_reading_a_job_needs_pydantic_and_ruamel_and_nothing_heavier(module: str) -> None:
    tree = ast.parse((ROOT / "entrypoint" / f"{module}.py").read_text())
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    roots = {name.split(".")[0] for name in imported} - set(sys.stdlib_module_names)
    assert roots <= {"pydantic", "pydantic_core", "ruamel", "entrypoint"}

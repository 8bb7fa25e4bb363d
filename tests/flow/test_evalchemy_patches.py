"""From the pin to the patched tree, and what the patched benchmarks ask.

Must not break: exactly the pinned bytes, patched whole or not at all, also inside another checkout; every
repetition its own seed, and sampled. tenstorrent/tt-inference-server#4292, huggingface/lighteval#568: a seed
that never reaches the sampler; lm-eval's vLLM adapter from 0.4.10 on: `do_sample: False` makes seeds greedy.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from entrypoint import source
from entrypoint.errors import EvalcrateError, MachineError

ROOT = Path(__file__).parent.parent.parent
PATCHES = ROOT / "patches/evalchemy"
HEADERS = ("Origin", "Forwarded", "Test", "Drop-When", "Last-Update", "Scores")
ROWS = {
    "AIME24": 30,
    "AIME25": 30,
    "AIME26": 30,
    "AMC23": 40,
    "MATH500": 500,
    "OlympiadBench": 674,
    "OlympiadBench_Physics": 236,
}
UPSTREAM_REPEATS = {"AIME24": 10, "AIME25": 10, "AIME26": 1, "AMC23": 10}


# ---- a small upstream of our own: fetching and applying ----


def git(*arguments: str, cwd: Path) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@localhost")
    done = subprocess.run(["git", *identity, *arguments], cwd=cwd, check=True, capture_output=True, text=True)
    return done.stdout.strip()


class SmallUpstream:
    """A repository with two pinned paths and one big file that nobody needs, and a series of one patch."""

    def __init__(self, folder: Path) -> None:
        self.checkout = folder / "upstream"
        self.patches = folder / "patches"
        (self.checkout / "eval/bench/data").mkdir(parents=True)
        (self.checkout / "eval/task.py").write_text("a = 1\nb = 2\nc = 3\n")
        (self.checkout / "eval/bench/data/rows.jsonl").write_text('{"q": "é"}\n')
        (self.checkout / "unrelated.bin").write_text("unrelated\n")
        git("init", "--quiet", cwd=self.checkout)
        git("add", "-A", cwd=self.checkout)
        git("commit", "--quiet", "-m", "pinned", cwd=self.checkout)
        self.commit = git("rev-parse", "HEAD", cwd=self.checkout)
        ids = {path: git("rev-parse", f"HEAD:{path}", cwd=self.checkout) for path in ("eval/task.py", "eval/bench")}
        pin = {"url": "https://example.org/upstream", "commit": self.commit, **ids}
        self.patches.mkdir()
        (self.patches / "UPSTREAM").write_text("".join(f"{key}: {value}\n" for key, value in pin.items()))
        self.write_patch("b = 2", "b = 20  ")

    def write_patch(self, old: str, new: str) -> None:
        (self.patches / "0001-b.patch").write_text(
            "diff --git a/eval/task.py b/eval/task.py\n--- a/eval/task.py\n+++ b/eval/task.py\n"
            f"@@ -1,3 +1,3 @@\n a = 1\n-{old}\n+{new}\n c = 3\n"
        )
        (self.patches / "series").write_text("0001-b.patch\n")

    def bare(self) -> Path:
        """A bare clone that has lost an object outside the pinned paths."""
        bare = self.checkout.with_name("bare.git")
        git("clone", "--quiet", "--bare", "--no-hardlinks", str(self.checkout), str(bare), cwd=self.checkout)
        lost = git("rev-parse", "HEAD:unrelated.bin", cwd=self.checkout)
        (bare / "objects" / lost[:2] / lost[2:]).unlink()
        return bare


@pytest.fixture
def small(tmp_path: Path) -> SmallUpstream:
    return SmallUpstream(tmp_path)


def assert_patched(tree: Path) -> None:
    assert (tree / "eval/task.py").read_text() == "a = 1\nb = 20  \nc = 3\n"
    assert (tree / "eval/bench/data/rows.jsonl").read_text(encoding="utf-8") == '{"q": "é"}\n'
    assert not (tree / "unrelated.bin").exists()


def leftovers(cache: Path) -> list[Path]:
    return [*cache.glob("*/.tmp-*"), *cache.rglob("*.rej"), *cache.rglob("*.orig")]


@pytest.mark.parametrize("kind", ["checkout", "bare", "url", "filtering url"])
def test_the_pinned_paths_come_from_any_kind_of_repository(small: SmallUpstream, tmp_path: Path, kind: str) -> None:
    bare = small.bare()
    if kind == "filtering url":  # a server like GitHub; all but what is asked for may as well be lost
        git("config", "uploadpack.allowFilter", "true", cwd=bare)
    repos = {"checkout": str(small.checkout), "bare": str(bare), "url": small.checkout.as_uri()}
    tree = source.fetch(small.patches, tmp_path / "cache", repos.get(kind, bare.as_uri()))
    digest = source.series_digest(small.patches)
    assert tree == tmp_path / "cache/evalchemy-patched" / f"{small.commit[:12]}-{digest[:12]}"
    assert_patched(tree)
    assert (tmp_path / "cache/evalchemy" / small.commit / "eval/task.py").read_text() == "a = 1\nb = 2\nc = 3\n"
    assert not leftovers(tmp_path / "cache")


def test_another_checkout_around_the_cache_or_in_the_environment_changes_nothing(
    small: SmallUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer = tmp_path / "outer"
    outer.mkdir()
    git("init", "--quiet", cwd=outer)
    settings = tmp_path / "gitconfig"
    settings.write_text("[core]\n\tautocrlf = true\n[apply]\n\twhitespace = fix\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    monkeypatch.setenv("GIT_DIR", str(outer / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(outer))
    assert_patched(source.fetch(small.patches, outer / "cache", str(small.checkout)))


def test_a_new_series_needs_no_repository(small: SmallUpstream, tmp_path: Path) -> None:
    first = source.fetch(small.patches, tmp_path / "cache", str(small.checkout))
    small.checkout.rename(tmp_path / "gone")
    small.write_patch("b = 2", "b = 200")
    second = source.find_tree(small.patches, tmp_path / "cache")
    assert second is not None
    assert second != first
    assert (second / "eval/task.py").read_text() == "a = 1\nb = 200\nc = 3\n"
    assert_patched(first)


def test_another_source_than_the_pinned_one_is_refused_by_path_and_id(small: SmallUpstream, tmp_path: Path) -> None:
    pin = small.patches / "UPSTREAM"
    got = git("rev-parse", "HEAD:eval/bench", cwd=small.checkout)
    pin.write_text(pin.read_text().replace(got, "b" * 40))
    with pytest.raises(MachineError, match=f"eval/bench at commit {small.commit} has git id {got}.*{'b' * 40}"):
        source.fetch(small.patches, tmp_path / "cache", str(small.checkout))
    assert source.find_tree(small.patches, tmp_path / "cache") is None
    assert not leftovers(tmp_path / "cache")


def test_a_patch_whose_context_moved_on_is_refused_and_leaves_nothing(small: SmallUpstream, tmp_path: Path) -> None:
    small.write_patch("b = 3", "b = 30")
    with pytest.raises(EvalcrateError, match=r"0001-b\.patch: does not apply"):
        source.fetch(small.patches, tmp_path / "cache", str(small.checkout))
    assert not list((tmp_path / "cache/evalchemy-patched").iterdir())


@pytest.mark.parametrize("repo", ["/no/such/repository", "file:///no/such/repository"])
def test_an_unreachable_repository_says_what_to_run(small: SmallUpstream, tmp_path: Path, repo: str) -> None:
    with pytest.raises(MachineError, match=r"/no/such/repository: .*(EVALCHEMY_REPO)"):
        source.fetch(small.patches, tmp_path / "cache", repo)


def test_a_repository_without_the_commit_is_named(small: SmallUpstream, tmp_path: Path) -> None:
    other = SmallUpstream(tmp_path / "other")
    git("commit", "--quiet", "--amend", "-m", "another", cwd=other.checkout)
    git("reflog", "expire", "--expire=now", "--all", cwd=other.checkout)
    pin = small.patches / "UPSTREAM"
    pin.write_text(pin.read_text().replace(small.commit, "c" * 40))
    with pytest.raises(MachineError, match=f"can't take commit {'c' * 40} from it"):
        source.fetch(small.patches, tmp_path / "cache", str(other.checkout))


def test_a_machine_without_git_is_told_so(
    small: SmallUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MachineError, match="install git"):
        source.fetch(small.patches, tmp_path / "cache", str(small.checkout))


def test_a_cache_that_is_no_folder_is_named(small: SmallUpstream, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(MachineError, match=r"cache/evalchemy: can't be written.*EVALCRATE_CACHE"):
        source.fetch(small.patches, tmp_path / "cache", str(small.checkout))


def test_runs_at_once_end_with_one_whole_tree(small: SmallUpstream, tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from entrypoint import source; p, c, r = sys.argv[1:]"
    code += "; print(source.fetch(Path(p), Path(c), r))"
    arguments = [sys.executable, "-c", code, str(small.patches), str(tmp_path / "cache"), str(small.checkout)]
    runs = [subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    trees = {run.communicate(timeout=60)[0].strip() for run in runs}
    assert [run.returncode for run in runs] == [0, 0, 0, 0]
    assert len(trees) == 1
    assert_patched(Path(trees.pop()))
    assert not leftovers(tmp_path / "cache")


def test_what_a_killed_run_left_is_made_anew(small: SmallUpstream, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    tree = source.fetch(small.patches, cache, str(small.checkout))
    (tree / ".complete").unlink()
    (cache / "evalchemy" / small.commit / "eval/task.py").write_text("a = 1\n")
    old = cache / "evalchemy/.tmp-dead"
    old.mkdir()
    os.utime(old, (time.time() - 10**6,) * 2)
    assert source.find_tree(small.patches, cache) is None
    assert source.fetch(small.patches, cache, str(small.checkout)) == tree
    assert_patched(tree)
    assert not leftovers(cache)


# ---- the series ----


def test_the_series_names_every_patch_once() -> None:
    assert list(source.read_series(PATCHES)) == sorted(file.name for file in PATCHES.glob("*.patch"))


@pytest.mark.parametrize("name", source.read_series(PATCHES))
def test_a_patch_says_why_and_when_it_goes(name: str) -> None:
    text = (PATCHES / name).read_text(encoding="utf-8")
    header, _, diff = text.partition("\ndiff --git ")
    trailers = dict(re.findall(r"^([A-Z][\w-]+): (.+)$", header, re.MULTILINE))
    assert not set(HEADERS) - set(trailers)
    assert len(re.findall(r"^[+-](?!\+\+ |-- )", diff, re.MULTILINE)) < 60
    scores = trailers["Scores"]
    assert scores == "unchanged" or re.fullmatch(r"may change \(.+\)", scores)
    assert (scores != "unchanged") == ("can change scores" in trailers["Subject"])
    file, _, test = trailers["Test"].partition("::")
    assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8")


# ---- what the patched benchmarks ask: one child for all of it, in a folder that is not the tree ----


class RecordingLM:
    """As much of a model as a benchmark uses: it notes what it is asked and answers nothing."""

    per_request_seeds = True
    rank = 0
    world_size = 1

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def apply_chat_template(self, messages: list[dict[str, str]]) -> str:
        return json.dumps(messages)

    def generate_until(self, requests: list[Any]) -> list[str]:
        self.asked += [[request.args[0], dict(request.args[1])] for request in requests]
        return [""] * len(requests)


def report(tree: Path) -> dict[str, Any]:
    """Runs in the child."""
    from entrypoint.harness import evalchemy

    def ask(task: str, seed: int, n_repeat: int) -> list[Any]:
        lm: Any = RecordingLM()
        settings: Any = {"max_tokens": 77, "limit": None, "system_instruction": "Be brief."}
        evalchemy.run(tree, task, lm, seed=seed, n_repeat=n_repeat, grade=False, **settings)
        return list(lm.asked)

    trials = {task: ask(task, 42, 1) for task in ROWS}
    repeats = {task: (ask(task, 42, 3), [ask(task, seed, 1) for seed in (42, 43, 44)]) for task in UPSTREAM_REPEATS}
    manager = importlib.import_module("eval.task").TaskManager
    own = {task: manager(task_list=[task]).get_benchmark(task).n_repeat for task in UPSTREAM_REPEATS}
    torch = sorted(name for name in sys.modules if name.partition(".")[0] == "torch")
    return {"trials": trials, "repeats": repeats, "own": own, "torch": torch}


@pytest.fixture(scope="module")
def asked(evalchemy_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("EVALCRATE_N_REPEAT", None)
    done = subprocess.run(
        [sys.executable, __file__, str(evalchemy_tree)],
        cwd=elsewhere,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert list(elsewhere.iterdir()) == []
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_patched_tasks_load_without_torch(asked: dict[str, Any]) -> None:
    assert asked["torch"] == []


def test_every_task_asks_as_many_requests_as_it_has_rows(asked: dict[str, Any]) -> None:
    assert {task: len(requests) for task, requests in asked["trials"].items()} == ROWS
    for requests in asked["trials"].values():
        assert len({prompt for prompt, _ in requests}) == len(requests)
        assert all('{"role": "system", "content": "Be brief."}' in prompt for prompt, _ in requests)


@pytest.mark.parametrize("task", ROWS)
def test_every_request_says_sampled_at_the_asked_seed(asked: dict[str, Any], task: str) -> None:
    for _, settings in asked["trials"][task]:
        assert settings == {"do_sample": True, "temperature": 0.7, "seed": 42, "max_gen_toks": 77}
        assert isinstance(settings["seed"], int)


@pytest.mark.parametrize("task", UPSTREAM_REPEATS)
def test_repetitions_are_the_union_of_the_trials(asked: dict[str, Any], task: str) -> None:
    repeated, trials = asked["repeats"][task]
    assert repeated == [request for trial in trials for request in trial]
    assert {settings["seed"] for _, settings in repeated} == {42, 43, 44}


def test_repetitions_are_upstreams_own_unless_asked(asked: dict[str, Any]) -> None:
    assert asked["own"] == UPSTREAM_REPEATS


def contents(tree: Path) -> dict[str, bytes]:
    files = (file for file in (tree / "eval").rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    return {str(file.relative_to(tree)): file.read_bytes() for file in files}


def test_the_patches_apply_to_the_pristine_tree_and_touch_only_what_they_say(evalchemy_tree: Path) -> None:
    pristine = evalchemy_tree.parent.parent / "evalchemy" / source.read_upstream(PATCHES).commit
    if not pristine.exists():
        pytest.skip(f"no pristine tree at {pristine}: only the patched one is installed here")
    named = set(re.findall(r"^\+\+\+ b/(.+)$", "".join(file.read_text() for file in PATCHES.glob("*.patch")), re.M))
    before, after = contents(pristine), contents(evalchemy_tree)
    assert {path for path in before | after if before.get(path) != after.get(path)} == named


if __name__ == "__main__":
    print(json.dumps(report(Path(sys.argv[1]))))

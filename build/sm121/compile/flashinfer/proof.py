"""The proof that modules are used as they are: FlashInfer's own answer, with compiling forbidden, without a GPU."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sm121 import process
from sm121.errors import PackError, ProgramError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sm121.values import ArchSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What FlashInfer answered."""

    modules: int
    prebuilt: int
    """Modules that it reports as compiled ahead of time."""
    opened: int
    """Of these, how many libraries opened."""
    calls: int
    served: int
    """Of its own calls on 12.1, how many found their module compiled."""
    faults: tuple[str, ...]
    providers: tuple[tuple[str, str, tuple[str, ...]], ...]
    """Distribution, version and architectures of each provider that it accepted."""
    torch: str
    cuda: str
    gpu: bool

    @property
    def complete(self) -> bool:
        """Whether everything was there, and something was asked for."""
        whole = (self.modules, self.modules, self.calls)
        return self.modules > 0 and not self.faults and (self.prebuilt, self.opened, self.served) == whole


def prove(
    *, python: Sequence[str], paths: Sequence[Path], modules: Sequence[str], calls: Sequence[str], arch: ArchSpec,
    environment: Mapping[str, str] | None = None,
) -> Proof:  # fmt: skip
    """Let FlashInfer look for `modules`, and run `calls`, in an interpreter that has torch.

    `python` is that interpreter as words of a command, `paths` the folders with flashinfer-python and the unpacked wheels,
    `environment` what it needs besides. Nothing is written outside of a temporary folder. Raises PackError if FlashInfer
    cannot be asked at all.
    """
    with tempfile.TemporaryDirectory(prefix="sm121-proof-") as folder:
        scratch = Path(folder)
        script = scratch / "prove.py"
        script.write_text(
            resources.files("sm121.compile.flashinfer").joinpath("prove.py").read_text(encoding="utf-8")
        )
        request = {"paths": [str(path) for path in paths], "modules": list(modules), "calls": list(calls)}
        (scratch / "request.json").write_text(json.dumps(request))
        env = process.environment(
            {
                "FLASHINFER_CUDA_ARCH_LIST": str(arch), "FLASHINFER_DISABLE_JIT": "1",
                "FLASHINFER_WORKSPACE_BASE": folder, "HOME": folder, **(environment or {}),
            }
        )  # fmt: skip
        argv = [*python, "-B", script, scratch / "request.json", scratch / "answer.json"]
        try:
            process.run([str(word) for word in argv], cwd=scratch, env=env)
        except ProgramError as error:
            raise PackError(
                ["FlashInfer could not be asked for its modules:", *error.problems],
                do="name an interpreter that has torch and what flashinfer-python imports.",
            ) from error
        return _proof(json.loads((scratch / "answer.json").read_text()), len(modules), len(calls))


def _proof(answer: Mapping[str, Any], modules: int, calls: int) -> Proof:
    return Proof(
        modules=modules, prebuilt=answer["prebuilt"], opened=answer["opened"], calls=calls, served=answer["served"],
        faults=tuple(answer["faults"]),
        providers=tuple((name, version, tuple(archs)) for name, version, archs in answer["providers"]),
        torch=answer["torch"], cuda=answer["cuda"], gpu=answer["gpu"],
    )  # fmt: skip

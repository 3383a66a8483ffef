"""An installed CUDA toolkit, seen through a folder of links.

Links rather than the toolkit itself, because the fix-ups must not touch what the administrator installed. nvcc is
copied: it finds its parts beside its own real path.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from sm121.errors import ToolchainError

_TARGET_FOLDERS = {"aarch64": ("sbsa-linux", "aarch64-linux"), "x86_64": ("x86_64-linux",)}


@dataclass(frozen=True, slots=True)
class InstalledToolkit:
    """Lays out a view of `home` for `target_cpu`."""

    home: Path
    target_cpu: str
    kind: str = "installed"

    def faults(self) -> list[str]:
        """All that `home` lacks, a sentence each."""
        home = self.home.resolve()
        if not home.is_dir():
            return [f"{self.home} is no folder."]
        target = self._target(home)
        wanted = {
            "bin/nvcc": home / "bin" / "nvcc",
            "bin/ptxas": home / "bin" / "ptxas",
            "bin/cudafe++": home / "bin" / "cudafe++",
            "nvvm": home / "nvvm",
            **(
                {"include/cuda.h": target / "include" / "cuda.h", "libcudart.so": target / "lib" / "libcudart.so"}
                if target
                else {}
            ),
        }
        missing = [
            f"{home} has no {name}: {path} does not exist." for name, path in wanted.items() if not path.exists()
        ]
        if target is None:
            have = (
                sorted(path.name for path in (home / "targets").iterdir()) if (home / "targets").is_dir() else []
            )
            missing.append(
                f"{home} has no libraries for {self.target_cpu}; its targets are {', '.join(have) or 'none'}."
            )
        return missing

    @property
    def include(self) -> Path:
        """The headers for the target CPU; of a toolkit without faults."""
        target = self._target(self.home.resolve())
        assert target is not None
        return target / "include"

    def lay_out(self, into: Path) -> None:
        """Link programs, headers and the target's libraries; raises ToolchainError naming all that is missing."""
        home = self.home.resolve()
        target = self._target(home)
        if (missing := self.faults()) or target is None:
            raise ToolchainError(
                missing,
                do=f"install the complete CUDA toolkit with its libraries for {self.target_cpu} "
                "(for a cross build the cuda-cross-sbsa packages), or name another folder with --cuda-home.",
            )
        (into / "bin").mkdir(parents=True)
        for entry in sorted((home / "bin").iterdir()):
            link = into / "bin" / entry.name
            if entry.name in {"nvcc", "nvcc.profile", "cudafe++"}:
                shutil.copy2(entry, link)
            else:
                link.symlink_to(entry)
        shutil.copytree(home / "nvvm", into / "nvvm", symlinks=True, copy_function=_link)
        (into / "include").symlink_to(target / "include")
        (into / "lib").mkdir()
        for entry in sorted((target / "lib").iterdir()):
            if entry.name != "stubs":
                (into / "lib" / entry.name).symlink_to(entry)

    def _target(self, home: Path) -> Path | None:
        for name in _TARGET_FOLDERS[self.target_cpu]:
            if (home / "targets" / name).is_dir():
                return home / "targets" / name
        whole = (home / "include").is_dir() and (home / "lib").is_dir() and not (home / "targets").exists()
        return home if whole else None


def _link(source: str, target: str) -> None:
    Path(target).symlink_to(source)

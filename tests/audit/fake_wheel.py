"""A wheel of kilobytes that is laid out like vLLM's, installs like it, and serves what a test wants."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path
from textwrap import dedent

from fake_vllm import FILES

VERSION = "9.9.9"
# The small package knows no b12x; a later version does.
_CHANGED = {
    "vllm.config.kernel": FILES["vllm.config.kernel"].replace('["auto", "marlin"]', '["auto", "b12x", "marlin"]')
}


def make_wheel(folder: Path, *, version: str = VERSION) -> Path:
    """Write the wheel."""
    files = {**FILES, **_CHANGED}
    packages = {name.rpartition(".")[0] for name in files} | {"vllm.model_executor.layers.fused_moe.oracle"}
    info = f"vllm-{version}.dist-info"
    content = {
        f"{name.replace('.', '/')}{'/__init__.py' if name in packages else '.py'}": dedent(text)
        for name, text in files.items()
    }
    for package in packages - {""}:
        content.setdefault(f"{package.replace('.', '/')}/__init__.py", "")
    content["vllm/fake_serving.py"] = Path(__file__).with_name("fake_serving.py").read_text()
    content[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
    content[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    content[f"{info}/entry_points.txt"] = "[console_scripts]\nvllm = vllm.fake_serving:main\n"
    record = ""
    path = folder / f"vllm-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in sorted(content.items()):
            data = text.encode()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            record += f"{name},sha256={digest},{len(data)}\n"
            wheel.writestr(zipfile.ZipInfo(name), data)
        wheel.writestr(zipfile.ZipInfo(f"{info}/RECORD"), f"{record}{info}/RECORD,,\n")
    return path

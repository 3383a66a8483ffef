"""OCI layouts of one layer for each CPU: enough of an image to take files out of."""

from __future__ import annotations

import hashlib
import json
import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def tree_layer(files: Mapping[str, Path], scratch: Path) -> bytes:
    """A layer of files from disk, by their path in the image, with their permissions."""
    with tarfile.open(scratch, "w") as archive:
        for name, path in files.items():
            archive.add(path, name, recursive=False)
    data = scratch.read_bytes()
    scratch.unlink()
    return data


def layout(folder: Path, **layers: bytes) -> str:
    """An OCI layout with one image per architecture; returns its reference."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def stored(data: bytes, kind: str) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(data)}

    manifests = []
    for architecture, data in layers.items():
        described = stored(data, "layer.v1.tar")
        config = {
            "architecture": architecture, "os": "linux", "config": {},
            "rootfs": {"type": "layers", "diff_ids": [described["digest"]]},
        }  # fmt: skip
        manifest = {
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": stored(json.dumps(config).encode(), "config.v1+json"), "layers": [described],
        }  # fmt: skip
        platform = {"architecture": architecture, "os": "linux"}
        manifests.append({**stored(json.dumps(manifest).encode(), "manifest.v1+json"), "platform": platform})
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": manifests}
    (folder / "index.json").write_text(json.dumps(index))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return f"oci:{folder}"

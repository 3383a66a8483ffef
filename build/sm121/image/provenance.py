"""Where an image comes from: an in-toto statement with a SLSA provenance predicate.

https://slsa.dev/spec/v1.0/provenance, https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md. It is made
from the record alone, holds no time of day, and is not signed here: a signature is added by cosign, if at all.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sm121.image.record import ImageRecord
    from sm121.values import Sha256

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:sm121:image:v1"


def provenance(record: ImageRecord, byproducts: Mapping[str, Sha256]) -> bytes:
    """The statement. `byproducts` are further results by file name (report, bill of materials). Pure."""
    first = record.wheels[0].manifest
    materials = [
        _material(record.base_name, str(record.base_digest).removeprefix("sha256:")),
        _material("runtime set (lock)", record.lock.hex),
        *(
            _material(f"pkg:pypi/{package.name}@{package.version}", package.sha256.hex, file=package.filename)
            for package in record.packages
        ),
    ]
    for wheel in record.wheels:
        materials.append(_material(wheel.filename, wheel.sha256.hex))
        materials.append(_material(f"{wheel.filename}.manifest.json", wheel.manifest_sha256.hex))
        materials += [_material(each.filename, each.sha256.hex, role=each.role) for each in wheel.manifest.inputs]
        materials += [_material(each.name, each.sha256.hex, role="patch") for each in wheel.manifest.patches]
    statement = {
        "_type": STATEMENT,
        "subject": [{"name": record.name, "digest": {"sha256": record.digest.hex}}],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "line": record.line, "platform": str(record.platform), "builder": record.builder,
                    "sourceDateEpoch": record.epoch, "wheels": [wheel.filename for wheel in record.wheels],
                },
                "internalParameters": {
                    "plan": {wheel.manifest.subject.project: wheel.manifest.plan.hex for wheel in record.wheels},
                    "host": first.host.system,
                    "tools": {tool.name: tool.version for tool in record.tools},
                },
                "resolvedDependencies": _unique(materials),
            },
            "runDetails": {
                "builder": {"id": "urn:sm121:builder", "version": {"sm121": record.made_by.rpartition(" ")[2]}},
                "metadata": {"invocationId": f"urn:sm121:image:{record.digest}"},
                "byproducts": [_material(name, digest.hex) for name, digest in sorted(byproducts.items())],
            },
        },
    }  # fmt: skip
    return (json.dumps(statement, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _material(name: str, sha256: str, **more: str) -> dict[str, Any]:
    address = {"uri": name} if ":" in name else {"name": name}
    return {**address, "digest": {"sha256": sha256}, **({"annotations": more} if more else {})}


def _unique(materials: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    found = {json.dumps(each, sort_keys=True): each for each in materials}
    return [found[key] for key in sorted(found)]

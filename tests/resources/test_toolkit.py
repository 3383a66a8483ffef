from __future__ import annotations

import pytest

from sm121.resources.toolkit import Renaming, first_release, releases, renaming, supports, toolkit_data
from sm121.values import ArchSpec, CudaVersion


@pytest.mark.parametrize(
    ("cuda", "target", "expected"),
    [
        ("12.8", "12.0a", True),
        ("12.8", "12.1", False),
        ("12.8", "12.0f", False),
        ("12.9", "12.1a", True),
        ("12.9.86", "12.0f", True),
        ("13.0", "7.0", False),
        ("12.9", "7.0", True),
        ("12.9", "11.0", False),
        ("13.0", "11.0", True),
        ("13.0", "10.1a", False),
        ("13.2", "12.1f", True),  # between two measured releases: the older one counts
        ("13.2", "10.7", False),
        ("13.4", "10.7f", True),
        ("14.2", "12.1a", True),
        ("14.2", "15.0", None),  # a newer toolkit may know it
        ("12.9", "15.0", False),
        ("11.8", "12.1", False),
        ("11.8", "8.6", None),  # older than all that was measured
        ("13.0", "12.0+PTX", True),
    ],
)
def test_supports(cuda: str, target: str, expected: bool | None) -> None:
    assert supports(CudaVersion.parse(cuda), ArchSpec.parse(target)) is expected


def test_first_release() -> None:
    assert str(first_release(ArchSpec.parse("12.1a"))) == "12.9"
    assert str(first_release(ArchSpec.parse("12.0a"))) == "12.8"
    assert first_release(ArchSpec.parse("12.7")) is None


def test_the_chip_that_was_renamed() -> None:
    new, old = CudaVersion(13, 0), CudaVersion(12, 9)
    assert renaming(ArchSpec.parse("10.1a"), new) == Renaming(ArchSpec.parse("11.0a"), new)
    assert renaming(ArchSpec.parse("11.0"), old) == Renaming(ArchSpec.parse("10.1"), new)
    assert renaming(ArchSpec.parse("11.0"), new) is None
    assert renaming(ArchSpec.parse("12.1"), old) is None


def test_the_table_is_in_order_and_complete() -> None:
    assert [release.cuda for release in releases()] == sorted(release.cuda for release in releases())
    for row in [*toolkit_data()["renamed"], *toolkit_data()["option"], *toolkit_data()["driver"]]:
        assert row["source"]
        assert row["date"]
    for older, newer in zip(releases(), releases()[1:], strict=False):
        gone = {target for target in older.targets - newer.targets if target.major > 7}
        assert {target.number for target in gone} <= {101}, f"{newer.cuda} lost {gone}"

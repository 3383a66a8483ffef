from __future__ import annotations

import pytest
from made_wheels import STAMP, VERSION_MODULE

from sm121.errors import PackError
from sm121.pack.version_module import stamped_version_module

NAME = "vllm/_version.py"


def stamped(source: str) -> str:
    return stamped_version_module(source.encode(), STAMP, NAME).decode()


def test_only_the_two_literals_change() -> None:
    assert stamped(VERSION_MODULE) == VERSION_MODULE.replace(
        "version = '0.33.0'", "version = '0.33.0+cu130.sm121'"
    ).replace("(0, 33, 0)", "(0, 33, 0, 'cu130.sm121')")


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ('__version__ = "0.33.0"\n', "__version__ = '0.33.0+cu130.sm121'\n"),
        (
            "# über\r\n__version__ = '''0.33.0'''  # ü\r\n",
            "# über\r\n__version__ = '0.33.0+cu130.sm121'  # ü\r\n",
        ),
        (
            "__version__ = '0.33.0'\nversion_tuple = (\n    0,\n    33,\n    0,\n)\nx = 1\n",
            "__version__ = '0.33.0+cu130.sm121'\nversion_tuple = (0, 33, 0, 'cu130.sm121')\nx = 1\n",
        ),
        ("'ü'; __version__ = '0.33.0'", "'ü'; __version__ = '0.33.0+cu130.sm121'"),
    ],
)
def test_other_ways_to_write_the_same(source: str, wanted: str) -> None:
    assert stamped(source) == wanted


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("", "no line sets __version__"),
        ("__version__: str\n", "no line sets __version__"),
        ("__version__ = '0.26.0'\n", "line 1 sets __version__ in a way that is not known"),
        ("__version__ = get()\n", "line 1 sets __version__"),
        ("__version__: str = '0.33.0'\n", "line 1 sets __version__"),
        ("__version__ = '0.33.0'\n__version__ += '+cu130'\n", "line 2 sets __version__"),
        ("__version__ = '0.33.0'\nif x:\n    version = '0.33.0'\n", "line 3 sets version"),
        ("__version__ = '0.33.0'\nfrom vllm.other import v as version\n", "line 2 sets version"),
        ("__version__ = '0.33.0'\ndef version(): ...\n", "line 2 sets version"),
        ("__version__ = '0.33.0'\ndel __version__\n", "line 2 sets __version__"),
        ("__version__ = '0.33.0'\n__version__ = '0.33.0'\n", "__version__ is set 2 times"),
        ("__version__ = '0.33.0'\nversion_tuple = (0, 33)\n", "line 2 sets version_tuple"),
        ("__version__ = '0.33.0'\nversion_tuple = tuple([0, 33, 0])\n", "line 2 sets version_tuple"),
        ("__version__ = version_tuple = '0.33.0'\n", "line 1 sets version_tuple"),
        ("version, __version__ = '0.33.0', '0.33.0'\n", "line 1 sets version"),
        ("__version__ = \\\n    '0.33.0'\n", "line 1 sets __version__"),
        ("__version__ = '0.33.0\n", "no Python module"),
    ],
)
def test_a_shape_that_is_not_known_is_refused(source: str, told: str) -> None:
    with pytest.raises(PackError) as raised:
        stamped(source)
    assert told in str(raised.value)
    assert NAME in str(raised.value)

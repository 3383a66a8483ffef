"""Code is followed as text: known where it is known, both ways where it is not, never run, never for ever."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
from fake_vllm import fake_tree, module_tree
from hypothesis import given, settings
from hypothesis import strategies as st

from sm121.audit.conditions import Condition, alternatives, merge
from sm121.audit.static import Facts, Machine, explore
from sm121.audit.static.values import Instance, shown
from sm121.target import Capability
from sm121.values import CudaVersion

if TYPE_CHECKING:
    from sm121.audit.static.paths import Answer


def run(code: str, *, facts: Facts | None = None) -> list[Answer[Any]]:
    """Follow the function `f` of a module with this code."""
    tree = module_tree(m=code)

    def walk(path: Any) -> Any:
        machine = Machine(tree, facts or Facts(), path)
        return machine.call(machine.member("vllm.m", "f"), [])

    return explore(walk)


def only(code: str, *, facts: Facts | None = None) -> Any:
    """The value on the only path."""
    answers = run(code, facts=facts)
    assert len(answers) == 1
    assert not answers[0].stuck, answers[0].stuck
    assert not answers[0].error, answers[0].error
    return answers[0].value


@pytest.mark.parametrize(
    ("code", "wanted"),
    [  # each a small program, written in one line
        ("def f(): return [x * 2 for x in range(4) if x % 2]", [2, 6]),
        ("def f(): return {k: v for k, v in {'a': 1}.items()}", {"a": 1}),
        ("def f(a=1, *rest, b=2, **more): return (a, rest, b, more)", (1, (), 2, {})),
        ("def f():\n a, *b, c = [1, 2, 3, 4]\n return a, b, c", (1, [2, 3], 4)),
        ("def f():\n out = []\n for i in range(9):\n  if i == 2: continue\n  if i == 4: break\n  out.append(i)\n return out", [0, 1, 3]),  # noqa: E501
        ("def f():\n for i in []: pass\n else: return 'empty'", "empty"),
        ("def f():\n try: raise KeyError('a')\n except (ValueError, LookupError): return 'caught'\n finally: pass", "caught"),  # noqa: E501
        ("def f():\n try:\n  import nothing_like_this_at_all as x\n except ImportError: return 1\n return 2", None),
        ("def f():\n n = 0\n while n < 5: n += 1\n return n", 5),
        ("def f(): return (lambda x, y=3: x + y)(1)", 4),
        ("def f(): return 1 < 2 < 3 and not 3 in (1, 2)", True),
        ("def f(): return f'{1 + 1}-{\"a\".upper()}'", "2-A"),
        ("def f(): return 'SM%d is %s' % (121, 'here')", "SM121 is here"),
        ("def f(): return sorted([3, 1, 2], key=lambda x: -x)", [3, 2, 1]),
        ("def f(): return min((i for i in [4, 2]), default=0)", 2),
        ("def f():\n if (n := len('abc')) > 2: return n", 3),
        ("def f(): return [1, 2, 3][1:], 'abc'[-1]", ([2, 3], "c")),
        ("X = 1\nX = X + 1\ndef f(): return X", 2),
        ("if True:\n Y = 'yes'\nelse:\n Y = 'no'\ndef f(): return Y", "yes"),
        ("try:\n raise ImportError\nexcept ImportError:\n Z = 3\ndef f(): return Z", 3),
        ("class A:\n x = 1\n y = x + 1\n def m(self): return self.y\nclass B(A):\n def m(self): return super().m() + 10\ndef f(): return B().m()", 12),  # noqa: E501
        ("class A:\n @property\n def p(self): return 5\n @staticmethod\n def s(): return 6\n @classmethod\n def c(cls): return cls.__name__\ndef f(): return A().p, A.s(), A.c(), A().c()", (5, 6, "A", "A")),  # noqa: E501
        ("from enum import Enum\nclass E(Enum):\n A = 'a'\n B = 'b'\n C = 'a'\ndef f(): return [e.name for e in E], E('b').name, E['A'].value, E.C is E.A, E.A in (E.B, E.C)", (["A", "B"], "B", "a", True, True)),  # noqa: E501
        ("from dataclasses import dataclass, field\n@dataclass\nclass D:\n a: int\n b: list = field(default_factory=list)\n c: int = 3\ndef f(): return D(1) == D(a=1), D(1).c, D(1) == D(2)", (True, 3, False)),  # noqa: E501
        ("from typing import NamedTuple\nclass N(NamedTuple):\n a: int\n b: int = 2\ndef f():\n x, y = N(1)\n return x, y, N(1)._asdict()", (1, 2, {"a": 1, "b": 2})),  # noqa: E501
        ("class A: pass\nA.extra = 7\ndef f(): return A.extra", 7),
        ("def g():\n x = 1\n def h(): return x + 1\n return h\ndef f(): return g()()", 2),
    ],
)  # fmt: skip
def test_ordinary_python(code: str, wanted: object) -> None:
    if wanted is None:
        assert [answer.value for answer in run(code)] == [2, 1]
        return
    assert only(code) == wanted


def test_unknown_conditions_are_walked_both_ways() -> None:
    answers = run("import torch\ndef f():\n if torch.ops.x(): return 'a'\n return 'b'")
    assert [(answer.value, answer.conditions) for answer in answers] == [
        ("a", (("torch.ops.x()", True),)),
        ("b", (("torch.ops.x()", False),)),
    ]


def test_the_same_question_has_one_answer_on_a_path() -> None:
    code = "import torch\ndef f(): return [bool(torch.q()), bool(torch.q()), not torch.q()]"
    assert [answer.value for answer in run(code)] == [[True, True, False], [False, False, True]]


def test_a_known_answer_leaves_one_path() -> None:
    facts = Facts(answers={"torch.q()": False})
    assert only("import torch\ndef f(): return 1 if torch.q() else 2", facts=facts) == 2


def test_the_environment_is_what_was_given() -> None:
    code = "import os\ndef f(): return os.environ.get('A'), os.getenv('B', 'd'), 'A' in os.environ"
    assert only(code, facts=Facts(environment={"A": "1"})) == ("1", "d", True)


def test_the_cuda_version_of_torch_is_compared_as_a_version() -> None:
    code = (
        "import torch\nfrom packaging.version import Version\n"
        "def f(): return Version(torch.version.cuda) >= Version('12.9')"
    )
    assert only(code, facts=Facts(cuda=CudaVersion(13, 0))) is True
    assert only(code, facts=Facts(cuda=CudaVersion(12, 8))) is False


def test_the_device_is_the_one_that_is_asked_for() -> None:
    tree = fake_tree()
    found = {}
    for number in ("12.1", "10.0"):
        machine = Machine(tree, Facts(capability=Capability.parse(number)))
        platform = machine.member("vllm.platforms", "current_platform")
        found[number] = machine.call(machine.attribute(platform, "is_device_capability_family"), [120])
    assert found == {"12.1": True, "10.0": False}


def test_exceptions_of_the_followed_code_are_reported_as_its_own() -> None:
    answers = run("def f():\n raise ValueError(f'no {1 + 1}')")
    assert answers[0].error == "ValueError: no 2"


@pytest.mark.parametrize(
    "code",
    [
        "def f():\n while True: pass",
        "def f(): return f()",
        "X = Y\nY = X\ndef f(): return X",
        "def f():\n for x in range(10 ** 9): pass",
        "import torch\ndef f():\n for x in torch.many(): pass",
        "def f():\n match 1:\n  case 1: return 2",
        "def f():\n a = [1]\n for x in a: a = a + a\n return f()",
    ],
)
def test_what_cannot_be_followed_says_so(code: str) -> None:
    answers = run(code)
    assert all(answer.stuck for answer in answers)


@pytest.mark.parametrize(
    "code",
    [
        "def f(): return 'a' * 10 ** 12",
        "def f(): return [0] * 10 ** 12",
        "def f(): return 10 ** 10 ** 10",
        "def f(): return '%1000000000d' % 1",
        "def f(): return f'{1:>1000000000}'",
        "def f(): return 1 << 10 ** 9",
    ],
)
def test_small_code_cannot_make_large_values(code: str) -> None:
    assert len(shown(only(code))) < 300


def test_too_many_combinations_are_given_up() -> None:
    lines = "\n".join(f" if torch.q{number}(): out.append({number})" for number in range(30))
    answers = run(f"import torch\ndef f():\n out = []\n{lines}\n return out")
    assert "combinations" in answers[-1].stuck


def test_nothing_is_imported_or_written(tmp_path: Any) -> None:
    before = set(sys.modules)
    target = tmp_path / "made"
    code = (
        "import os, antigravity\ndef f():\n"
        f" os.system('touch {target}')\n open('{target}', 'w')\n return __import__('this')"
    )
    run(code)
    assert not target.exists()
    assert "antigravity" not in set(sys.modules) - before
    assert "this" not in set(sys.modules) - before


def test_a_module_that_is_no_python_is_like_one_that_is_missing() -> None:
    tree = module_tree(m="def f(:\n")
    assert Machine(tree, Facts()).member("vllm.m", "f") is None


def test_packages_of_a_complete_artifact_are_there_or_not() -> None:
    code = "import importlib.util\ndef f(): return importlib.util.find_spec('b12x') is not None"
    for packages, wanted in ((("b12x",), True), ((), False)):
        tree = fake_tree({"vllm.m": code}, complete=True, packages=packages)
        machine = Machine(tree, Facts())
        assert machine.call(machine.member("vllm.m", "f"), []) is wanted


def test_members_of_enumerations_print_with_their_class() -> None:
    machine = Machine(fake_tree(), Facts())
    backend = machine.member("vllm.model_executor.layers.fused_moe.oracle.nvfp4", "NvFp4MoeBackend")
    member = machine.attribute(backend, "MARLIN")
    assert isinstance(member, Instance)
    assert shown(member) == "NvFp4MoeBackend.MARLIN"


def test_conditions_are_merged_to_what_matters() -> None:
    paths = [
        (("a", True), ("b", True)), (("a", True), ("b", False)), (("a", False), ("c", True)),
    ]  # fmt: skip
    merged = merge(paths)
    assert alternatives(merged) in {"a, or c and not: a", "a, or not: a and c", "a, or c"}
    assert (Condition("a", True),) in merged


questions = st.lists(
    st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=4, unique_by=lambda item: item[0]
)


@settings(deadline=None)
@given(st.lists(questions.map(tuple), min_size=1, max_size=8))
def test_merging_keeps_the_meaning(paths: list[tuple[tuple[str, bool], ...]]) -> None:
    merged = merge(paths)
    for number in range(16):
        world = {name: bool(number >> place & 1) for place, name in enumerate("abcd")}
        before = any(all(world[name] is holds for name, holds in path) for path in paths)
        after = any(all(world[item.question] is item.holds for item in choice) for choice in merged)
        assert before == after

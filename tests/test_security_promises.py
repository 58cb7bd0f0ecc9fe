"""The sentences of SECURITY.md that can be read off the code: no code out of a file is run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "kappaplace"
TRUSTED = {"models/embedding/ray.py"}
"""SECURITY.md names it: a model on its way to a Ray cluster of the user's own."""


def calls() -> Iterator[tuple[str, str, ast.Call]]:
    """File, dotted name of what is called, and the call."""
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                yield file.relative_to(SOURCE).as_posix(), ast.unparse(node.func), node


def keyword(call: ast.Call, name: str) -> object:
    return next(
        (
            each.value.value
            for each in call.keywords
            if each.arg == name and isinstance(each.value, ast.Constant)
        ),
        None,
    )


CALLS = list(calls())


def test_torch_loads_tensors_only() -> None:
    loads = [
        (file, call)
        for file, name, call in CALLS
        if name in ("torch.load", "torch.hub.load_state_dict_from_url")
    ]
    assert len(loads) > 3
    assert {file for file, call in loads if keyword(call, "weights_only") is not True} == TRUSTED


def test_numpy_never_unpickles() -> None:
    assert [file for file, name, call in CALLS if name == "np.load"]  # its default is not to
    assert not [file for file, _, call in CALLS if keyword(call, "allow_pickle") is True]


@pytest.mark.parametrize(
    "name",
    [
        "pickle.load",
        "pickle.loads",
        "eval",
        "exec",
        "yaml.load",
        "os.system",
        "joblib.load",
        "pandas.read_pickle",
        "marshal.loads",
    ],
)
def test_nothing_that_runs_what_it_reads(name: str) -> None:
    assert not [file for file, called, _ in CALLS if called == name]


def test_no_shell_and_no_archive_is_unpacked() -> None:
    assert not [file for file, _, call in CALLS if keyword(call, "shell") is True]
    assert not [file for file, name, _ in CALLS if name.split(".")[-1] in ("extractall", "unpack_archive")]


def test_foreign_code_asks_first() -> None:
    loads = [call for _, name, call in CALLS if name == "torch.hub.load"]
    assert loads
    assert all(keyword(call, "trust_repo") == "check" for call in loads)


def test_tokens_are_compared_in_constant_time() -> None:
    assert [file for file, name, _ in CALLS if name == "hmac.compare_digest"] == ["serve/protect.py"]


@pytest.mark.parametrize("page", ["SECURITY.md", "docs/hardening.md"])
def test_every_test_that_a_page_names_exists(page: str) -> None:
    top = SOURCE.parent.parent
    names = set(re.findall(r"tests/[\w/]+(?:\.py)?", (top / page).read_text(encoding="utf-8")))
    assert len(names) > 5
    assert not [name for name in names if not (top / name).exists()]


def test_no_program_of_a_model_file_is_run() -> None:
    assert not [file for file, name, _ in CALLS if name.startswith("torch.jit")]

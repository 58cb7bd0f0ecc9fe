"""The doctor finds what was broken on purpose, suggests a fix, and ends with the right exit code."""

from __future__ import annotations

import importlib
import json
import shutil
from importlib import metadata
from pathlib import Path

import pytest
import torch

from kappaplace.cli import doctor
from kappaplace.cli.doctor import Check, examine, is_usable
from kappaplace.errors import MissingExtra, install_command
from kappaplace.models import shipped
from kappaplace.version import NOT_INSTALLED
from tests.cli.test_main import run


def check_named(name: str) -> Check:
    (check,) = (each for each in examine() if each.name == name)
    return check


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAPPAPLACE_CACHE", str(tmp_path / "cache"))


def without(package: str, monkeypatch: pytest.MonkeyPatch, instead: str = "") -> None:
    """As if a package were not installed, or in another version."""
    real = metadata.version

    def version(name: str) -> str:
        if name.lower() == package:
            if instead:
                return instead
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(doctor.metadata, "version", version)


def test_this_installation_is_sound() -> None:
    checks = examine()
    assert is_usable(checks), [check for check in checks if check.state == "problem"]
    names = {check.name for check in checks}
    assert {"Python", "torch", "numpy", "extra serve", "extra hub", "devices", "pretrained model"} <= names
    assert not [name for name in names if "dev" in name.split()]


def test_a_missing_package_of_the_core_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    without("pyarrow", monkeypatch)
    check = check_named("pyarrow")
    assert (check.state, check.detail) == ("problem", "not installed")
    [needed] = [x for x in metadata.requires("kappaplace") or [] if x.startswith("pyarrow")]
    assert check.fix == f"pip install '{needed}'"


def test_a_version_that_is_too_old_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    without("numpy", monkeypatch, "1.26.0")
    assert (check_named("numpy").state, check_named("numpy").detail) == ("problem", "1.26.0")


def test_the_command_for_an_extra_is_that_of_the_documentation(monkeypatch: pytest.MonkeyPatch) -> None:
    assert install_command("video") == "pip install 'kappaplace[video]'"
    error = str(MissingExtra("Reading videos", "video"))
    assert error == f'Reading videos needs the extra "video". Install it with: {install_command("video")}'
    monkeypatch.setattr("kappaplace.errors.package_version", lambda: NOT_INSTALLED)
    assert install_command("video") == "pip install -e '.[video]'"


def test_a_missing_extra_is_only_told(monkeypatch: pytest.MonkeyPatch) -> None:
    without("faiss-cpu", monkeypatch)
    check = check_named("extra faiss")
    assert (check.state, check.detail) == ("absent", "faiss-cpu missing")
    assert check.fix == "pip install 'kappaplace[faiss]'"
    assert is_usable(examine())


def test_an_outdated_extra_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    without("fastapi", monkeypatch, "0.1.0")
    assert check_named("extra serve").state == "warning"


@pytest.mark.parametrize(("mended", "state"), [(True, "warning"), (False, "problem")])
def test_a_broken_torchvision(mended: bool, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def broken(name: str, *rest: str) -> object:
        if name == "torchvision":
            raise RuntimeError("operator torchvision::nms does not exist\nand more")
        return real(name, *rest)

    def mend() -> None:
        if not mended:
            raise ImportError("undefined symbol")

    monkeypatch.setattr(doctor.importlib, "import_module", broken)
    monkeypatch.setattr("kappaplace.models.backbones.timm.import_torchvision", mend)
    check = check_named("torchvision import")
    assert check.state == state
    assert "\n" not in check.detail
    assert "torchvision" in check.fix


def test_a_gpu_that_torch_does_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    assert (check_named("devices").state, "sees no GPU" in check_named("devices").detail) == ("warning", True)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert check_named("devices").detail == "cpu"


def test_a_lacking_or_damaged_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    copy = tmp_path / shipped.DEFAULT
    shutil.copytree(shipped.FOLDER / shipped.DEFAULT, copy)
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    assert check_named("pretrained model").state == "ok"
    (weights,) = copy.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x7f")
    assert "checksum differs" in check_named("pretrained model").detail
    shutil.rmtree(copy)
    assert "not part of this installation" in check_named("pretrained model").detail


def test_a_cache_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("KAPPAPLACE_CACHE", str(tmp_path / "file" / "below"))
    assert run(monkeypatch, "doctor", "--json") == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["usable"] is False
    assert {"name", "state", "detail", "fix"} == set(answer["checks"][0])
    assert run(monkeypatch, "doctor") == 1
    assert "→ set KAPPAPLACE_CACHE" in capsys.readouterr().out


def test_a_full_disk_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LEAST_FREE", 1 << 62)
    assert check_named("cache").state == "warning"


def test_exit_code_of_a_sound_installation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "doctor") == 0
    assert "All required checks passed." in capsys.readouterr().out

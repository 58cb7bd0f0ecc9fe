"""`kappaplace doctor`: check an installation and suggest a fix for each problem."""

from __future__ import annotations

import importlib
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Literal

import typer

from kappaplace.cli.options import AsJson
from kappaplace.errors import KappaPlaceError, install_command

if TYPE_CHECKING:
    from packaging.requirements import Requirement

State = Literal["ok", "absent", "warning", "problem"]
"""absent (optional, not installed), warning (works with a drawback) or problem (something does not work)."""
MARKS = {"ok": ("✓", "green"), "absent": ("–", "white"), "warning": ("!", "yellow"), "problem": ("✗", "red")}
FOR_DEVELOPERS = ("dev", "docs", "notebooks")
LEAST_FREE = 1 << 30
"""Bytes of free disk space below which a download or a map may not fit."""


@dataclass(frozen=True)
class Check:
    """One line of the report."""

    name: str
    state: State
    detail: str
    fix: str = ""
    """Suggested fix; empty if nothing has to be done."""


def doctor(as_json: AsJson = False) -> None:
    """Check versions, devices, extras, the pretrained model and the cache; suggest a fix for each problem.

    The exit code is 0 if all required checks passed, otherwise 1.

    Examples:

        kappaplace doctor

        kappaplace doctor --json | jq '.checks[] | select(.state == "problem")'
    """
    checks = examine()
    usable = is_usable(checks)
    if as_json:
        typer.echo(json.dumps({"usable": usable, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            mark, color = MARKS[check.state]
            typer.echo(f"{typer.style(mark, fg=color)} {check.name:<{width}}  {check.detail}")
            if check.fix:
                typer.echo(f"  {'':<{width}}  → {check.fix}")
        typer.echo("All required checks passed." if usable else "Some required checks failed: see ✗ above.")
    if not usable:
        raise typer.Exit(1)


def examine() -> list[Check]:
    """Run all checks, from the interpreter to the cache."""
    groups: tuple[Callable[[], Iterator[Check]], ...] = (
        _python,
        _requirements,
        _devices,
        _torchvision,
        _own_model,
        _cache,
    )
    return [check for group in groups for check in group()]


def is_usable(checks: list[Check]) -> bool:
    """Return whether all required checks passed."""
    return all(check.state != "problem" for check in checks)


def _python() -> Iterator[Check]:
    from kappaplace.version import package_version

    system = (
        f"{platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    )
    old = sys.version_info < (3, 10)
    yield Check("Python", "problem" if old else "ok", system, "install Python 3.10 or newer" if old else "")
    yield Check("kappaplace", "ok", package_version())


def _requirements() -> Iterator[Check]:
    """Check each required package, and the packages of each extra together."""
    from packaging.requirements import Requirement

    try:
        texts = metadata.requires("kappaplace") or []
    except metadata.PackageNotFoundError:
        yield Check("installation", "problem", "kappaplace is not installed", "pip install -e .")
        return
    requirements = [Requirement(text) for text in texts]
    extras = metadata.metadata("kappaplace").get_all("Provides-Extra") or []
    for requirement in requirements:
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield _core(requirement)
    for extra in sorted(set(extras) - set(FOR_DEVELOPERS)):
        yield _extra(extra, [each for each in requirements if _belongs(each, extra)])


def _belongs(requirement: Requirement, extra: str) -> bool:
    marker = requirement.marker
    return marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""})


def _core(requirement: Requirement) -> Check:
    version, fits = _installed(requirement)
    if fits:
        return Check(requirement.name, "ok", version)
    return Check(
        requirement.name,
        "problem",
        version or "not installed",
        f"pip install '{requirement.name}{requirement.specifier}'",
    )


def _extra(extra: str, requirements: list[Requirement]) -> Check:
    installed = {requirement.name: _installed(requirement) for requirement in requirements}
    name = f"extra {extra}"
    versions = ", ".join(f"{package} {version or 'missing'}" for package, (version, _) in installed.items())
    if all(fits for _, fits in installed.values()):
        return Check(name, "ok", versions)
    outdated = any(version and not fits for version, fits in installed.values())
    return Check(name, "warning" if outdated else "absent", versions, install_command(extra))


def _installed(requirement: Requirement) -> tuple[str, bool]:
    """Return the installed version (empty: none) and whether it meets the requirement."""
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return "", False
    return version, requirement.specifier.contains(version, prereleases=True)


def _devices() -> Iterator[Check]:
    try:
        import torch
    except (ImportError, OSError) as error:
        yield Check(
            "devices", "problem", f"torch cannot be imported: {_first_line(error)}", "reinstall torch"
        )
        return
    yield Check("threads", "ok", f"torch uses {torch.get_num_threads()} threads")
    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
        yield Check("devices", "ok", f"cpu, cuda ({names})")
    elif torch.backends.mps.is_available():
        yield Check("devices", "ok", "cpu, mps")
    elif shutil.which("nvidia-smi"):
        build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
        yield Check(
            "devices",
            "warning",
            f"cpu; there is an NVIDIA driver, but this torch ({build}) sees no GPU",
            "install the build of torch for this driver: https://pytorch.org/get-started/locally",
        )
    else:
        yield Check("devices", "ok", "cpu")


def _torchvision() -> Iterator[Check]:
    """Check for the most frequent problem: a torchvision that was built for another torch."""
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError:
        return  # the check of the extra reports this
    except (RuntimeError, ImportError, OSError) as error:
        yield _broken_torchvision(error)
        return
    yield Check("torchvision import", "ok", "its operators match this torch")


def _broken_torchvision(error: Exception) -> Check:
    from kappaplace.models import import_torchvision

    fix = _matching_torchvision()
    try:
        import_torchvision()
    except Exception as second:  # a broken binary may raise any error
        return Check("torchvision import", "problem", _first_line(second), fix)
    problem = (
        f"broken ({_first_line(error)}); kappaplace works around it for timm backbones, other programs fail"
    )
    return Check("torchvision import", "warning", problem, fix)


def _matching_torchvision() -> str:
    """Return the command that installs torchvision from the index of this torch."""
    build = metadata.version("torch").partition("+")[2]
    index = f" --index-url https://download.pytorch.org/whl/{build}" if build else ""
    return f"pip install --force-reinstall --no-deps torchvision{index}"


def _own_model() -> Iterator[Check]:
    from kappaplace.models import DEFAULT, shipped_folder

    try:
        from kappaplace.models import checked_weights, read_card

        folder = shipped_folder()
        weights = checked_weights(folder, read_card(folder))
    except KappaPlaceError as error:
        yield Check("pretrained model", "problem", str(error), "reinstall kappaplace from its wheel")
    except (ImportError, OSError) as error:
        yield Check("pretrained model", "problem", _first_line(error), "fix the problems above first")
    else:
        size = weights.stat().st_size / 1e6
        yield Check("pretrained model", "ok", f"{DEFAULT}, {size:.1f} MB, checksum correct")


def _cache() -> Iterator[Check]:
    from kappaplace.files import make_folder
    from kappaplace.models import cache_folder

    folder = cache_folder()
    try:
        make_folder(folder)
    except KappaPlaceError as error:
        yield Check("cache", "problem", str(error), "set KAPPAPLACE_CACHE to a writable folder")
        return
    free = shutil.disk_usage(folder).free
    location = f"{folder}, {free / 1e9:.0f} GB free"
    if free < LEAST_FREE:
        yield Check(
            "cache",
            "warning",
            location,
            "free disk space, or set KAPPAPLACE_CACHE to a folder on another disk",
        )
    else:
        yield Check("cache", "ok", location)


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).partition("\n")[0]

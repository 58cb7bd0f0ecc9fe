"""Is this installation fit for use, and if not, what is to be done? Every check says what was found."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any, Literal

from kappaplace.errors import KappaPlaceError

State = Literal["ok", "absent", "warning", "problem"]
"""absent: optional and not installed; warning: works with a drawback; problem: something will not work."""
FOR_DEVELOPERS = ("dev", "docs", "notebooks")
LEAST_FREE = 1 << 30
"""Bytes of free disk below which a download or a map may not fit."""


@dataclass(frozen=True)
class Check:
    """One line of the report."""

    name: str
    state: State
    found: str
    fix: str = ""
    """What to do about it; empty where there is nothing to do."""


def examine() -> list[Check]:
    """All checks, in the order in which a person would ask."""
    groups: tuple[Callable[[], Iterator[Check]], ...] = (
        _python,
        _requirements,
        _devices,
        _torchvision,
        _own_model,
        _cache,
    )
    return [check for group in groups for check in group()]


def sound(checks: list[Check]) -> bool:
    """Whether everything that must work does."""
    return all(check.state != "problem" for check in checks)


def as_rows(checks: list[Check]) -> list[dict[str, str]]:
    """Plain values for JSON."""
    return [asdict(check) for check in checks]


def _python() -> Iterator[Check]:
    from kappaplace.version import package_version

    what = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    old = sys.version_info < (3, 10)
    yield Check("Python", "problem" if old else "ok", what, "install Python 3.10 or newer" if old else "")
    yield Check("kappaplace", "ok", package_version())


def _requirements() -> Iterator[Check]:
    """Packages of the core, each by itself; of every extra, all together."""
    from packaging.requirements import Requirement

    try:
        named = metadata.requires("kappaplace") or []
    except metadata.PackageNotFoundError:
        yield Check("installation", "problem", "kappaplace is not installed", "pip install -e .")
        return
    requirements = [Requirement(text) for text in named]
    extras = metadata.metadata("kappaplace").get_all("Provides-Extra") or []
    for requirement in requirements:
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield _core(requirement)
    for extra in sorted(set(extras) - set(FOR_DEVELOPERS)):
        mine = [
            each
            for each in requirements
            if each.marker
            and each.marker.evaluate({"extra": extra})
            and not each.marker.evaluate({"extra": ""})
        ]
        yield _extra(extra, mine)


def _core(requirement: Any) -> Check:
    found, fits = _installed(requirement)
    if fits:
        return Check(requirement.name, "ok", found)
    return Check(
        requirement.name,
        "problem",
        found or "not installed",
        f"pip install '{requirement.name}{requirement.specifier}'",
    )


def _extra(extra: str, requirements: list[Any]) -> Check:
    told, fits = [], []
    for requirement in requirements:
        found, good = _installed(requirement)
        told.append(f"{requirement.name} {found or 'missing'}")
        fits.append(good)
    name, what, fix = f"extra {extra}", ", ".join(told), f"pip install 'kappaplace[{extra}]'"
    if all(fits):
        return Check(name, "ok", what)
    outdated = any(not good and not text.endswith("missing") for good, text in zip(fits, told, strict=True))
    return Check(name, "warning" if outdated else "absent", what, fix)


def _installed(requirement: Any) -> tuple[str, bool]:
    """Version that is installed (empty: none) and whether it is one of those asked for."""
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
    yield Check("threads", "ok", f"torch computes with {torch.get_num_threads()} threads")
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
            "install the build of torch that fits the driver: https://pytorch.org/get-started/locally",
        )
    else:
        yield Check("devices", "ok", "cpu")


def _torchvision() -> Iterator[Check]:
    """The most frequent fault: a torchvision whose binary belongs to another build of torch."""
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError:
        return  # told by its extra
    except (RuntimeError, ImportError, OSError) as error:
        yield _mended(error)
        return
    yield Check("torchvision import", "ok", "its operators fit this torch")


def _mended(error: Exception) -> Check:
    from kappaplace.models.backbones.timm import import_torchvision

    fix = _matching_torchvision()
    try:
        import_torchvision()
    except Exception as second:  # whatever a broken binary does
        return Check("torchvision import", "problem", _first_line(second), fix)
    found = f"broken ({_first_line(error)}), mended by kappaplace for its timm backbones; other programs fail"
    return Check("torchvision import", "warning", found, fix)


def _matching_torchvision() -> str:
    """The command that brings torchvision from where this torch came from."""
    build = metadata.version("torch").partition("+")[2]
    index = f" --index-url https://download.pytorch.org/whl/{build}" if build else ""
    return f"pip install --force-reinstall --no-deps torchvision{index}"


def _own_model() -> Iterator[Check]:
    from kappaplace.models.shipped import DEFAULT, shipped_folder

    try:
        from kappaplace.models.checkpoint import checked_weights, read_card

        folder = shipped_folder()
        weights = checked_weights(folder, read_card(folder))
    except KappaPlaceError as error:
        yield Check("pretrained model", "problem", str(error), "install kappaplace from its wheel again")
    except (ImportError, OSError) as error:
        yield Check("pretrained model", "problem", _first_line(error), "first mend what is named above")
    else:
        size = weights.stat().st_size / 1e6
        yield Check("pretrained model", "ok", f"{DEFAULT}, {size:.1f} MB, checksum right")


def _cache() -> Iterator[Check]:
    from kappaplace.files import make_folder
    from kappaplace.models.published import cache_folder

    folder = cache_folder()
    try:
        make_folder(folder)
    except KappaPlaceError as error:
        yield Check("cache", "problem", str(error), "set KAPPAPLACE_CACHE to a folder that you may write to")
        return
    free = shutil.disk_usage(folder).free
    found = f"{folder}, {free / 1e9:.0f} GB free"
    if free < LEAST_FREE:
        yield Check(
            "cache", "warning", found, "make room, or set KAPPAPLACE_CACHE to a folder on another disk"
        )
    else:
        yield Check("cache", "ok", found)


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).partition("\n")[0]

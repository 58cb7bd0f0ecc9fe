"""Exceptions with a message for the user."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from kappaplace.version import NOT_INSTALLED, package_version


class KappaPlaceError(Exception):
    """Error for bad input or an unusable environment; the message states the problem and its solution.

    The command line prints the message and exits with code 2. Catch this class in your own code.
    """


class MapLocked(KappaPlaceError):
    """Error if another process is writing to a folder; the message names its process ID and its host."""


class MissingExtra(KappaPlaceError):
    """Error if a feature needs an extra that is not installed.

    Args:
        feature: Feature that needs the extra, as the subject of a sentence, such as "Reading videos".
        extra: Name of the extra.
    """

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f'{feature} needs the extra "{extra}". Install it with: {install_command(extra)}')


def install_command(extra: str) -> str:
    """Return the command that installs an extra; pip adds its packages to the installed kappaplace."""
    if package_version() == NOT_INSTALLED:
        return f"pip install -e '.[{extra}]'"
    return f"pip install 'kappaplace[{extra}]'"


def import_extra(module: str, feature: str, extra: str) -> ModuleType:
    """Import a module of an extra.

    Args:
        module: Name of the module.
        feature: Feature that needs it, as in `MissingExtra`.
        extra: Name of the extra.

    Returns:
        The module.

    Raises:
        MissingExtra: If the module is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(feature, extra) from error

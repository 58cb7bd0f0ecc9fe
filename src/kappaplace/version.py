"""The version of the installed package."""

from __future__ import annotations

from functools import cache


@cache
def package_version() -> str:
    """Return the version, read from the installed package on first use: importing stays quick."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("kappaplace")
    except PackageNotFoundError:  # used from a source tree without installation
        return "0+unknown"

"""The version of the installed package."""

from __future__ import annotations

from functools import cache

NOT_INSTALLED = "0+unknown"
"""Version of a source tree that is not installed."""


@cache
def package_version() -> str:
    """Return the version of the installed package, read on first use so that imports stay fast."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("kappaplace")
    except PackageNotFoundError:
        return NOT_INSTALLED

"""HTTP service for maps: an API for programs and a web page for people (`kappaplace serve`).

`kappaplace.serve.app.create_app` creates the application. Extra: ``serve``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kappaplace._names import lazy_exports

if TYPE_CHECKING:
    from kappaplace.serve.app import create_app as create_app
    from kappaplace.serve.app import is_loopback as is_loopback
    from kappaplace.serve.app import listen as listen
    from kappaplace.serve.app import run as run
    from kappaplace.serve.settings import LOOPBACK as LOOPBACK
    from kappaplace.serve.settings import Settings as Settings
    from kappaplace.serve.settings import read_tokens as read_tokens
else:
    __all__, __getattr__ = lazy_exports(__name__, __file__)

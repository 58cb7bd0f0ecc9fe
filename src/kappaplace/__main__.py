"""Run the command line with ``python -m kappaplace``, for example for ``accelerate launch -m kappaplace``."""

from kappaplace.cli.main import main

main()

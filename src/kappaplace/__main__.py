"""``python -m kappaplace``: the command line, for example for ``accelerate launch -m kappaplace``."""

from kappaplace.cli.main import main

main()

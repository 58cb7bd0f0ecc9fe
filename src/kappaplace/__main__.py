"""``python -m kappaplace``: the same as the command, for ``accelerate launch -m kappaplace`` and friends."""

from kappaplace.cli.main import main

main()

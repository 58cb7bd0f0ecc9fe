"""The machine: device, processes and precision, through Hugging Face accelerate."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kappaplace.errors import KappaPlaceError
from kappaplace.training.loop import installed_trackers
from kappaplace.training.settings import RunSettings
from kappaplace.training.steps import autocast_for


@dataclass(frozen=True, eq=False)
class Engine:
    """One process of one or many; made by `create`."""

    accelerator: Any
    autocast: Any

    @classmethod
    def create(cls, settings: RunSettings, device: str, folder: Path) -> Engine:
        """On a GPU where there is one; under ``accelerate launch`` or ``torchrun`` on several."""
        try:
            from accelerate import Accelerator, InitProcessGroupKwargs
        except ImportError:
            raise KappaPlaceError("Training needs accelerate: pip install 'kappaplace[train]'.") from None
        if device not in ("", "cpu"):
            raise KappaPlaceError(
                f"The device is chosen by accelerate; only 'cpu' can be forced, got '{device}'."
            )
        trackers = installed_trackers(settings.trackers)
        # Precision and accumulation are the settings' alone, not those of accelerate's environment.
        accelerator = Accelerator(
            mixed_precision="no",
            cpu=device == "cpu",
            log_with=trackers or None,
            project_dir=str(folder),
            # Extraction shares nothing for hours; the usual ten minutes would end it.
            kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(days=1))],
        )
        accelerator.gradient_accumulation_steps = 1
        if trackers:
            accelerator.init_trackers("log")
        return cls(accelerator, autocast_for(accelerator.device, settings.precision))

    @property
    def device(self) -> torch.device:
        return self.accelerator.device

    @property
    def rank(self) -> int:
        return self.accelerator.process_index

    @property
    def processes(self) -> int:
        return self.accelerator.num_processes

    @property
    def main(self) -> bool:
        """Whether this process writes and speaks."""
        return self.accelerator.is_main_process

    def wrap(self, net: nn.Module) -> nn.Module:
        """The network, averaging gradients over processes where there are several."""
        if self.processes == 1 or not any(parameter.requires_grad for parameter in net.parameters()):
            return net
        return self.accelerator.prepare(net)

    def wait(self) -> None:
        """Until all processes are here."""
        self.accelerator.wait_for_everyone()

    def finish(self) -> None:
        """Close the trackers; the processes stay together for another run."""
        for tracker in self.accelerator.trackers:
            tracker.finish()
        self.wait()

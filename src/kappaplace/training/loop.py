"""The one training loop: steps, validation, early stopping, states on disk.

The state of a run on disk: one file, replaced in one step, that holds all it takes to go on.

What a run tells: lines on the terminal, CSV files, and trackers where they are installed.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kappaplace.errors import KappaPlaceError
from kappaplace.files import replace_file
from kappaplace.models.checkpoint import ModelCard, TrainableModel, save_model
from kappaplace.progress import track
from kappaplace.training.early_stopping import EarlyStopping
from kappaplace.training.optimizers import Optimisers
from kappaplace.training.settings import Settings
from kappaplace.training.steps import Steps
from kappaplace.training.validation import Validator

FILE = "training.pt"
FORMAT = 1


def save_state(folder: Path, state: dict[str, Any]) -> None:
    """Write; a process killed meanwhile leaves the state before."""
    content = BytesIO()  # in memory first: torch's own writer ends the process where the disk is full
    torch.save({"format": FORMAT, **state}, content)
    replace_file(folder / FILE, lambda part: part.write_bytes(content.getbuffer()))


def load_state(folder: Path) -> dict[str, Any] | None:
    """The last complete state, or None if there is none. Only tensors and plain values are read."""
    file = folder / FILE
    if not file.is_file():
        return None
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
        known = state["format"] == FORMAT
    except Exception as error:  # the unpickler meets junk with many kinds of error
        reason = str(error).partition("\n")[0]
        raise KappaPlaceError(
            f"The training state {file} cannot be read ({reason}); remove it to start again."
        ) from None
    if not known:
        raise KappaPlaceError(
            f"The training state {file} was written by another version; finish it with that one."
        )
    return state


def rng_state() -> dict[str, Any]:
    """Torch's random numbers, on which dropout depends; everything else is a function of the step."""
    state: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """The inverse of `rng_state`."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


STEPS, EPOCHS = "steps.csv", "epochs.csv"
_MODULES = {"tensorboard": ("tensorboard", "tensorboardX"), "wandb": ("wandb",), "mlflow": ("mlflow",)}


def installed_trackers(names: Sequence[str]) -> list[str]:
    """Those of the wanted trackers that can be used here."""
    unknown = sorted(set(names) - set(_MODULES))
    if unknown:
        raise KappaPlaceError(f"Unknown tracker '{unknown[0]}'; known are {', '.join(_MODULES)}.")
    return [
        name for name in names if any(importlib.util.find_spec(module) for module in _MODULES.get(name, ()))
    ]


class RunLog:
    """Rows of steps and epochs, kept as CSV; a resumed run drops what came after its state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.steps: list[dict[str, Any]] = []
        self.epochs: list[dict[str, Any]] = []

    def write(self) -> None:
        """Bring both files up to date; rows may gain columns, so they are written whole."""
        for name, rows in ((STEPS, self.steps), (EPOCHS, self.epochs)):
            if rows:
                _write_text(self.folder / name, as_csv(rows))


def _write_text(file: Path, text: str) -> None:
    replace_file(file, lambda part: part.write_text(text, encoding="utf-8"), sync=False)


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows with all columns that any of them has, numbers with six digits."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})
    return text.getvalue()


def epoch_line(row: Mapping[str, Any], epochs: int) -> str:
    """One line for a terminal: ``epoch 3/30  loss 1.23  R@1 0.812  ECE@1 0.103  (42 s)``."""
    parts = [f"epoch {row['epoch']}/{epochs}"]
    parts += [f"{name} {row[name]:.4g}" for name in ("loss", "R@1", "ECE@1", "AUROC") if name in row]
    return "  ".join([*parts, f"({row['seconds']:.0f} s)"])


LOG_EVERY = 50  # steps between looks at the losses: each look waits for the device
STATE_SECONDS = 10.0  # epochs of cached features take less; what a kill may cost is bounded all the same
FIRST_LOOK = 256  # images from which κ's starting value is taken


@dataclass
class Loop:
    """One run. Everything it needs is made before; it only lets time pass."""

    settings: Settings
    folder: Path
    model: TrainableModel
    steps: Steps
    optimisers: Optimisers
    objective: nn.Module
    stopping: EarlyStopping
    accelerator: Any
    iterations: int
    autocast: Callable[[], Any]
    validator: Validator | None = None
    card: ModelCard = field(default_factory=ModelCard)
    frozen: bool = False
    """Whether states hold the head alone, the rest being as it was at the start."""
    start: str = ""
    """Fingerprint of the model as the run found it."""
    data: str = ""
    """Fingerprint of the training set: a state goes on with its own images only."""
    keep: Callable[[Path], None] = lambda folder: None
    """Writes what belongs beside a model (prototypes)."""
    say: Callable[[str], None] = lambda line: None
    chunk: int = LOG_EVERY

    def __post_init__(self) -> None:
        self.log = RunLog(self.folder)
        self.epoch = self.iteration = 0
        self.finished = False
        self._saved = time.monotonic()

    @property
    def main(self) -> bool:
        """Whether this process writes files."""
        return self.accelerator.is_main_process

    def fit(self) -> list[dict[str, Any]]:
        """Train to the end, from the last state if there is one; the rows of the epochs."""
        if not self._resume():
            self._start()
        if self.finished:
            return self.log.epochs
        self.model.eval()  # so that the first epoch, too, brings it into the mode of training
        while self.epoch < self.settings.optimiser.epochs and not self.finished:
            self._train_epoch()
            self._end_epoch()
        if self.validator is None and self.main:  # nothing to choose by: the last is the result
            self._save_model(self.folder / "model", {})
        self.finished = True
        self._save_state()
        return self.log.epochs

    def _start(self) -> None:
        if self.validator is not None:  # what the model is before the first step
            self.stopping.check(self._judge(0, {}))
        self._save_state()

    def _train_epoch(self) -> None:
        # Walking through all modules costs milliseconds, as much as an epoch may where the encoder is frozen;
        # only validation changes the mode in between.
        if not self.frozen or self.validator is not None or not self.model.training:
            self.model.train()
            if self.settings.model.freeze_batchnorm:
                freeze_batchnorm(self.model)
        self._began = time.perf_counter()
        what = f"Epoch {self.epoch + 1}/{self.settings.optimiser.epochs}"
        with track(what, self.iterations) as bar:
            bar.advance(self.iteration)
            while self.iteration < self.iterations:
                self._train_chunk(bar)

    def _train_chunk(self, bar: track) -> None:
        every = self.settings.run.checkpoint_every
        limits = (self._next(self.chunk), self._next(every), self.iterations)
        start, stop, began = self.iteration, min(limits), time.perf_counter()
        losses = {
            name: self._mean_of_processes(x).cpu()
            for name, x in self.steps.run(self.epoch, start, stop).items()
        }
        self._check_finite(losses["loss"], start)
        seconds = time.perf_counter() - began
        for first in range(0, stop - start, LOG_EVERY):
            part = slice(first, first + LOG_EVERY)
            values = {name: float(x[part].double().mean()) for name, x in losses.items()}
            row = {"epoch": self.epoch + 1, "step": start + min(first + LOG_EVERY, stop - start), **values}
            row["images per second"] = (
                (stop - start) * self.settings.optimiser.batch_size / max(seconds, 1e-9)
            )
            self.log.steps.append(row)
        self._track(
            {f"train/{name}": float(x[-1]) for name, x in losses.items()}, self.epoch * self.iterations + stop
        )
        self.iteration = stop
        bar.advance(stop - start)
        if stop % every == 0 and stop < self.iterations:
            self._check_weights()
            self._save_state()

    def _next(self, every: int) -> int:
        return (self.iteration // every + 1) * every

    def _mean_of_processes(self, values: Tensor) -> Tensor:
        return self.accelerator.reduce(values, "mean") if self.accelerator.num_processes > 1 else values

    def _check_finite(self, losses: Tensor, start: int) -> None:
        bad = torch.nonzero(~torch.isfinite(losses)).flatten()
        if len(bad):
            raise KappaPlaceError(
                f"The loss became {float(losses[bad[0]])} in epoch {self.epoch + 1}, step "
                f"{start + int(bad[0]) + 1}; lower optimiser.lr, or look for broken images. The last "
                f"good state is kept in {self.folder}."
            )

    def _check_weights(self) -> None:
        """Before they are kept: a finite loss may have had a gradient that was not."""
        if not all(bool(torch.isfinite(value).all()) for value in self._weights().values()):
            raise KappaPlaceError(
                f"Weights became not finite in epoch {self.epoch + 1}; lower optimiser.lr, or look for "
                f"broken images. The last good state is kept in {self.folder}."
            )

    def _end_epoch(self) -> None:
        mine = [row for row in self.log.steps if row["epoch"] == self.epoch + 1]
        steps = np.diff([0, *(row["step"] for row in mine)])  # how many a row is the mean of
        losses = {
            name: float(np.average([row[name] for row in mine], weights=steps))
            for name in mine[0]
            if name not in _NOT_LOSSES
        }
        self._check_weights()
        self.epoch, self.iteration = self.epoch + 1, 0
        self._judge(self.epoch, losses)
        self.finished = self.stopping.stopped
        if self._any_process(time.monotonic() - self._saved > STATE_SECONDS):
            self._save_state()

    def _judge(self, epoch: int, losses: dict[str, float]) -> dict[str, float]:
        """Measure the model on the validation set, and keep it where it is the best so far."""
        values: dict[str, float] = {}
        if self.validator is not None:
            values = self._measure(self.validator)
        if epoch and self.validator is not None:
            improved = self.stopping.update(epoch, values)
            if self.main:
                for what in improved:
                    self._save_model(self.folder / (what if what == "model" else f"best-{what}"), values)
        seconds = 0.0 if epoch == 0 else time.perf_counter() - self._began
        row: dict[str, Any] = {"epoch": epoch, **losses, **values, "seconds": seconds}
        if self.stopping.metrics and self.validator is not None:
            row["watching"] = self.stopping.metric
        self.log.epochs.append(row)
        self._track({f"validation/{name}": value for name, value in values.items()}, epoch * self.iterations)
        if self.main:
            self.say(epoch_line(row, self.settings.optimiser.epochs))
        return values

    def _measure(self, validator: Validator) -> dict[str, float]:
        """The metrics, the same in all processes: a differing bit would let them part ways."""
        if self.accelerator.num_processes > 1:
            for buffer in self.model.buffers():  # each process has BatchNorm statistics of its own
                torch.distributed.broadcast(buffer, 0)
        values = [validator(self.model, self.accelerator.device, self.autocast, self.accelerator.gather)]
        if self.accelerator.num_processes > 1:
            torch.distributed.broadcast_object_list(values, 0)
        return values[0]

    def _any_process(self, mine: bool) -> bool:
        """Whether it is so in any process: what leads to waiting for each other is decided together."""
        flag = torch.tensor(float(mine), device=self.accelerator.device)
        return bool(self.accelerator.reduce(flag, "sum") if self.accelerator.num_processes > 1 else flag)

    def _track(self, values: dict[str, float], step: int) -> None:
        if values and self.accelerator.trackers:
            self.accelerator.log(values, step=step)

    def _save_model(self, folder: Path, values: dict[str, float]) -> None:
        card = ModelCard(self.card.data, self.card.licence, values, self.card.notes)
        folder.mkdir(parents=True, exist_ok=True)
        self.keep(folder)
        save_model(self.model, folder, card)

    def _save_state(self) -> None:
        self.accelerator.wait_for_everyone()
        self._saved = time.monotonic()
        random = self._gather_random()
        if self.main:
            self.log.write()
            save_state(
                self.folder,
                {
                    "settings": self.settings.to_toml(),
                    "data": self.data,
                    "start": self.start,
                    "epoch": self.epoch,
                    "iteration": self.iteration,
                    "finished": self.finished,
                    "model": self._weights(),
                    "objective": self.objective.state_dict(),
                    "optimisers": self.optimisers.state_dict(),
                    "stopping": self.stopping.state_dict(),
                    "random": random,
                    "steps": self.log.steps,
                    "epochs": self.log.epochs,
                },
            )
        self.accelerator.wait_for_everyone()

    def _gather_random(self) -> list[dict[str, Any]]:
        """The random state of every process: each drops out in its own way."""
        states: list[Any] = [None] * self.accelerator.num_processes
        if self.accelerator.num_processes > 1:
            torch.distributed.all_gather_object(states, rng_state())
        else:
            states = [rng_state()]
        return states

    def _weights(self) -> dict[str, Tensor]:
        if not self.frozen:
            return self.model.state_dict()
        assert self.model.head is not None
        return self.model.head.state_dict(prefix="head.")

    def _resume(self) -> bool:
        state = load_state(self.folder)
        if state is None:
            return False
        if state["data"] != self.data:
            raise KappaPlaceError(f"{self.folder} holds a run on other images; choose another folder.")
        if state["start"] != self.start:
            raise KappaPlaceError(
                f"{self.folder} holds a run that started from another model; choose another folder."
            )
        self.model.load_state_dict({**self.model.state_dict(), **state["model"]})
        self.objective.load_state_dict(state["objective"])
        self.optimisers.load_state_dict(state["optimisers"])
        self.stopping.load_state_dict(state["stopping"])
        if self.accelerator.process_index < len(state["random"]):
            set_rng_state(state["random"][self.accelerator.process_index])
        self.epoch, self.iteration, self.finished = state["epoch"], state["iteration"], state["finished"]
        self.optimisers.done = self.epoch * self.iterations + self.iteration
        self.log.steps, self.log.epochs = state["steps"], state["epochs"]
        if self.main and not self.finished:
            self.say(f"Going on from epoch {self.epoch + 1}, step {self.iteration + 1}.")
        return True


_NOT_LOSSES = ("epoch", "step", "images per second")


def freeze_batchnorm(model: nn.Module) -> None:
    """BatchNorm in evaluation mode: statistics stay, and images of a batch do not meet."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()

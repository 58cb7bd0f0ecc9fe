"""The training loop: steps, validation, early stopping, logs, and states from which a run resumes."""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from kappaplace.errors import KappaPlaceError
from kappaplace.files import write_file
from kappaplace.models.checkpoint import ModelCard, TrainableModel, save_model
from kappaplace.progress import track
from kappaplace.training.settings import Settings
from kappaplace.training.steps import Steps, Work
from kappaplace.training.validation import (
    HIGHER_IS_BETTER,
    EarlyStopping,
    Validator,
    flawed,
    warnings_of,
    watched,
)

FILE = "training.pt"
FORMAT = 1
State: TypeAlias = dict[str, Any]
"""State that a run resumes from: tensors and plain values in dictionaries and lists."""
StepRow: TypeAlias = dict[str, float]
EpochRow: TypeAlias = dict[str, float | str]
"""Row of one epoch: number, losses, validation metrics, seconds, and the name of the watched metric."""


def save_state(folder: Path, state: State) -> None:
    """Write a state; if the process is killed, the previous state remains."""
    content = BytesIO()  # in memory first, because torch's own writer ends the process if the disk is full
    torch.save({"format": FORMAT, **state}, content)
    write_file(folder / FILE, content.getvalue())


def load_state(folder: Path) -> State | None:
    """Return the last complete state; None if there is none. Only tensors and plain values are read."""
    file = folder / FILE
    if not file.is_file():
        return None
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
        version = state["format"]
    except Exception as error:  # the unpickler raises many kinds of errors for damaged files
        reason = str(error).partition("\n")[0]
        raise KappaPlaceError(
            f"The training state {file} cannot be read ({reason}). Remove it to start again."
        ) from None
    if version != FORMAT:
        raise KappaPlaceError(
            f"The training state {file} was written by another version. Finish the run with that version."
        )
    return state


def rng_state() -> dict[str, Tensor]:
    """Return the state of torch's random numbers, which only dropout depends on."""
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_rng_state(state: Mapping[str, Tensor]) -> None:
    """Restore the state that `rng_state` returned."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


STEPS, EPOCHS = "steps.csv", "epochs.csv"


class RunLog:
    """Rows of steps and epochs, written as CSV. A resumed run drops the rows after its state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.steps: list[StepRow] = []
        self.epochs: list[EpochRow] = []

    def write(self) -> None:
        """Write both files as a whole, because rows can have new columns."""
        if self.steps:
            write_file(self.folder / STEPS, as_csv(self.steps), sync=False)
        if self.epochs:
            write_file(self.folder / EPOCHS, as_csv(self.epochs), sync=False)


def as_csv(rows: Sequence[Mapping[str, float | str]]) -> str:
    """Return rows as CSV, with the columns of all rows and six digits per number."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})
    return text.getvalue()


def epoch_line(row: Mapping[str, float | str], epochs: int) -> str:
    """Return one line for a terminal: ``epoch 3/30  loss 1.23  R@1 0.812  ECE@1 0.103  (42 s)``.

    A star marks the ECE@1 of a score that is constant or nearly so.
    """
    numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
    marks = {"ECE@1": "*" if flawed(numbers) else ""}
    parts = [f"epoch {row['epoch']}/{epochs}"]
    parts += [
        f"{name} {row[name]:.4g}{marks.get(name, '')}"
        for name in ("loss", "R@1", "ECE@1", "AUROC")
        if name in row
    ]
    return "  ".join([*parts, f"({row['seconds']:.0f} s)"])


LOG_EVERY = 50  # steps between transfers of the losses, because each transfer waits for the device
STATE_SECONDS = 10.0  # seconds between states at the ends of epochs, if epochs take less
FIRST_LOOK = 256  # images from which the first value of κ is computed


@dataclass
class Loop:
    """A run, with the parts that `Assembly` puts together."""

    settings: Settings
    folder: Path
    model: TrainableModel
    steps: Steps
    work: Work
    stopping: EarlyStopping
    validator: Validator | None = None
    card: ModelCard = field(default_factory=ModelCard)
    frozen: bool = False
    """Whether states contain only the head, because nothing else changes."""
    start: str = ""
    """Fingerprint of the model before the run."""
    data: str = ""
    """Fingerprint of the training set; a run resumes only with the same images."""
    keep: Callable[[Path], None] = lambda folder: None
    """Function that writes files that belong to a model, such as prototypes, to its folder."""
    say: Callable[[str], None] = lambda line: None
    chunk: int = LOG_EVERY

    def __post_init__(self) -> None:
        self.accelerator, self.optimizers = self.work.accelerator, self.work.optimizers
        self.iterations = self.work.plan.iterations
        self.log = RunLog(self.folder)
        self.epoch = self.iteration = 0
        self.finished = False
        self._saved = time.monotonic()

    @property
    def main(self) -> bool:
        """Whether this process writes files."""
        return self.accelerator.is_main_process

    def fit(self) -> list[EpochRow]:
        """Train to the end, from the last state if there is one. Return the rows of the epochs."""
        if not self._resume():
            self._start()
        if self.finished:
            return self.log.epochs
        self.model.eval()  # so that the first epoch switches to the training mode, too
        epochs = self.settings.optimizer.epochs
        whole = self.validator is None  # one bar for all epochs, which may be too short for their own
        while self.epoch < epochs and not self.finished:
            name = "Training" if whole else f"Epoch {self.epoch + 1}/{epochs}"
            with track(name, self.iterations * (epochs if whole else 1)) as bar:
                bar.advance(self.iteration + self.iterations * (self.epoch if whole else 0))
                while self.epoch < epochs and not self.finished:
                    self._train_epoch(bar)
                    if not whole:
                        break
                    self._end_epoch()
            if not whole:
                self._end_epoch()
        if self.validator is None and self.main:  # without validation, the last model is the result
            self._save_model(self.folder / "model", {})
        self.finished = True
        self._save_state()
        if self.validator is not None and self.main:
            for line in self.verdict():
                self.say(line)
        return self.log.epochs

    def verdict(self) -> list[str]:
        """Return warnings about the result: no epoch was better than the start, or the score is flawed."""
        rows = [
            {name: value for name, value in row.items() if isinstance(value, int | float)}
            for row in self.log.epochs
        ]
        best_epoch = self.stopping.model_epoch
        lines = []
        if self.stopping.metrics and best_epoch == 0 and len(rows) > 1:
            metric = self.stopping.metrics[0]
            later = [row[metric] for row in rows[1:] if not math.isnan(watched(row)[metric])]
            best = (max if HIGHER_IS_BETTER[metric] else min)(later, default=math.nan)
            untrained = " Its head is not trained; set stop.metrics=[] to get the last epoch."
            lines.append(
                f"No epoch was better than the start: {metric} {rows[0][metric]:.3g} before training, at "
                f"best {best:.3g} after it. The model is that of the start." + untrained * self.frozen
            )
        return lines + [f"Warning: {warning}" for warning in warnings_of(rows[best_epoch])]

    def _start(self) -> None:
        if self.validator is not None:  # the model before the first step
            self._validate(0, {})
        self._save_state()

    def _train_epoch(self, bar: track) -> None:
        # Visiting all modules takes milliseconds, as long as an epoch with a frozen encoder; only validation
        # changes the mode in between.
        if not self.frozen or self.validator is not None or not self.model.training:
            self.model.train()
            if self.settings.model.freeze_batchnorm:
                freeze_batchnorm(self.model)
        self._began = time.perf_counter()
        while self.iteration < self.iterations:
            self._train_chunk(bar)

    def _train_chunk(self, bar: track) -> None:
        every = self.settings.run.checkpoint_every
        limits = (self._next(self.chunk), self._next(every), self.iterations)
        start, stop, began = self.iteration, min(limits), time.perf_counter()
        losses = {
            name: self.accelerator.reduce(x, "mean").cpu()
            for name, x in self.steps.run(self.epoch, start, stop).items()
        }
        self._check_finite(losses["loss"], start)
        seconds = time.perf_counter() - began
        for first in range(0, stop - start, LOG_EVERY):
            part = slice(first, first + LOG_EVERY)
            values = {name: float(x[part].double().mean()) for name, x in losses.items()}
            step = start + min(first + LOG_EVERY, stop - start)
            speed = (stop - start) * self.settings.optimizer.batch_size / max(seconds, 1e-9)
            self.log.steps.append(
                {"epoch": self.epoch + 1, "step": step, **values, "images per second": speed}
            )
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

    def _check_finite(self, losses: Tensor, start: int) -> None:
        bad = torch.nonzero(~torch.isfinite(losses)).flatten()
        if len(bad):
            raise KappaPlaceError(
                f"The loss became {float(losses[bad[0]])} in epoch {self.epoch + 1}, step "
                f"{start + int(bad[0]) + 1}. Lower optimizer.lr or check for damaged images; the last good "
                f"state is in {self.folder}."
            )

    def _check_weights(self) -> None:
        """Check the weights before they are saved, because a finite loss can have an infinite gradient."""
        if not all(bool(torch.isfinite(value).all()) for value in self._weights().values()):
            raise KappaPlaceError(
                f"Weights became NaN or infinite in epoch {self.epoch + 1}. Lower optimizer.lr or check for "
                f"damaged images; the last good state is in {self.folder}."
            )

    def _end_epoch(self) -> None:
        rows = [row for row in self.log.steps if row["epoch"] == self.epoch + 1]
        steps = np.diff([0, *(row["step"] for row in rows)])  # number of steps per row
        losses = {
            name: float(np.average([row[name] for row in rows], weights=steps))
            for name in rows[0]
            if name not in _NOT_LOSSES
        }
        self._check_weights()
        self.epoch, self.iteration = self.epoch + 1, 0
        self._validate(self.epoch, losses)
        self.finished = self.stopping.stopped
        if self._any_process(time.monotonic() - self._saved > STATE_SECONDS):
            self._save_state()

    def _validate(self, epoch: int, losses: dict[str, float]) -> dict[str, float]:
        """Measure the model on the validation set, and save it if it is the best so far."""
        values: dict[str, float] = {}
        if self.validator is not None:
            values = self._measure(self.validator)
            if epoch == 0:
                self.stopping.check(values)
            improved = self.stopping.update(epoch, watched(values))
            if self.main:
                for name in improved:
                    self._save_model(self.folder / (name if name == "model" else f"best-{name}"), values)
        seconds = 0.0 if epoch == 0 else time.perf_counter() - self._began
        row: EpochRow = {"epoch": epoch, **losses, **values, "seconds": seconds}
        if self.stopping.metrics and self.validator is not None:
            row["watching"] = self.stopping.metric
        self.log.epochs.append(row)
        self._track({f"validation/{name}": value for name, value in values.items()}, epoch * self.iterations)
        if self.main:
            self.say(epoch_line(row, self.settings.optimizer.epochs))
        return values

    def _measure(self, validator: Validator) -> dict[str, float]:
        """Return the metrics, which are the same in all processes, so that they make the same decisions."""
        if self.accelerator.num_processes > 1:
            for buffer in self.model.buffers():  # each process has its own BatchNorm statistics
                torch.distributed.broadcast(buffer, 0)
        values = [validator(self.model)]
        if self.accelerator.num_processes > 1:
            torch.distributed.broadcast_object_list(values, 0)
        return values[0]

    def _any_process(self, condition: bool) -> bool:
        """Return whether the condition is met in any process, because all processes must decide alike."""
        flag = torch.tensor(float(condition), device=self.accelerator.device)
        return bool(self.accelerator.reduce(flag, "sum"))

    def _track(self, values: dict[str, float], step: int) -> None:
        if values and self.accelerator.trackers:
            self.accelerator.log(values, step=step)

    def _save_model(self, folder: Path, values: dict[str, float]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.keep(folder)
        save_model(self.model, folder, replace(self.card, metrics=values))

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
                    "objective": self.work.objective.state_dict(),
                    "optimisers": self.optimizers.state_dict(),
                    "scaler": {} if self.work.scaler is None else self.work.scaler.state_dict(),
                    "stopping": self.stopping.state_dict(),
                    "random": random,
                    "steps": self.log.steps,
                    "epochs": self.log.epochs,
                },
            )
        self.accelerator.wait_for_everyone()

    def _gather_random(self) -> list[dict[str, Tensor]]:
        """Return the random state of every process; dropout differs between processes."""
        if self.accelerator.num_processes == 1:
            return [rng_state()]
        states: list[dict[str, Tensor]] = [{}] * self.accelerator.num_processes
        torch.distributed.all_gather_object(states, rng_state())
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
            raise KappaPlaceError(f"{self.folder} contains a run on other images. Choose another folder.")
        if state["start"] != self.start:
            raise KappaPlaceError(
                f"{self.folder} contains a run that started from another model. Choose another folder."
            )
        self.model.load_state_dict({**self.model.state_dict(), **state["model"]})
        self.work.objective.load_state_dict(state["objective"])
        self.optimizers.load_state_dict(state["optimisers"])
        self.stopping.load_state_dict(state["stopping"])
        if self.work.scaler is not None:
            self.work.scaler.load_state_dict(state["scaler"])
        if self.accelerator.process_index < len(state["random"]):
            set_rng_state(state["random"][self.accelerator.process_index])
        self.epoch, self.iteration, self.finished = state["epoch"], state["iteration"], state["finished"]
        self.optimizers.done = self.epoch * self.iterations + self.iteration
        self.log.steps, self.log.epochs = state["steps"], state["epochs"]
        if self.main and not self.finished:
            self.say(f"Resuming from epoch {self.epoch + 1}, step {self.iteration + 1}.")
        return True


_NOT_LOSSES = ("epoch", "step", "images per second")


def freeze_batchnorm(model: nn.Module) -> None:
    """Put BatchNorm in evaluation mode, in which statistics do not change and images do not affect each
    other."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()

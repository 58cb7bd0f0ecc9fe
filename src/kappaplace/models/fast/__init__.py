"""`model.optimize(device)`: the same model in the form that runs fastest there, for inference alone.

BatchNorms are folded into the convolutions and images lie channels-last. On CUDA the backbone computes in
half precision (everything after it, from the channels' normalisation to κ, in float32), and each shape of
batch is recorded once as a CUDA graph.

A function of one tensor as a CUDA graph: at batch 1 starting the kernels costs more than they do.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._triton import has_triton

from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.models.backbones.resnet import ResNet
from kappaplace.models.embedding import check_images, usable_device
from kappaplace.models.encoder import EncoderModule
from kappaplace.models.fast.fused import FusedResNet, InPrecision, Tail, best_convolutions, fold_batch_norms
from kappaplace.models.heads import FoldedKappaHead, MirroredKappaHead
from kappaplace.models.network import Architecture, Network
from kappaplace.types import Embeddings

WARM_UP = 3


class GraphedCall:
    """One function for inputs of one shape, recorded once and replayed."""

    def __init__(self, call: Callable[[Tensor], Tensor], example: Tensor) -> None:
        """``example`` is the first input; what follows is converted to its type and layout."""
        self._input = example.clone()
        with torch.cuda.device(example.device), best_convolutions():
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):  # compiles, and lets cuDNN choose
                    call(self._input)
            torch.cuda.current_stream().wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._output = call(self._input)

    def __call__(self, x: Tensor) -> Tensor:
        """The function's value; it is the caller's own, the next call does not touch it."""
        with torch.cuda.device(self._input.device):
            self._input.copy_(x, non_blocking=True)
            self._graph.replay()
            return self._output.clone()


log = logging.getLogger(__name__)

Way = Literal["auto", "eager", "graph", "fused", "compiled"]
"""eager: folded, channels-last, half precision on CUDA; graph: the same, recorded; fused: with cuDNN's fused
kernels, recorded; compiled: by `torch.compile`, recorded on CUDA."""

LEAST_COSINE, MOST_KAPPA = 0.9999, 0.01  # how far an optimised model may be from the one it was made of
MOST_SHAPES = 8  # shapes of batch that are recorded; each holds memory for all its activations
ENOUGH = 256  # images that make up for the seconds that optimising takes
PROBES = 4


class Fidelity(NamedTuple):
    """How far two models' answers to the same images are apart."""

    cosine: float
    """The smallest of two descriptors of one image."""
    spread: float
    """The largest relative difference of κ (or of a variance); 0 without either."""

    @property
    def good(self) -> bool:
        return self.cosine >= LEAST_COSINE and self.spread <= MOST_KAPPA  # False for NaN


class OptimizedModel(EncoderModule):
    """A `PlaceModel` for inference, with the same forward, ``embed`` and ``patch_maps``.

    Made by `optimize`. The first batch of a new shape takes longer than the others: it is recorded.
    """

    def __init__(self, model: Network, dtype: torch.dtype, way: Way) -> None:
        super().__init__()
        self.model, self.preprocessing = model, model.preprocessing
        self.tail: Tail | None = None
        if model.head is None or isinstance(model.head, FoldedKappaHead):
            self.tail = Tail(model.aggregation, model.head)
        self.dtype = dtype
        self.way = way
        self._call: Callable[[Tensor], Tensor] = self._packed
        self._fast_tail: Callable[[Tensor], Embeddings] | None = None
        if way == "compiled":
            self._call = torch.compile(self._packed, dynamic=False)
        elif way in ("graph", "fused") and self.tail is not None and has_triton():
            # A dozen tiny kernels become a few, within seconds; the convolutions are cuDNN's in any case.
            self._fast_tail = torch.compile(self.tail, dynamic=False)
        self._graphs: dict[tuple[int, ...], GraphedCall] = {}
        self._met: set[tuple[int, ...]] = set()
        self.eval()

    @property
    def architecture(self) -> Architecture:
        """That of the model it was made of, with a folded head."""
        return self.model.architecture

    @property
    def dim(self) -> int:
        """Dimension of the descriptor."""
        return self.model.dim

    @property
    def head(self) -> nn.Module | None:
        """The head, in float32."""
        return self.model.head

    @property
    def shows_patches(self) -> bool:
        """As `PlaceModel.shows_patches`."""
        return self.model.shows_patches

    @torch.inference_mode()
    def forward(self, images: Tensor) -> Embeddings:
        """B×3×H×W, normalized as ``preprocessing`` says → descriptors B×d and κ of shape B, float32."""
        check_images(images)
        recorded = self._graphs.get(tuple(images.shape))
        if recorded is not None:  # which converts while it copies
            return self._unpacked(recorded(images), len(images))
        laid = images.to(self.dtype, memory_format=torch.channels_last)
        return self._unpacked(self._run(laid), len(images))

    @torch.inference_mode()
    def patch_maps(self, images: Tensor) -> Tensor:
        """As `PlaceModel.patch_maps`."""
        return self.model.patch_maps(images)

    def train(self, mode: bool = True) -> OptimizedModel:
        """Stays in evaluation mode: there is nothing left to train."""
        return super().train(False)

    def _apply(self, *arguments: Any, **options: Any) -> OptimizedModel:
        before = [parameter.data_ptr() for parameter in self.parameters()]
        super()._apply(*arguments, **options)
        if before != [parameter.data_ptr() for parameter in self.parameters()]:
            self._graphs.clear()  # they hold the addresses of the weights
        return self

    def _run(self, laid: Tensor) -> Tensor:
        shape = tuple(laid.shape)
        if laid.device.type == "cuda" and self.way != "eager":
            return self._recorded(shape, laid)
        if self.way == "compiled" and shape not in self._met:
            self._met.add(shape)
            with _room_to_compile():
                return self._call(laid)
        return self._call(laid)

    def _recorded(self, shape: tuple[int, ...], laid: Tensor) -> Tensor:
        if shape not in self._graphs:
            larger = self._larger(shape)
            if larger is not None and shape not in self._met:  # the end of a list: likely this once
                self._met.add(shape)
                filled = torch.cat([laid, laid[:1].expand(larger[0] - len(laid), -1, -1, -1)])
                return self._first(self._graphs[larger](filled), len(laid), larger[0])
            if len(self._graphs) >= MOST_SHAPES:
                return self._packed(laid)
            with _room_to_compile():
                self._graphs[shape] = self._record(laid)
        return self._graphs[shape](laid)

    def _record(self, laid: Tensor) -> GraphedCall:
        if self._fast_tail is not None:
            try:
                return GraphedCall(self._with_fast_tail, laid)
            except Exception as error:  # compilers fail in many ways; the plain form always works
                log.warning("The end of the model is not compiled: %s", str(error).partition("\n")[0])
                self._fast_tail = None
        return GraphedCall(self._call, laid)

    def _with_fast_tail(self, images: Tensor) -> Tensor:
        assert self._fast_tail is not None
        made = self._fast_tail(self.model.backbone(images))
        return torch.cat([part.flatten() for part in made if part is not None])

    def _larger(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """The smallest recorded batch of such images that this one fits into."""
        return min(
            (known for known in self._graphs if known[1:] == shape[1:] and known > shape), default=None
        )

    def _first(self, packed: Tensor, count: int, of: int) -> Tensor:
        """The packed answers of the first ``count`` images."""
        return torch.cat([packed[: count * self.dim], packed[of * self.dim :][:count]])

    def _packed(self, images: Tensor) -> Tensor:
        """Descriptors and κ in one piece of memory: a second one would be a second kernel to start."""
        made = self.model(images) if self.tail is None else self.tail(self.model.backbone(images))
        return torch.cat([part.flatten() for part in made if part is not None])

    def _unpacked(self, packed: Tensor, count: int) -> Embeddings:
        descriptor, spread = packed[: count * self.dim].view(count, self.dim), packed[count * self.dim :]
        if self.head is None:
            return Embeddings(descriptor)
        if getattr(self.head, "spread", "variance") == "kappa":
            return Embeddings(descriptor, spread)
        return Embeddings(descriptor, variance=spread)


def optimize(
    model: Network, device: str | torch.device | None = None, *, way: Way = "auto"
) -> OptimizedModel:
    """See `PlaceModel.optimize`."""
    target = next(model.parameters()).device if device is None else usable_device(device)
    plain = copy.deepcopy(model).to(target).float().eval().requires_grad_(False)
    if isinstance(plain.head, MirroredKappaHead) and plain.head.spread == "kappa":
        plain = plain.fold().eval()
    images = _probes(plain.preprocessing, target)
    with torch.no_grad():
        with _full_float32():
            expected = plain(images)
        folded = copy.deepcopy(plain)
        fold_batch_norms(folded.backbone, images[:1])
        if fidelity(expected, folded(images)).good:
            plain = folded
        for chosen, dtype in _forms(target, way):
            form = _in_form(plain, chosen, dtype)
            if form is not None:
                made = OptimizedModel(form, dtype, chosen)
                if fidelity(expected, _answer(made, images)).good:
                    return made
    last: Way = "eager" if target.type != "cuda" else "graph"
    return OptimizedModel(_encoder_in(plain, torch.float32), torch.float32, last if way == "auto" else way)


def _forms(target: torch.device, way: Way) -> list[tuple[Way, torch.dtype]]:
    """What to try, the fastest first."""
    if target.type != "cuda":
        if way in ("graph", "fused"):
            raise KappaPlaceError(
                f"The way '{way}' is for CUDA; take 'eager' or 'compiled' on {target.type}."
            )
        return []
    ways: tuple[Way, ...] = ("fused", "graph") if way == "auto" else (way,)
    return [(chosen, dtype) for chosen in ways for dtype in (torch.float16, torch.bfloat16)]


def _in_form(plain: Network, way: Way, dtype: torch.dtype) -> Network | None:
    """The model in this form; None where it cannot have it."""
    if way != "fused":
        return _encoder_in(plain, dtype)
    if not isinstance(plain.backbone, ResNet) or plain.backbone.conv1.bias is None:
        return None
    model = copy.deepcopy(plain)
    model.backbone = FusedResNet(model.backbone)  # type: ignore[arg-type]
    return _encoder_in(model, dtype)


def _encoder_in(plain: Network, dtype: torch.dtype) -> Network:
    model = copy.deepcopy(plain)
    model.backbone = InPrecision(model.backbone, dtype)
    return model


def _answer(model: OptimizedModel, images: Tensor) -> Embeddings:
    """The model's output, before anything is recorded; of a kernel that does not exist here, NaN."""
    try:
        return model._unpacked(model._packed(images), len(images))
    except RuntimeError:
        nothing = torch.full((len(images), 1), torch.nan, device=images.device)
        return Embeddings(nothing)


def for_many(model: nn.Module, device: str | torch.device | None, images: int) -> nn.Module:
    """What embeds so many images soonest: the optimised form, where there are enough to make it for."""
    if not isinstance(model, Network) or images < ENOUGH:
        return model
    return optimize(model, device)


@torch.inference_mode()
def fidelity(expected: Embeddings, got: Embeddings) -> Fidelity:
    """How far ``got`` is from ``expected``, both of the same images; NaN where the shapes differ."""
    if got.descriptor.shape != expected.descriptor.shape:
        return Fidelity(float("nan"), float("nan"))
    cosine = (expected.descriptor.double() * got.descriptor.double()).sum(1).min()
    spread = 0.0
    for wanted, have in ((expected.kappa, got.kappa), (expected.variance, got.variance)):
        if wanted is not None:
            spread = float(((have.double() - wanted.double()) / wanted.double()).abs().max())
    return Fidelity(float(cosine), spread)


@contextmanager
def _full_float32() -> Iterator[None]:
    """What is compared with must not be rounded itself: cuDNN takes ten bits of a float32 unless told."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


@contextmanager
def _room_to_compile() -> Iterator[None]:
    """torch gives up compiling after eight versions of a function, counted over all models of a process."""
    from torch._dynamo import config

    name = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    with config.patch({name: 1000}):
        yield


def _probes(preprocessing: Preprocessing, device: torch.device) -> Tensor:
    """A few images of many frequencies, normalized."""
    generator = torch.Generator().manual_seed(0)
    height, width = preprocessing.fixed_size or (224, 224)
    layers = [
        nn.functional.interpolate(
            torch.rand(PROBES, 3, cells, cells, generator=generator), (height, width), mode="bilinear"
        )
        for cells in (3, 12, 60)
    ]
    return preprocessing.normalise((sum(layers) / len(layers)).to(device))  # type: ignore[union-attr]

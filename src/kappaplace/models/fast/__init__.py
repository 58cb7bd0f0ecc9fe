"""Optimized models for inference: `model.optimize(device)` returns the form that is fastest on a device.

BatchNorms are folded into the convolutions, and memory is channels-last. On CUDA, the backbone computes in
half precision, and everything after it in float32. Each batch shape is recorded once as a CUDA graph, because
launching the kernels costs more than running them at batch size 1.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._triton import has_triton

from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.models.aggregation import Aggregation
from kappaplace.models.backbones.convolutional import ResNet
from kappaplace.models.embedding import check_images, usable_device
from kappaplace.models.encoder import EncoderModule
from kappaplace.models.fast.fused import (
    FusedResNet,
    InPrecision,
    Tail,
    best_convolutions,
    cudnn_setting,
    fold_batch_norms,
)
from kappaplace.models.heads import FoldedKappaHead, MirroredKappaHead
from kappaplace.models.network import Architecture, Network
from kappaplace.types import Embeddings

WARM_UP = 3


class GraphedCall:
    """A function of one tensor for inputs of one shape, recorded as a CUDA graph and replayed."""

    def __init__(self, call: Callable[[Tensor], Tensor], example: Tensor) -> None:
        """Record the function with a first input; later inputs are converted to its type and layout."""
        self._input = example.clone()
        with torch.cuda.device(example.device), best_convolutions():
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):  # compiles, and lets cuDNN choose its algorithms
                    call(self._input)
            torch.cuda.current_stream().wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._output = call(self._input)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the value of the function as a copy that the next call does not change."""
        with torch.cuda.device(self._input.device):
            self._input.copy_(x, non_blocking=True)
            self._graph.replay()
            return self._output.clone()


log = logging.getLogger(__name__)

Form = Literal["auto", "eager", "graph", "fused", "compiled"]
"""Form of an optimized model. "auto" is the fastest form, and "compiled" uses `torch.compile`. "eager" has
folded BatchNorms, channels-last memory, and half precision on CUDA. "graph" is the same as a recorded CUDA
graph. "fused" is a recorded graph of cuDNN's fused kernels."""

LEAST_COSINE, MOST_KAPPA = 0.9999, 0.01  # limits of the difference from the original
MOST_SHAPES = 8  # recorded batch shapes; each one needs memory for all its activations
ENOUGH = 256  # fewest images for which optimization, which takes seconds, is worth it
PROBES = 4
ANY_SIDE = 224
"""Side of test images for a model that accepts any size."""


class Fidelity(NamedTuple):
    """Difference between the outputs of two models for the same images."""

    cosine: float
    """Smallest cosine of the two descriptors of an image."""
    spread: float
    """Largest relative difference of κ (or a variance); 0 if there is none."""

    @property
    def good(self) -> bool:
        return self.cosine >= LEAST_COSINE and self.spread <= MOST_KAPPA  # False for NaN


class OptimizedModel(EncoderModule):
    """A `PlaceModel` for inference, with the same forward, ``embed`` and ``patch_maps``; see `optimize`.

    The first batch of a new shape takes longer than later ones, because it is recorded.

    Args:
        model: The model to run.
        dtype: Number format of the backbone.
        form: Form of the model.
    """

    def __init__(self, model: Network, dtype: torch.dtype, form: Form) -> None:
        super().__init__()
        self.model, self.preprocessing = model, model.preprocessing
        self.tail: Tail | None = None
        aggregation, head = model.aggregation, model.head
        if isinstance(aggregation, Aggregation) and (head is None or isinstance(head, FoldedKappaHead)):
            self.tail = Tail(aggregation, head)
        self.dtype = dtype
        self.form = form
        self._call: Callable[[Tensor], Tensor] = self._packed
        self._fast_tail: Callable[[Tensor], Embeddings] | None = None
        if form == "compiled":
            self._call = torch.compile(self._packed, dynamic=False)
        elif form in ("graph", "fused") and self.tail is not None and has_triton():
            # Compiles a dozen small kernels into a few within seconds; cuDNN computes the convolutions
            # anyway.
            self._fast_tail = torch.compile(self.tail, dynamic=False)
        self._graphs: dict[tuple[int, ...], GraphedCall] = {}
        self._shapes: set[tuple[int, ...]] = set()  # shapes of earlier batches
        self.eval()

    @property
    def architecture(self) -> Architecture:
        """Structure of the original model, with a folded head."""
        return self.model.architecture

    @property
    def dim(self) -> int:
        """Dimension of the descriptor."""
        return self.model.dim if self.whitening is None else self.whitening.dim

    @property
    def head(self) -> nn.Module | None:
        """The head, in float32."""
        return self.model.head

    @property
    def shows_patches(self) -> bool:  # type: ignore[override]
        """Whether the model provides patch maps."""
        return self.model.shows_patches

    @torch.inference_mode()
    def forward(self, images: Tensor, patches: bool = False) -> Embeddings:
        """Compute float32 descriptors B×d and κ of shape B from images normalized by ``preprocessing``.

        With ``patches``, the feature maps come from the same pass, which is not recorded.
        """
        check_images(images)
        if patches:
            return self.whitened(self.model(images, patches=True))
        recorded = self._graphs.get(tuple(images.shape))
        if recorded is None:
            packed = self._run(images.to(self.dtype, memory_format=torch.channels_last))
        else:  # converts the images while it copies them
            packed = recorded(images)
        return self.whitened(self._unpacked(packed, len(images)))

    def train(self, mode: bool = True) -> OptimizedModel:
        """Stay in evaluation mode: an optimized model cannot be trained."""
        return super().train(False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> OptimizedModel:
        before = [parameter.data_ptr() for parameter in self.parameters()]
        super()._apply(fn, recurse)
        if before != [parameter.data_ptr() for parameter in self.parameters()]:
            self._graphs.clear()  # they contain the addresses of the weights
        return self

    def _run(self, images: Tensor) -> Tensor:
        shape = tuple(images.shape)
        if images.device.type == "cuda" and self.form != "eager":
            return self._recorded(shape, images)
        if self.form == "compiled" and shape not in self._shapes:
            self._shapes.add(shape)
            with _room_to_compile():
                return self._call(images)
        return self._call(images)

    def _recorded(self, shape: tuple[int, ...], images: Tensor) -> Tensor:
        if shape not in self._graphs:
            larger = self._larger(shape)
            if larger is not None and shape not in self._shapes:  # the end of a list, probably only once
                self._shapes.add(shape)
                padded = torch.cat([images, images[:1].expand(larger[0] - len(images), -1, -1, -1)])
                return self._first(self._graphs[larger](padded), len(images), larger[0])
            if len(self._graphs) >= MOST_SHAPES:
                return self._packed(images)
            with _room_to_compile():
                self._graphs[shape] = self._record(images)
        return self._graphs[shape](images)

    def _record(self, images: Tensor) -> GraphedCall:
        if self._fast_tail is not None:
            try:
                return GraphedCall(self._with_fast_tail, images)
            except Exception as error:  # compilers fail in many ways; the plain form always works
                log.warning("The end of the model could not be compiled: %s", str(error).partition("\n")[0])
                self._fast_tail = None
        return GraphedCall(self._call, images)

    def _with_fast_tail(self, images: Tensor) -> Tensor:
        assert self._fast_tail is not None
        return _flat(self._fast_tail(self.model.backbone(images)))

    def _larger(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the smallest recorded batch shape of such images with room for this batch."""
        return min((own for own in self._graphs if own[1:] == shape[1:] and own > shape), default=None)

    def _first(self, packed: Tensor, count: int, total: int) -> Tensor:
        """Return the packed outputs of the first ``count`` images."""
        return torch.cat([packed[: count * self.model.dim], packed[total * self.model.dim :][:count]])

    def _packed(self, images: Tensor) -> Tensor:
        """Compute descriptors and κ in one tensor: two tensors need two kernels."""
        return _flat(self.model(images) if self.tail is None else self.tail(self.model.backbone(images)))

    def _unpacked(self, packed: Tensor, count: int) -> Embeddings:
        size = count * self.model.dim
        descriptor, spread = packed[:size].view(count, self.model.dim), packed[size:]
        if self.head is None:
            return Embeddings(descriptor)
        if getattr(self.head, "spread", "variance") == "kappa":
            return Embeddings(descriptor, spread)
        return Embeddings(descriptor, variance=spread)


def _flat(outputs: Embeddings) -> Tensor:
    return torch.cat([part.flatten() for part in outputs if part is not None])


def optimize(
    model: Network, device: str | torch.device | None = None, *, form: Form = "auto"
) -> OptimizedModel:
    """Return the form of a model that is fastest on a device, see `PlaceModel.optimize`.

    Args:
        model: The model.
        device: Device to run on. Default: the device of the model.
        form: Form of the model. Default: the fastest one whose results agree with the model.

    Returns:
        A copy for inference.
    """
    if model.whitening is not None:
        return optimize(model.with_whitening(None), device, form=form).with_whitening(
            copy.deepcopy(model.whitening).to(usable_device(device or next(model.parameters()).device))
        )
    target = next(model.parameters()).device if device is None else usable_device(device)
    plain = copy.deepcopy(model).to(target).float().eval().requires_grad_(False)
    if isinstance(plain.head, MirroredKappaHead) and plain.head.spread == "kappa":
        plain = plain.fold().eval()
    images = probe_images(plain.preprocessing, PROBES, seed=0).to(target)
    with torch.no_grad():
        with cudnn_setting("allow_tf32", False):  # no rounding to the ten bits of TF32
            expected = plain(images)
        folded = copy.deepcopy(plain)
        fold_batch_norms(folded.backbone, images[:1])
        if fidelity(expected, folded(images)).good:
            plain = folded
        for candidate, dtype in _candidates(target, form):
            network = _in_form(plain, candidate, dtype)
            if network is not None:
                optimized = OptimizedModel(network, dtype, candidate)
                if fidelity(expected, _outputs(optimized, images)).good:
                    return optimized
    last: Form = "eager" if target.type != "cuda" else "graph"
    return OptimizedModel(_encoder_in(plain, torch.float32), torch.float32, last if form == "auto" else form)


def _candidates(target: torch.device, form: Form) -> list[tuple[Form, torch.dtype]]:
    """Return the forms and types to try, the fastest first."""
    if target.type != "cuda":
        if form in ("graph", "fused"):
            raise KappaPlaceError(f"form='{form}' is only for CUDA. Choose 'eager' or 'compiled'.")
        return []
    forms: tuple[Form, ...] = ("fused", "graph") if form == "auto" else (form,)
    return [(each, dtype) for each in forms for dtype in (torch.float16, torch.bfloat16)]


def _in_form(plain: Network, form: Form, dtype: torch.dtype) -> Network | None:
    """Return the model in a form, or None if it does not support the form."""
    if form != "fused":
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


def _outputs(model: OptimizedModel, images: Tensor) -> Embeddings:
    """Compute the outputs of a model without recording; NaN if this machine does not have a kernel."""
    try:
        return model._unpacked(model._packed(images), len(images))
    except RuntimeError:
        nothing = torch.full((len(images), 1), torch.nan, device=images.device)
        return Embeddings(nothing)


def for_many(model: nn.Module, device: str | torch.device | None, images: int) -> nn.Module:
    """Return the optimized model if there are enough images to be worth it, otherwise the model.

    Args:
        model: The model.
        device: Device to embed on. None: device of the model.
        images: Number of images.

    Returns:
        The optimized model, or the same model.
    """
    if not isinstance(model, Network) or images < ENOUGH:
        return model
    return optimize(model, device)


@torch.inference_mode()
def fidelity(expected: Embeddings, actual: Embeddings) -> Fidelity:
    """Compare the outputs of two models for the same images; NaN if the shapes differ."""
    if actual.descriptor.shape != expected.descriptor.shape:
        return Fidelity(float("nan"), float("nan"))
    cosine = (expected.descriptor.double() * actual.descriptor.double()).sum(1).min()
    spread = 0.0
    for reference, value in ((expected.kappa, actual.kappa), (expected.variance, actual.variance)):
        if reference is not None:
            spread = float(((value.double() - reference.double()) / reference.double()).abs().max())
    return Fidelity(float(cosine), spread)


@contextmanager
def _room_to_compile() -> Iterator[None]:
    """Raise torch's limit of eight compiled versions per function, which counts all models of a process."""
    from torch._dynamo import config

    name = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    with config.patch({name: 1000}):
        yield


def probe_images(
    preprocessing: Preprocessing,
    count: int,
    size: tuple[int, int] | None = None,
    *,
    seed: int | None = None,
) -> Tensor:
    """Generate normalized test images with structures of many sizes, the same in every run.

    Args:
        preprocessing: Preprocessing of the model.
        count: Number of images.
        size: Height and width. Default: size of the preprocessing, or 224×224.
        seed: Random seed. Default: ``count``.

    Returns:
        The images, N×3×H×W.
    """
    generator = torch.Generator().manual_seed(count if seed is None else seed)
    size = size or preprocessing.fixed_size or (ANY_SIDE, ANY_SIDE)
    layers = [
        nn.functional.interpolate(
            torch.rand(count, 3, cells, cells, generator=generator), size, mode="bilinear"
        )
        for cells in (3, 12, 60)
    ]
    return preprocessing.normalize(torch.stack(layers).mean(0))

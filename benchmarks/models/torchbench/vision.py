"""TorchBench's vision models, re-stated in plain torch, and torchvision's own.

Place: the ``torchbench`` family; each function at the bottom builds (module, args, kwargs) for one entry.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from mixbackend.benchmarks.models.entry import Loaded
from mixbackend.benchmarks.models.torchbench.layers import Layer, Residual, UNet, convolution, perceptron
from mixbackend.benchmarks.models.torchvision_shim import enable_torchvision

ANCHORS = ((10.0, 13.0), (30.0, 61.0))


def _leaky() -> nn.Module:
    return nn.LeakyReLU(0.1)


class TextRecognizer(nn.Module):
    """Convolutions down to a row of features, a bidirectional LSTM along it, characters per column."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            convolution(3, 32), nn.MaxPool2d(2), convolution(32, 64), nn.MaxPool2d(2),
            convolution(64, 128), nn.MaxPool2d((2, 1)), convolution(128, 128),
        )  # fmt: skip
        self.recurrent = nn.LSTM(128, 64, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(128, 128)

    def forward(self, x: Tensor) -> Tensor:
        columns = self.features(x).mean(2).transpose(1, 2)
        return self.head(self.recurrent(columns)[0]).softmax(-1)


class Detector(nn.Module):
    """YOLOv3 with two scales: boxes decoded on a grid with anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            _dark(3, 16), _dark(16, 32, 3, 2), _dark_residual(32), _dark(32, 64, 3, 2), _dark_residual(64),
            _dark_residual(64), _dark(64, 128, 3, 2), _dark_residual(128),
        )  # fmt: skip
        self.deep = nn.Sequential(_dark(128, 256, 3, 2), _dark_residual(256))
        self.lateral = _dark(256, 64, 1)
        self.coarse_head = nn.Conv2d(256, 50, 1)
        self.fine_head = nn.Conv2d(192, 50, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.stem(x)
        coarse = self.deep(fine)
        enlarged = F.interpolate(self.lateral(coarse), scale_factor=2, mode="nearest")
        boxes = [self._decode(self.coarse_head(coarse)), self._decode(self.fine_head(torch.cat([enlarged, fine], 1)))]
        return torch.cat(boxes, 1)

    def _decode(self, raw: Tensor) -> Tensor:
        batch, _, height, width = raw.shape
        raw = raw.view(batch, 2, 25, height, width).permute(0, 1, 3, 4, 2).contiguous()
        rows, columns = (torch.arange(size, device=raw.device) for size in (height, width))
        y, x = torch.meshgrid(rows, columns, indexing="ij")
        grid = torch.stack((x, y), 2).view(1, 1, height, width, 2).float()
        anchors = torch.tensor(ANCHORS, device=raw.device).view(1, 2, 1, 1, 2)
        centre, size = raw[..., :2].sigmoid() + grid, raw[..., 2:4].exp() * anchors
        return torch.cat([centre * 16, size, raw[..., 4:].sigmoid()], -1).view(batch, -1, 25)


def _dark(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    return convolution(inputs, outputs, kernel, stride, activation=_leaky)


def _dark_residual(width: int) -> Residual:
    return Residual(nn.Sequential(_dark(width, width // 2, 1), _dark(width // 2, width)))


class ContrastiveLearner(nn.Module):
    """MoCo: a query and a momentum encoder and a queue of old keys; changes its own weights and queue in forward."""

    queue: Tensor

    def __init__(self) -> None:
        super().__init__()
        enable_torchvision()
        from torchvision.models import resnet18

        self.query = resnet18(num_classes=128)
        self.key = resnet18(num_classes=128).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(128, 1024), dim=0))

    def forward(self, query_images: Tensor, key_images: Tensor) -> Tensor:
        query = F.normalize(self.query(query_images), dim=1)
        with torch.no_grad():
            for source, target in zip(self.query.parameters(), self.key.parameters(), strict=True):
                target.data = target.data * 0.999 + source.data * 0.001
            key = F.normalize(self.key(key_images), dim=1)
        positive = torch.einsum("nc,nc->n", query, key)[:, None]
        negative = torch.einsum("nc,ck->nk", query, self.queue.clone().detach())
        self.queue[:, : key.size(0)] = key.T
        logits = torch.cat([positive, negative], 1) / 0.07
        return F.cross_entropy(logits, torch.zeros(len(query), dtype=torch.long, device=query.device))


def torchvision_model(name: str, size: int = 128) -> Loaded:
    """A model of torchvision by name, with two random images."""
    enable_torchvision()
    import torchvision.models

    return getattr(torchvision.models, name)(weights=None), (torch.randn(2, 3, size, size),), {}


def image_translator(width: int = 16, blocks: int = 4) -> Loaded:
    """CycleGAN's generator: reflection padding, instance norms, residual blocks at a quarter of the size."""

    def step(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
        convolve = nn.Conv2d(inputs, outputs, kernel, stride)
        return nn.Sequential(nn.ReflectionPad2d(kernel // 2), convolve, nn.InstanceNorm2d(outputs), nn.ReLU())

    def enlarge(inputs: int, outputs: int) -> nn.Sequential:
        convolve = nn.ConvTranspose2d(inputs, outputs, 3, 2, 1, output_padding=1)
        return nn.Sequential(convolve, nn.InstanceNorm2d(outputs), nn.ReLU())

    def residual(inner: int) -> Residual:
        first, last = step(inner, inner, 3), nn.Conv2d(inner, inner, 3)
        return Residual(nn.Sequential(first, nn.ReflectionPad2d(1), last, nn.InstanceNorm2d(inner)))

    layers: list[nn.Module] = [step(3, width, 7), step(width, 2 * width, 3, 2), step(2 * width, 4 * width, 3, 2)]
    layers += [residual(4 * width) for _ in range(blocks)]
    layers += [enlarge(4 * width, 2 * width), enlarge(2 * width, width)]
    layers += [nn.ReflectionPad2d(3), nn.Conv2d(width, 3, 7), nn.Tanh()]
    return nn.Sequential(*layers), (torch.randn(1, 3, 64, 64),), {}


def dcgan() -> Loaded:
    """Generator and discriminator in one chain."""
    layers: list[nn.Module] = [nn.ConvTranspose2d(100, 256, 4, 1, 0, bias=False), nn.BatchNorm2d(256), nn.ReLU(True)]
    for inputs, outputs in ((256, 128), (128, 64), (64, 32)):
        up = nn.ConvTranspose2d(inputs, outputs, 4, 2, 1, bias=False)
        layers += [up, nn.BatchNorm2d(outputs), nn.ReLU(True)]
    layers += [nn.ConvTranspose2d(32, 3, 4, 2, 1, bias=False), nn.Tanh()]
    layers += [nn.Conv2d(3, 32, 4, 2, 1), nn.LeakyReLU(0.2, True)]
    for inputs, outputs in ((32, 64), (64, 128), (128, 256)):
        down = nn.Conv2d(inputs, outputs, 4, 2, 1, bias=False)
        layers += [down, nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2, True)]
    return nn.Sequential(*layers, nn.Conv2d(256, 1, 4), nn.Sigmoid()), (torch.randn(4, 100, 1, 1),), {}


def small_resnet(norm: Layer, width: int = 32) -> Loaded:
    """A residual network for images of 32 pixels, with the given normalisation."""

    def block(inputs: int, outputs: int, stride: int) -> Residual:
        first = convolution(inputs, outputs, 3, stride, norm)
        body = nn.Sequential(first, convolution(outputs, outputs, 3, 1, norm, None))
        shortcut = convolution(inputs, outputs, 1, stride, norm, None) if inputs != outputs else None
        return Residual(body, shortcut, nn.ReLU())

    module = nn.Sequential(
        convolution(3, width, norm=norm),
        block(width, width, 1),
        block(width, 2 * width, 2),
        block(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 10),
    )
    return module, (torch.randn(8, 3, 32, 32),), {}


def maml_omniglot() -> Loaded:
    """Four-layer classifier of characters with batch norms that keep no running statistics."""
    layers: list[Any] = []
    for inputs in (1, 64, 64):
        norm = nn.BatchNorm2d(64, affine=True, track_running_stats=False)
        layers += [nn.Conv2d(inputs, 64, 3), norm, nn.ReLU(inplace=True), nn.MaxPool2d(2, 2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 5)), (torch.randn(5, 1, 28, 28),), {}


def doctr_reco_predictor() -> Loaded:
    return TextRecognizer(), (torch.randn(4, 3, 32, 128),), {}


def pytorch_unet() -> Loaded:
    return UNet(3, 2), (torch.randn(1, 3, 96, 96),), {}


def yolov3() -> Loaded:
    return Detector(), (torch.rand(1, 3, 128, 128),), {}


def moco() -> Loaded:
    return ContrastiveLearner(), (torch.randn(4, 3, 64, 64), torch.randn(4, 3, 64, 64)), {}


class DiffusionLayer(nn.Module):
    """Attention and perceptron, both shifted, scaled and gated by what the condition says (adaLN-Zero)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.mixed, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner = perceptron(width, 4 * width, width, activation=partial(nn.GELU, approximate="tanh"))
        self.condition = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift, scale, gate, inner_shift, inner_scale, inner_gate = self.condition(condition)[:, None].chunk(6, -1)
        batch, length, width = x.shape
        mixed = self.mixed(self.norms[0](x) * (1 + scale) + shift)
        query, key, value = mixed.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(batch, length, width)
        x = x + gate * self.joined(seen)
        return x + inner_gate * self.inner(self.norms[1](x) * (1 + inner_scale) + inner_shift)


class DiffusionTransformer(nn.Module):
    """DiT: patches of a noisy image, a step in time and a class, to the noise and its variance."""

    def __init__(self, width: int, layers: int, heads: int, size: int, patch: int = 2) -> None:
        super().__init__()
        self.patch = patch
        self.patches = nn.Conv2d(4, width, patch, patch)
        self.places = nn.Parameter(torch.randn(1, (size // patch) ** 2, width) * 0.02)
        self.time, self.kinds = perceptron(256, width, width, activation=nn.SiLU), nn.Embedding(1001, width)
        self.layers = nn.ModuleList(DiffusionLayer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.last = nn.Linear(width, patch * patch * 8)

    def forward(self, image: Tensor, time: Tensor, kind: Tensor) -> Tensor:
        waves = torch.exp(torch.arange(128, device=time.device) * (-math.log(10000.0) / 128))
        angles = time[:, None] * waves
        condition = self.time(torch.cat([angles.cos(), angles.sin()], -1)) + self.kinds(kind)
        x = self.patches(image).flatten(2).transpose(1, 2) + self.places
        for layer in self.layers:
            x = layer(x, condition)
        batch, side = len(x), image.shape[-1] // self.patch
        x = self.last(self.norm(x)).view(batch, side, side, self.patch, self.patch, 8)
        return x.permute(0, 5, 1, 3, 2, 4).reshape(batch, 8, side * self.patch, side * self.patch)


def diffusion_transformer(width: int = 192, layers: int = 3, size: int = 16) -> Loaded:
    """DiT's layers on latent images of 16 x 16, with two steps in time and two classes."""
    inputs = (torch.randn(2, 4, size, size), torch.tensor([17.0, 800.0]), torch.tensor([3, 999]))
    return DiffusionTransformer(width, layers, 3, size), inputs, {}

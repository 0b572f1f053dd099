"""TorchBench's control, physics, recommendation and graph models, re-stated in plain torch.

Place: the ``torchbench`` family; each function at the bottom builds (module, args, kwargs) for one entry.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from mixbackend.benchmarks.models.entry import Loaded
from mixbackend.benchmarks.models.torchbench.layers import perceptron


class SoftActorCritic(nn.Module):
    """Squashed normal policy with its log probability, and the smaller of two critics."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = perceptron(3, 1024, 1024, 2)
        self.first_critic = perceptron(4, 1024, 1024, 1)
        self.second_critic = perceptron(4, 1024, 1024, 1)

    def forward(self, observed: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_scale = self.policy(observed).chunk(2, 1)
        scale = (-5 + 0.5 * 7 * (torch.tanh(log_scale) + 1)).exp()
        raw = mean + scale * noise
        action = torch.tanh(raw)
        squash = 2 * (math.log(2.0) - raw - F.softplus(-2 * raw))
        log_probability = torch.distributions.Normal(mean, scale, validate_args=False).log_prob(raw) - squash
        both = torch.cat([observed, action], 1)
        value = torch.min(self.first_critic(both), self.second_critic(both))
        return action, log_probability.sum(-1, keepdim=True), value


class ClickModel(nn.Module):
    """DLRM: dense features and bags of items, their products in pairs, and a perceptron over them."""

    pairs: Tensor

    def __init__(self, rows: int, tables: int, width: int) -> None:
        super().__init__()
        self.items = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.dense = perceptron(13, 64, width, last=nn.ReLU)
        self.top = perceptron(width + tables * (tables + 1) // 2, 64, 1, last=nn.Sigmoid)
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, dense: Tensor, bags: Tensor, offsets: Tensor) -> Tensor:
        first = self.dense(dense)
        found = [table(items, offsets) for table, items in zip(self.items, bags, strict=True)]
        every = torch.stack([first, *found], 1)
        products = torch.bmm(every, every.transpose(1, 2))
        return self.top(torch.cat([first, products[:, self.pairs[0], self.pairs[1]]], 1))


class PixelActorCritic(nn.Module):
    """DrQ: shifted images, a convolutional encoder, policy and critic heads."""

    def __init__(self) -> None:
        super().__init__()
        first = nn.Conv2d(9, 32, 3, 2)
        deeper = [layer for _ in range(3) for layer in (nn.Conv2d(32, 32, 3), nn.ReLU())]
        self.encoder = nn.Sequential(first, nn.ReLU(), *deeper, nn.Flatten())
        self.project = nn.Linear(32 * 25 * 25, 50)
        self.norm = nn.LayerNorm(50)
        self.policy = perceptron(50, 512, 512, 2)
        self.critic = perceptron(51, 512, 512, 1)

    def forward(self, images: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shifted = F.pad(images / 255.0, (4, 4, 4, 4), mode="replicate")[:, :, 2:-6, 4:-4]
        hidden = torch.tanh(self.norm(self.project(self.encoder(shifted))))
        mean, log_scale = self.policy(hidden).chunk(2, -1)
        scale = torch.exp(-10 + 6 * (torch.tanh(log_scale) + 1))
        return torch.tanh(mean), scale, self.critic(torch.cat([hidden, action], -1))


class EquationOfState(nn.Module):
    """Density of sea water as a quotient of two polynomials; no parameters, pointwise only."""

    def forward(self, salinity: Tensor, temperature: Tensor, pressure: Tensor) -> Tensor:
        c = [1e-4 * (index + 1) * (-1) ** index for index in range(16)]
        s, t, p = salinity, temperature, pressure
        root = torch.sqrt(s)
        above = c[0] + t * (c[1] + t * (c[2] + c[3] * t)) + s * (c[4] + t * c[5] + s * c[6])
        above = above + p * (c[7] + c[8] * t**2 + c[9] * s)
        below = 1.0 + t * (c[10] + t * (c[11] + t * c[12])) + s * (c[13] + t * c[14] + root * (c[15] + c[0] * t**2))
        below = below + p * c[1] * t
        return torch.where(below.abs() > 1e-8, above / below, torch.zeros_like(above))


class TurbulentKineticEnergy(nn.Module):
    """Vertical diffusion by the Thomas algorithm over 26 levels: hundreds of small slices in a row."""

    LEVELS = 26

    def forward(self, energy: Tensor, kappa: Tensor, forcing: Tensor, depth: Tensor) -> Tensor:
        below, centre, right = torch.zeros_like(energy), torch.ones_like(energy), energy.clone()
        delta = torch.zeros_like(energy)
        delta[:, :, :-1] = 1 / depth[1:] * 0.5 * (kappa[:, :, 1:] + kappa[:, :, :-1])
        below[:, :, 1:] = -delta[:, :, :-1] / depth[1:]
        centre = centre + (delta + delta.roll(1, 2)) / depth + 0.7 * energy.clamp(min=0).sqrt()
        solved = self._solve(below, centre, -delta / depth, right + forcing)
        return torch.where(energy > 0, solved, energy)

    def _solve(self, below: Tensor, centre: Tensor, above: Tensor, right: Tensor) -> Tensor:
        factors, sums = [above[:, :, 0] / centre[:, :, 0]], [right[:, :, 0] / centre[:, :, 0]]
        for level in range(1, self.LEVELS):
            divisor = centre[:, :, level] - below[:, :, level] * factors[-1]
            sums.append((right[:, :, level] - below[:, :, level] * sums[-1]) / divisor)
            factors.append(above[:, :, level] / divisor)
        solution = [sums[-1]]
        for level in range(self.LEVELS - 2, -1, -1):
            solution.append(sums[level] - factors[level] * solution[-1])
        return torch.stack(solution[::-1], 2)


def soft_actor_critic() -> Loaded:
    return SoftActorCritic(), (torch.randn(128, 3), torch.randn(128, 1)), {}


def drq() -> Loaded:
    return PixelActorCritic(), (torch.rand(2, 9, 64, 64) * 255, torch.rand(2, 1)), {}


def pyhpc_equation_of_state() -> Loaded:
    shape = (60, 60, 26)
    return EquationOfState(), (torch.rand(shape) * 35, torch.rand(shape) * 20, torch.rand(shape) * 1e3), {}


def pyhpc_turbulent_kinetic_energy() -> Loaded:
    grids = [torch.rand(40, 40, 26) for _ in range(3)]
    return TurbulentKineticEnergy(), (*grids, torch.rand(26) + 1), {}


def lennard_jones() -> Loaded:
    """A potential learnt by a tiny network."""
    return perceptron(1, 16, 16, 16, 16, 1, activation=nn.Tanh), (torch.rand(1000, 1),), {}


def nvidia_deeprecommender(items: int = 8000) -> Loaded:
    """An autoencoder over a sparse row of ratings."""
    encoder = perceptron(items, 128, 128, 256, activation=nn.SELU, last=nn.SELU)
    decoder = perceptron(256, 128, 128, items, activation=nn.SELU, last=nn.SELU)
    module = nn.Sequential(encoder, nn.Dropout(0.8), decoder)
    return module, ((torch.rand(16, items) > 0.99).float(),), {}


def basic_gnn(kind: str) -> Loaded:
    """A network of torch_geometric by its class, on 400 nodes and 4,000 edges."""
    import torch_geometric.nn

    module = getattr(torch_geometric.nn, kind)(64, 64, 2, 41)
    return module, (torch.randn(400, 64), torch.randint(0, 400, (2, 4000))), {}


def dlrm(rows: int = 2000, tables: int = 8, width: int = 32, batch: int = 64) -> Loaded:
    """DLRM with bags of three items a table, each with an offset for every row of the batch."""
    dense, bags = torch.randn(batch, 13), torch.randint(0, rows, (tables, 3 * batch))
    return ClickModel(rows, tables, width), (dense, bags, torch.arange(0, 3 * batch, 3)), {}

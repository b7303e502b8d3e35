"""Train one model on three losses that conflict, with a step that increases none of them.

    python examples/conflicting_losses.py

Each loss i has a gradient gᵢ. The plain sum of the gradients may increase a loss. Here each gᵢ is
projected by GEM so that it does not increase the other losses, and the results are added up. Every
term then has gⱼᵀw ≥ 0 for all losses j, and so has their sum. All losses have the same role.
"""

import torch
from torch import nn

import gradproj as gp


def symmetric(gradients):
    """Project each gradient against all others, and return the sum."""
    count = len(gradients)
    terms = []
    for i in range(count):
        others = gradients[[j for j in range(count) if j != i]]
        terms.append(gp.project(gradients[i], others, gp.GEM()))
    return sum(terms)


def train(combine, steps, seed=0):
    """Return the final losses and the share of steps whose direction increases a loss."""
    torch.manual_seed(seed)
    x = torch.randn(200, 10, dtype=torch.float64)
    targets = [scale * torch.tanh(x @ torch.randn(10, dtype=torch.float64)) for scale in (5, 1, 1)]
    model = nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    harmful = 0
    for _ in range(steps):
        out = model(x)
        losses = [(out[:, i] - target).square().mean() for i, target in enumerate(targets)]
        rows = []
        for loss in losses:
            parts = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            rows.append(torch.cat([part.flatten() for part in parts]))
        gradients = torch.stack(rows)
        w = combine(gradients)
        harmful += bool((gradients @ w < -1e-9 * gradients.norm() * w.norm()).any())
        with torch.no_grad():
            vector = nn.utils.parameters_to_vector(model.parameters())
            nn.utils.vector_to_parameters(vector - 0.02 * w, model.parameters())
    return [float(loss.detach()) for loss in losses], harmful / steps


def main(steps=400):
    print(f"{'':12} loss 1  loss 2  loss 3  steps that increase a loss")
    for name, combine in (("sum", lambda gradients: gradients.sum(0)), ("symmetric", symmetric)):
        losses, harmful = train(combine, steps)
        print(f"{name:12}" + "".join(f"{loss:7.3f} " for loss in losses) + f" {harmful:6.1%}")


if __name__ == "__main__":
    main()

"""The ways that PyTorch runs an MLP: the same layers, made by each of `STACKS`."""

import torch


def eager(layers, last, dtype, batch):
    """nn.Linear and ReLU as everybody writes them."""
    modules = []
    for weight, bias in layers:
        linear = torch.nn.Linear(weight.shape[1], weight.shape[0])
        linear.weight.data, linear.bias.data = weight, bias
        modules += [linear, torch.nn.ReLU()]
    modules[-1] = {"relu": torch.nn.ReLU, "sigmoid": torch.nn.Sigmoid}[last]()
    return torch.nn.Sequential(*modules).eval().to(dtype).requires_grad_(False)


def frozen(layers, last, dtype, batch):
    """The same traced, frozen and optimised for inference."""
    x = torch.zeros(batch, layers[0][0].shape[1], dtype=dtype)
    traced = torch.jit.trace(eager(layers, last, dtype, batch), x)
    return torch.jit.optimize_for_inference(torch.jit.freeze(traced))


def packed(layers, last, dtype, batch):
    """oneDNN's linear with weights packed once for this batch and a fused activation."""
    reorder = torch.ops.mkldnn._reorder_linear_weight
    ready = [(reorder(w.to(dtype).contiguous(), batch), b.to(dtype)) for w, b in layers]
    activations = ["relu"] * (len(ready) - 1) + [last]
    linear = torch.ops.mkldnn._linear_pointwise.default

    def run(x):
        for (weight, bias), activation in zip(ready, activations):
            x = linear(x, weight, bias, activation, [], "")
        return x

    return run


STACKS = {"eager": eager, "frozen": frozen, "packed": packed}

"""Many small policies trained as one: a transformers model whose layers hold a weight per policy.

A model of 0.1M parameters keeps a core busy with Python, not with arithmetic. Here M copies of one
causal language model become one model: the code that runs is transformers' own (attention, cache,
``generate``), and only the modules that hold weights are exchanged for ones whose parameters have a
leading axis of size M. The batch has M * B rows; rows ``m*B`` to ``(m+1)*B`` belong to policy m.
Policies do not share anything: the gradient of the sum of their losses is each policy's own.

::

    stacked = stack_policies(model, 24)
    stacked.generate(prompts.repeat(24, 1))  # 24 policies, one call
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding
from transformers import PreTrainedModel

from replicata.errors import UsageError


class StackedLinear(nn.Module):
    """``nn.Linear`` without bias for M policies; ``weight`` has shape (M, out, in)."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        """Map (M*B, T, in) to (M*B, T, out)."""
        policies, out, width = self.weight.shape
        rows = x.reshape(policies, -1, width)
        return torch.bmm(rows, self.weight.transpose(1, 2)).view(*x.shape[:-1], out)


class StackedEmbedding(nn.Module):
    """``nn.Embedding`` for M policies; ``weight`` has shape (M, V, d).

    It has no ``padding_idx``: where a padding token is an input whose successors count in the loss,
    its row is trained like any other.
    """

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, ids: Tensor) -> Tensor:
        """Map (M*B, T) to (M*B, T, d)."""
        policies, vocabulary, width = self.weight.shape
        offsets = torch.arange(policies, device=ids.device).view(-1, 1, 1) * vocabulary
        shifted = (ids.view(policies, -1, ids.shape[-1]) + offsets).view_as(ids)
        return embedding(shifted, self.weight.view(policies * vocabulary, width))


class StackedRMSNorm(nn.Module):
    """``LlamaRMSNorm`` for M policies; ``weight`` has shape (M, d)."""

    def __init__(self, weight: nn.Parameter, epsilon: float) -> None:
        super().__init__()
        self.weight, self.epsilon = weight, epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (M*B, T, d) over d."""
        normed = nn.functional.rms_norm(x, x.shape[-1:], eps=self.epsilon)
        grouped = normed.view(self.weight.shape[0], -1, x.shape[-1])
        return (grouped * self.weight[:, None]).view_as(x)


def stack_policies(model: PreTrainedModel, policies: int) -> PreTrainedModel:
    """Turn a model, in place, into ``policies`` independent copies of itself.

    Parameters
    ----------
    model
        A Llama-like causal language model: linear layers without bias, embeddings, RMS norms.
    policies
        How many, M >= 1.

    Returns
    -------
    PreTrainedModel
        The same object; its parameters have a leading axis M and start out equal along it.

    Raises
    ------
    UsageError
        If the model has a parameter in a module of another kind.
    """
    if policies < 1:
        raise UsageError(f"policies is {policies}, expected 1 or more")
    made: dict[int, nn.Parameter] = {}  # by the identity of the old one, so that tied stay tied

    def stacked(weight: nn.Parameter) -> nn.Parameter:
        if id(weight) not in made:
            copies = weight.detach().repeat(policies, *[1] * weight.ndim)
            made[id(weight)] = nn.Parameter(copies)
        return made[id(weight)]

    for name, module in list(model.named_modules()):
        if not list(module.parameters(recurse=False)):
            continue
        if isinstance(module, nn.Linear) and module.bias is None:
            new: nn.Module = StackedLinear(stacked(module.weight))
        elif isinstance(module, nn.Embedding):
            new = StackedEmbedding(stacked(module.weight))
        elif type(module).__name__.endswith("RMSNorm"):
            new = StackedRMSNorm(stacked(module.weight), module.variance_epsilon)
        else:
            raise UsageError(
                f"stack_policies: {name} is a {type(module).__name__}, expected a linear layer "
                "without bias, an embedding or an RMS norm"
            )
        model.set_submodule(name, new)
    return model


def policy_state(model: PreTrainedModel, policy: int) -> dict[str, Tensor]:
    """Return one policy's weights under the names of the plain model."""
    return {name: tensor[policy].clone() for name, tensor in model.state_dict().items()}


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Scale each policy's gradient to at most ``max_norm``; return the norms before, shape (M,).

    ``torch.nn.utils.clip_grad_norm_`` would take the policies for one and let a large gradient of
    one policy shrink all others.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    squares = [g.flatten(1).square().sum(1) for g in gradients]
    norms = torch.stack(squares).sum(0).sqrt()
    scale = (max_norm / (norms + 1e-6)).clamp(max=1.0)
    for g in gradients:
        g.mul_(scale.view(-1, *[1] * (g.ndim - 1)))
    return norms

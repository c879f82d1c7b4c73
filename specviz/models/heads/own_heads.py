"""Our own feature drafters as heads in the sense of published ones, to be inspected and written in others' layouts."""

from __future__ import annotations

from torch import Tensor

from specviz.drafting.networks.feature_head import FeatureHead, HeadConfig, HeadConventions
from specviz.drafting.networks.feature_net import FeatureNet
from specviz.errors import ModelUnavailable


def as_head(net: FeatureNet, dialect: str) -> FeatureHead:
    """The same weights by their published names; the scale of the projection's inputs moves into its matrix.

    Raises ModelUnavailable for a network that adds a learned vector a step, for which no published layout has a place.
    """
    config = net.config
    if config.steps:
        raise ModelUnavailable(f"{dialect} learns a vector for each step it feeds itself, which no published layout has.")
    how = HeadConventions(taps=config.taps, head_norm=config.wide, theta=config.theta, rates=config.rates, eps=config.eps)
    sizes = HeadConfig(
        vocab_size=config.vocab_size,
        hidden=config.hidden,
        target_hidden=config.hidden,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_size=config.head_size,
        inner=config.inner,
        layers=1,
        wide=config.wide,
        how=how,
        bias=config.bias,
    )
    tensors: dict[str, Tensor] = {_published(name): value.detach() for name, value in net.state_dict().items()}
    tensors["fc.weight"] = tensors["fc.weight"] * tensors.pop("fc.scale")
    assert set(tensors) == set(sizes.shapes()), "a network has what its configuration names"
    return FeatureHead(sizes, tensors, net.embedding, net.head, net.draft_ids, dialect)


def _published(name: str) -> str:
    return name.replace("layer.", "layers.0.", 1) if name.startswith("layer.") else name

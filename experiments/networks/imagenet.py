"""ResNet18 in the ImageNet layout, as used for Tiny ImageNet: always trained from scratch."""

from gradproj.experiments.common.torchvision import import_torchvision
from gradproj.experiments.networks.network import Network, make_head
from gradproj.experiments.networks.resnet import resnet

__all__ = ["imagenet_resnet18"]


def imagenet_resnet18(
    outputs: int, input_shape: tuple[int, int, int], nf: int = 64, head: str = "linear"
) -> Network:
    """ResNet18 of torchvision, without pretrained weights; narrower ones in the same layout.

    Parameters
    ----------
    outputs : int
    input_shape : tuple of int
        (C, H, W).
    nf : int
        Channels of the first stage. torchvision supports only 64, and only color images. Other
        shapes come from `resnet`, which has the same layout.
    head : "linear" or "cosine"

    Examples
    --------
    >>> sum(p.numel() for p in imagenet_resnet18(200, (3, 64, 64)).parameters())
    11279112
    """
    if nf != 64 or input_shape[0] != 3:
        return resnet(outputs, input_shape, nf=nf, stem="imagenet", head=head)
    model = import_torchvision("models").resnet18(weights=None)
    trunk = {name: child for name, child in model.named_children() if name != "fc"}
    return Network(trunk, make_head(head, 512, outputs))

"""Networks: published sizes, seeded weights, features and heads."""

import pytest
import torch
from torch import nn

from gradproj.experiments import networks
from gradproj.experiments.common.torchvision import import_torchvision

MNIST, CIFAR, TINY = (1, 28, 28), (3, 32, 32), (3, 64, 64)


def sizes(net):
    return [p.numel() for p in net.parameters()]


@pytest.mark.parametrize(
    ("name", "outputs", "shape", "options", "parameters", "tensors"),
    [
        ("mlp", 10, MNIST, {}, 89_610, 6),
        ("mlp", 10, MNIST, {"hidden": (5, 5)}, 4_015, 6),
        ("resnet18-small", 100, CIFAR, {}, 1_109_240, 62),
        ("resnet18-small", 10, CIFAR, {}, 1_094_750, 62),
        ("resnet18-small", 5, CIFAR, {"nf": 1}, 2_946, 62),
        ("resnet18", 200, TINY, {}, 11_279_112, 62),
        ("resnet18", 10, TINY, {"nf": 4}, 45_102, 62),
        ("resnet32", 100, CIFAR, {}, 470_004, 95),
        ("resnet32", 100, CIFAR, {"shortcut": "conv"}, 472_756, 101),
        ("wrn-16-2", 100, CIFAR, {}, 703_284, None),
        ("resnet34-cifar", 100, CIFAR, {}, 21_328_292, 110),
    ],
)
def test_sizes_are_the_published_ones(name, outputs, shape, options, parameters, tensors):
    found = sizes(networks.build(name, outputs, shape, **options))
    assert sum(found) == parameters
    assert tensors is None or len(found) == tensors


def test_cifar_resnet18_is_the_small_one_at_full_width():
    wide = sizes(networks.build("resnet18-small", 100, CIFAR, nf=64))
    assert sizes(networks.build("resnet18-cifar", 100, CIFAR)) == wide


def test_groups_of_the_small_resnet():
    net = networks.build("resnet18-small", 100, CIFAR)
    children = [sum(sizes(c)) for c in net.children() if sizes(c)]
    assert children == [540, 40, 14_560, 51_600, 205_600, 820_800, 16_100]
    tensors = sizes(net)
    assert [sum(tensors[i : i + 5]) for i in range(0, 62, 5)] == [
        4200, 7260, 3680, 21720, 15320, 14560, 86640, 61040, 57920, 346080, 243680, 231040, 16100,
    ]  # fmt: skip
    assert not any(m.bias is not None for m in net.modules() if isinstance(m, nn.Conv2d))


def test_mlp_starts_from_xavier_weights_and_zero_biases():
    net = networks.build("mlp", 10, MNIST, seed=0)
    for layer, bound in ((net.fc1, (6 / 884) ** 0.5), (net.fc2, (6 / 200) ** 0.5)):
        peak = float(layer.weight.detach().abs().max())
        assert 0.99 * bound < peak <= bound
        assert not layer.bias.any()
    x = torch.rand(3, *MNIST)
    by_hand = (x.flatten(1) @ net.fc1.weight.T).relu()
    by_hand = (by_hand @ net.fc2.weight.T).relu() @ net.head.weight.T
    torch.testing.assert_close(net(x), by_hand)


def test_imagenet_convolutions_are_normal_with_fan_out():
    conv = networks.build("resnet18", 10, TINY).layer4[1].conv2.weight.detach()
    assert float(conv.std()) == pytest.approx((2 / (9 * 512)) ** 0.5, rel=0.01)


def test_our_imagenet_layout_equals_torchvisions():
    reference = import_torchvision("models").resnet18(weights=None, num_classes=7)
    ours = networks.build("resnet18-cifar", 7, TINY, stem="imagenet")
    state = {k.replace("fc.", "head."): v for k, v in reference.state_dict().items()}
    ours.load_state_dict(state)
    x = torch.rand(2, *TINY, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours(x), reference(x))


def test_pad_shortcut_subsamples_and_adds_zero_channels():
    from gradproj.experiments.networks.resnet import BasicBlock

    block = BasicBlock(2, 4, stride=2, shortcut="pad").eval()
    nn.init.zeros_(block.bn2.weight)
    x = torch.rand(1, 2, 4, 4)
    expected = torch.cat([x[:, :, ::2, ::2], torch.zeros(1, 2, 2, 2)], dim=1)
    assert torch.equal(block(x), expected)


def test_the_very_last_relu_can_be_left_out():
    def stages(last_relu):
        net = networks.build("resnet32", 10, CIFAR, last_relu=last_relu)
        found = []
        for stage in (net.layer2, net.layer3):
            stage.register_forward_hook(lambda _, __, output: found.append(output))
        net(torch.rand(4, *CIFAR, generator=torch.Generator().manual_seed(0)))
        return found

    assert all((out >= 0).all() for out in stages(True))
    inner, last = stages(False)
    assert (inner >= 0).all()
    assert (last < 0).any()


@pytest.mark.parametrize("name", sorted(networks.NETWORKS))
@pytest.mark.parametrize("head", ["linear", "cosine"])
def test_scores_are_the_head_of_the_features(name, head):
    options = {"nf": 4} if "resnet" in name else {}
    net = networks.build(name, 6, CIFAR, head=head, **options).eval()
    x = torch.rand(2, *CIFAR)
    features = net.features(x)
    assert features.shape == (2, net.head.in_features)
    assert torch.equal(net(x), net.head(features))
    assert net(x).shape == (2, 6)


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 64, 64)])
def test_small_resnet_takes_any_image(shape):
    assert networks.build("resnet18-small", 3, shape, nf=2)(torch.rand(2, *shape)).shape == (2, 3)


def test_grey_images_in_the_imagenet_layout():
    assert networks.build("resnet18", 3, MNIST)(torch.rand(2, *MNIST)).shape == (2, 3)


@pytest.mark.parametrize("name", ["mlp", "resnet18-small", "resnet18"])
def test_weights_follow_from_the_seed_alone(name):
    options = {} if name == "mlp" else {"nf": 2}
    torch.manual_seed(11)
    before = torch.get_rng_state()
    one = networks.build(name, 4, CIFAR, seed=3, **options).state_dict()
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(5)
    two = networks.build(name, 4, CIFAR, seed=3, **options).state_dict()
    other = networks.build(name, 4, CIFAR, seed=4, **options).state_dict()
    assert all(torch.equal(one[k], two[k]) for k in one)
    assert not torch.equal(one["head.weight"], other["head.weight"])


def test_a_generator_gives_a_new_network_each_time():
    generator = torch.Generator().manual_seed(0)
    first, second = (networks.build("mlp", 2, MNIST, seed=generator) for _ in range(2))
    again = networks.build("mlp", 2, MNIST, seed=torch.Generator().manual_seed(0))
    assert torch.equal(first.fc1.weight, again.fc1.weight)
    assert not torch.equal(first.fc1.weight, second.fc1.weight)


def test_cosine_head_by_hand():
    head = networks.CosineHead(2, 2)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[2.0, 0.0], [3.0, 3.0]]))
        head.scale.fill_(10.0)
    torch.testing.assert_close(head(torch.tensor([[5.0, 0.0]])), torch.tensor([[10.0, 50**0.5]]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (("resnet18-smal", 10, CIFAR), "network 'resnet18-smal' .* did you mean 'resnet18-small'"),
        (("mlp", 0, CIFAR), "outputs=0 must be at least 1"),
    ],
)
def test_wrong_names_and_numbers(call, message):
    with pytest.raises(ValueError, match=message):
        networks.build(*call)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mlp", {"hiden": (3,)}, "option of mlp 'hiden' is not known; did you mean 'hidden'"),
        ("mlp", {"head": "cosin"}, "head='cosin' is not known; use 'linear' or 'cosine'"),
        ("resnet32", {"shortcut": "none"}, "shortcut='none' is not known"),
        ("resnet32", {"stem": "huge"}, "stem='huge' is not known"),
        ("wrn-16-2", {"depth": 15}, "depth=15 must be 4 more than a multiple of 6"),
    ],
)
def test_wrong_options(name, options, message):
    with pytest.raises(ValueError, match=message):
        networks.build(name, 10, CIFAR, **options)


@pytest.mark.parametrize(("nf", "last"), [(20, True), (4, False)])
def test_convolutions_are_stored_channels_last_unless_narrow(nf, last):
    net = networks.build("resnet18-small", 10, CIFAR, nf=nf)
    weight = net.get_submodule("layer2")[0].conv1.weight
    assert weight.is_contiguous(memory_format=torch.channels_last) == last
    plain = networks.build("resnet18-small", 10, CIFAR, nf=nf).to(
        memory_format=torch.contiguous_format
    )
    x = torch.randn(5, *CIFAR, generator=torch.Generator().manual_seed(0))
    for network in (net, plain):
        network(x).square().sum().backward()
    for ours, theirs in zip(net.parameters(), plain.parameters(), strict=True):
        assert ours.grad.stride() == ours.stride()
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-4)

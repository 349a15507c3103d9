"""Images: torchvision, timm, kornia, monai, segmentation-models, and what trains on them."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.ecosystem_programs.program import Family

FAMILY = Family()


def _images(size: int = 32, batch: int = 2) -> tuple[torch.Tensor]:
    return (torch.rand(batch, 3, size, size),)


@FAMILY.training("torchvision")
def mobilenet_in_train_mode() -> Any:
    from torchvision.models import mobilenet_v3_small

    return mobilenet_v3_small(num_classes=10).train(), lambda: _images(64, 4)


@FAMILY.inference("torchvision")
def swin_classifies() -> Any:
    from torchvision.models.swin_transformer import SwinTransformer

    model = SwinTransformer(
        patch_size=[4, 4], embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=[4, 4],
        num_classes=10,
    )  # fmt: skip
    return model.eval(), lambda: _images(64)


@FAMILY.inference("torchvision")
def augmentation_of_a_batch() -> Any:
    from torchvision.transforms import v2

    transforms = v2.Compose(
        [
            v2.Resize((40, 40), antialias=True),
            v2.CenterCrop(32),
            v2.ToDtype(torch.float32),
            v2.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
        ]
    )
    return lambda images: transforms(images), lambda: _images(48)


@FAMILY.inference("torchvision")
def random_crops_and_flips() -> Any:
    from torchvision.transforms import v2

    transforms = v2.Compose(
        [v2.RandomCrop(24), v2.RandomHorizontalFlip(), v2.ColorJitter(0.2, 0.2, 0.2)]
    )
    return lambda images: transforms(images), _images


@FAMILY.inference("torchvision")
def boxes_and_their_overlaps() -> Any:
    from torchvision.ops import box_convert, box_iou, clip_boxes_to_image, generalized_box_iou

    def overlaps(a: torch.Tensor, b: torch.Tensor) -> Any:
        a = clip_boxes_to_image(box_convert(a, "cxcywh", "xyxy"), (64, 64))
        b = box_convert(b, "cxcywh", "xyxy")
        best, index = box_iou(a, b).max(dim=1)
        return best, index, generalized_box_iou(a, b)

    return overlaps, lambda: (torch.rand(20, 4) * 30 + 1, torch.rand(12, 4) * 30 + 1)


@FAMILY.inference("torchvision")
def feature_pyramid() -> Any:
    from torchvision.models import resnet18
    from torchvision.models._utils import IntermediateLayerGetter
    from torchvision.ops import FeaturePyramidNetwork

    layers = {"layer1": "0", "layer2": "1", "layer3": "2"}
    body = IntermediateLayerGetter(resnet18(num_classes=10), layers).eval()
    pyramid = FeaturePyramidNetwork([64, 128, 256], 32).eval()
    return lambda images: pyramid(body(images)), lambda: _images(64)


@FAMILY.inference("timm")
def convnext_classifies() -> Any:
    import timm

    model = timm.create_model("convnext_atto", num_classes=10, depths=(1, 1, 2, 1))
    return model.eval(), lambda: _images(64)


@FAMILY.training("timm")
def vision_transformer_with_mixup_and_soft_labels() -> Any:
    from timm.data import Mixup
    from timm.loss import SoftTargetCrossEntropy
    from timm.models import VisionTransformer

    model = VisionTransformer(
        img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3, num_classes=10
    ).train()
    mixup, loss = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=10), SoftTargetCrossEntropy()

    def run(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        images, targets = mixup(images, labels)
        return loss(model(images), targets)

    return run, lambda: (*_images(32, 4), torch.randint(0, 10, (4,))), (model,)


@FAMILY.training("timm")
def efficientnet_with_drop_path() -> Any:
    import timm

    model = timm.create_model("efficientnet_lite0", num_classes=10, drop_path_rate=0.2).train()
    for module in model.modules():  # fine-tuning: statistics of so few images say nothing, and
        if isinstance(module, torch.nn.BatchNorm2d):  # gradients would be off by 5 % in eager mode
            module.eval()
    return model, lambda: _images(48, 2)


@FAMILY.inference("timm")
def features_of_a_backbone() -> Any:
    import timm

    model = timm.create_model("resnet10t", features_only=True, pretrained=False)
    return model.eval(), lambda: _images(64)


@FAMILY.step("timm")
def model_average_after_a_step() -> Any:
    from timm.optim import create_optimizer_v2
    from timm.utils import ModelEmaV3

    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
    optimizer = create_optimizer_v2(net, opt="lamb", lr=1e-2, weight_decay=0.05)
    average = ModelEmaV3(net, decay=0.9)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        average.update(net)
        return loss.detach()

    return step, lambda: (torch.randn(8, 16), torch.randn(8, 4)), (net, average)


@FAMILY.inference("kornia")
def edges_and_blur() -> Any:
    from kornia.filters import canny, gaussian_blur2d, sobel

    def run(images: torch.Tensor) -> Any:
        blurred = gaussian_blur2d(images, (5, 5), (1.5, 1.5))
        return sobel(blurred), canny(blurred)[0]

    return run, _images


@FAMILY.inference("kornia")
def colour_spaces_there_and_back() -> Any:
    from kornia.color import hsv_to_rgb, lab_to_rgb, rgb_to_hsv, rgb_to_lab

    def run(images: torch.Tensor) -> Any:
        return hsv_to_rgb(rgb_to_hsv(images)), lab_to_rgb(rgb_to_lab(images))

    return run, _images


@FAMILY.training("kornia")
def homography_warps_and_has_a_gradient() -> Any:
    from kornia.geometry.transform import warp_perspective

    identity = torch.eye(3)

    def warp(images: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        return warp_perspective(images, identity + delta, dsize=(24, 24))

    return warp, lambda: (*_images(), (torch.randn(2, 3, 3) * 1e-3).requires_grad_())


@FAMILY.inference("kornia", rtol=1e-2, atol=1e-3)
def augmentation_sequence() -> Any:
    from kornia.augmentation import (
        AugmentationSequential,
        ColorJiggle,
        RandomAffine,
        RandomHorizontalFlip,
    )

    augment = AugmentationSequential(
        RandomHorizontalFlip(p=0.5),
        RandomAffine(degrees=15.0, p=0.5),
        ColorJiggle(0.1, 0.1, 0.1, 0.1, p=0.5),
        data_keys=["input", "mask"],
    )
    return lambda images, masks: augment(images, masks), lambda: (
        *_images(32, 4),
        torch.rand(4, 1, 32, 32),
    )


@FAMILY.inference("kornia")
def rotations_as_quaternions() -> Any:
    from kornia.geometry.conversions import (
        axis_angle_to_rotation_matrix,
        quaternion_to_rotation_matrix,
        rotation_matrix_to_quaternion,
    )

    def run(vectors: torch.Tensor) -> Any:
        matrices = axis_angle_to_rotation_matrix(vectors)
        quaternions = rotation_matrix_to_quaternion(matrices)
        return quaternions, quaternion_to_rotation_matrix(quaternions) - matrices

    return run, lambda: (torch.randn(32, 3),)


@FAMILY.training("kornia")
def structural_similarity_and_focal_loss() -> Any:
    from kornia.losses import focal_loss, ssim_loss, total_variation

    def loss(image: torch.Tensor, other: torch.Tensor, labels: torch.Tensor) -> Any:
        return (
            ssim_loss(image, other, 5),
            focal_loss(image, labels, alpha=0.5, reduction="mean"),
            total_variation(image).mean(),
        )

    return loss, lambda: (
        torch.rand(2, 3, 24, 24, requires_grad=True),
        torch.rand(2, 3, 24, 24),
        torch.randint(0, 3, (2, 24, 24)),
    )


@FAMILY.training("monai")
def unet_and_dice_loss() -> Any:
    from monai.losses import DiceCELoss
    from monai.networks.nets import UNet

    net = UNet(
        spatial_dims=2, in_channels=1, out_channels=2, channels=(8, 16, 32), strides=(2, 2),
        num_res_units=1,
    ).train()  # fmt: skip
    loss = DiceCELoss(to_onehot_y=True, softmax=True)

    def run(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return loss(net(images), labels)

    return run, lambda: (torch.rand(2, 1, 32, 32), torch.randint(0, 2, (2, 1, 32, 32))), (net,)


@FAMILY.inference("monai")
def sliding_window_over_a_volume() -> Any:
    from monai.inferers import sliding_window_inference
    from monai.networks.nets import BasicUNet

    net = BasicUNet(3, in_channels=1, out_channels=2, features=(4, 4, 8, 8, 16, 4)).eval()

    def segment(volume: torch.Tensor) -> Any:
        return sliding_window_inference(volume, (32, 32, 32), 2, net, overlap=0.25)

    return segment, lambda: (torch.rand(1, 1, 48, 48, 32),)


@FAMILY.inference("monai")
def metrics_of_a_segmentation() -> Any:
    from monai.metrics import compute_dice, compute_iou
    from monai.networks.utils import one_hot

    def metrics(logits: torch.Tensor, labels: torch.Tensor) -> Any:
        predicted = one_hot(logits.argmax(1, keepdim=True), num_classes=3)
        truth = one_hot(labels, num_classes=3)
        return compute_dice(predicted, truth), compute_iou(predicted, truth)

    return metrics, lambda: (torch.randn(2, 3, 16, 16), torch.randint(0, 3, (2, 1, 16, 16)))


@FAMILY.inference("monai")
def vision_transformer_of_a_volume() -> Any:
    from monai.networks.nets import ViT

    net = ViT(
        in_channels=1, img_size=(16, 16, 16), patch_size=(8, 8, 8), hidden_size=32, mlp_dim=64,
        num_layers=2, num_heads=2, classification=True, num_classes=3,
    )  # fmt: skip
    return net.eval(), lambda: (torch.rand(2, 1, 16, 16, 16),)


@FAMILY.training("segmentation_models_pytorch")
def unet_with_a_mobile_encoder() -> Any:
    import segmentation_models_pytorch as smp

    net = smp.Unet("mobilenet_v2", encoder_weights=None, classes=3,
                   decoder_channels=(32, 16, 8, 8, 4))  # fmt: skip
    loss = smp.losses.DiceLoss("multiclass")

    def run(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return loss(net(images), labels)

    return run, lambda: (*_images(32), torch.randint(0, 3, (2, 32, 32))), (net,)


@FAMILY.inference("segmentation_models_pytorch")
def deeplab_predicts() -> Any:
    import segmentation_models_pytorch as smp

    net = smp.DeepLabV3Plus("mobilenet_v2", encoder_weights=None, classes=2).eval()
    return lambda images: net(images).softmax(1), lambda: _images(64)


@FAMILY.inference("segmentation_models_pytorch")
def scores_from_a_confusion_matrix() -> Any:
    from segmentation_models_pytorch.metrics import f1_score, get_stats, iou_score

    def scores(output: torch.Tensor, target: torch.Tensor) -> Any:
        tp, fp, fn, tn = get_stats(output, target, mode="multilabel", threshold=0.5)
        return iou_score(tp, fp, fn, tn, "micro"), f1_score(tp, fp, fn, tn, "macro")

    return scores, lambda: (torch.rand(2, 3, 16, 16), torch.randint(0, 2, (2, 3, 16, 16)))


@FAMILY.inference("torch-pruning")
def pruned_network_runs() -> Any:
    import torch_pruning as tp
    from torchvision.models import resnet18

    net = resnet18(num_classes=10).eval()
    pruner = tp.pruner.BasePruner(
        net, torch.rand(1, 3, 32, 32), importance=tp.importance.MagnitudeImportance(p=2),
        pruning_ratio=0.5, ignored_layers=[net.fc],
    )  # fmt: skip
    pruner.step()
    return net, _images

"""TIMM's models at small image sizes: convolutional networks whole, transformers cut to a few blocks.

Place: the ``timm`` family of the suite. Random weights, seeded by ``Entry.load``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from mixbackend.benchmarks.models.entry import Entry, Loaded
from mixbackend.benchmarks.models.torchvision_shim import enable_torchvision

Size = tuple[int, dict[str, Any]]
"""Image size in pixels, and what ``timm.create_model`` is told besides the name."""

BATCH = 2

_RENAMED = {"gluon_xception65": "xception65", "jx_nest_base": "nest_base_jx"}
"""Models that left timm under their old name, and their nearest relative there."""


def _sized(size: int, **options: Any) -> Size:
    return size, {"img_size": size, **options}


ANNOUNCED: Mapping[str, Size] = {
    "adv_inception_v3": (160, {}),
    "beit_base_patch16_224": _sized(96, depth=4),
    "botnet26t_256": (256, {}),
    "cait_m36_384": _sized(64, depth=3),
    "coat_lite_mini": _sized(64),
    "convit_base": _sized(96, depth=4, local_up_to_layer=3),
    "convmixer_768_32": (70, {}),
    "convnext_base": (96, {"depths": (2, 2, 4, 2)}),
    "crossvit_9_240": (240, {}),
    "cspdarknet53": (128, {}),
    "deit_base_distilled_patch16_224": _sized(96, depth=4),
    "dla102": (96, {}),
    "dm_nfnet_f0": (96, {}),
    "dpn107": (96, {}),
    "eca_botnext26ts_256": (256, {}),
    "eca_halonext26ts": (256, {}),
    "ese_vovnet19b_dw": (128, {}),
    "fbnetc_100": (128, {}),
    "fbnetv3_b": (128, {}),
    "gernet_l": (128, {}),
    "ghostnet_100": (128, {}),
    "gluon_inception_v3": (160, {}),
    "gluon_xception65": (128, {}),
    "gmixer_24_224": _sized(96),
    "gmlp_s16_224": _sized(96),
    "hrnet_w18": (96, {}),
    "inception_v3": (160, {}),
    "jx_nest_base": _sized(96),
    "lcnet_050": (128, {}),
    "levit_128": (224, {}),
    "mixer_b16_224": _sized(96),
    "mixnet_l": (128, {}),
    "mnasnet_100": (128, {}),
    "mobilenetv2_100": (128, {}),
    "mobilenetv3_large_100": (128, {}),
    "mobilevit_s": (128, {}),
    "nfnet_l0": (128, {}),
    "pit_b_224": _sized(96, depth=[1, 2, 2]),
    "pnasnet5large": (96, {}),
    "poolformer_m36": (96, {}),
    "regnety_002": (128, {}),
    "repvgg_a2": (128, {}),
    "res2net101_26w_4s": (96, {}),
    "res2net50_14w_8s": (128, {}),
    "res2next50": (128, {}),
    "resmlp_12_224": _sized(96),
    "resnest101e": (96, {}),
    "rexnet_100": (128, {}),
    "sebotnet33ts_256": (256, {}),
    "selecsls42b": (128, {}),
    "spnasnet_100": (128, {}),
    "swin_base_patch4_window7_224": _sized(112, depths=(2, 2, 4, 2)),
    "swsl_resnext101_32x16d": (64, {"layers": (1, 2, 3, 1)}),
    "tf_efficientnet_b0": (128, {}),
    "tf_mixnet_l": (128, {}),
    "tinynet_a": (128, {}),
    "tnt_s_patch16_224": _sized(96, depth=4),
    "twins_pcpvt_base": _sized(96, depths=(2, 2, 4, 2)),
    "visformer_small": _sized(96),
    "vit_base_patch16_224": _sized(96, depth=4),
    "volo_d1_224": _sized(96),
    "xcit_large_24_p8_224": _sized(64, depth=3),
}

ADDED: Mapping[str, Size] = {
    "convnextv2_nano": (96, {}),
    "deit_tiny_patch16_224": _sized(96, depth=6),
    "vit_base_patch16_siglip_256": _sized(96, depth=4),
    "vit_small_patch14_dinov2": _sized(98, depth=4),
    "hiera_tiny_224": (224, {}),
    "mobilenetv4_conv_small": (128, {}),
    "efficientvit_b0": (128, {}),
}


def build(name: str, size: int, options: Mapping[str, Any]) -> Loaded:
    """A timm model by its name, and one batch of random images."""
    enable_torchvision()
    import timm

    module = timm.create_model(_RENAMED.get(name, name), pretrained=False, **options)
    return module, (torch.randn(BATCH, 3, size, size),), {}


def entries() -> tuple[Entry, ...]:
    """The family, announced models first."""
    announced = [Entry(name, "timm", partial(build, name, *size), "timm") for name, size in ANNOUNCED.items()]
    added = [Entry(name, "timm", partial(build, name, *size), "timm", "new") for name, size in ADDED.items()]
    return (*announced, *added)

"""TorchBench: names as in upstream's suite, models from libraries where a library has them, else re-stated here.

Place: the ``torchbench`` family of the suite. What upstream keeps in repositories of their own is written anew in plain
torch (``text``, ``vision``, ``audio``, ``science``): same kinds of layers, smaller.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from mixbackend.benchmarks.models import huggingface as hf
from mixbackend.benchmarks.models import timm
from mixbackend.benchmarks.models.entry import Entry, Loaded
from mixbackend.benchmarks.models.torchbench import audio, science, text, vision

Make = Callable[[], Loaded]

ADDED = frozenset(
    [
        *"basic_gnn_gcn basic_gnn_gin basic_gnn_sage diffusion_transformer doctr_reco_predictor".split(),
        *"hf_Roberta_base hf_Whisper llama nanogpt sam stable_diffusion_text_encoder".split(),
    ]
)
"""Entries that joined upstream's suite after the announcement."""

UNTRAINED = frozenset({"pyhpc_equation_of_state", "pyhpc_turbulent_kinetic_energy"})

BIG_BIRD: hf.Settings = {
    **hf.BERT,
    "block_size": 8,
    "num_random_blocks": 2,
    "attention_type": "block_sparse",
    "max_position_embeddings": 256,
}
REFORMER: hf.Settings = {
    "hidden_size": 128,
    "num_attention_heads": 4,
    "attention_head_size": 32,
    "feed_forward_size": 256,
    "attn_layers": ["local", "lsh"],
    "vocab_size": hf.VOCABULARY,
    "axial_pos_shape": [8, 16],
    "axial_pos_embds_dim": [64, 64],
    "local_attn_chunk_length": 32,
    "lsh_attn_chunk_length": 32,
    "num_buckets": 8,
    "is_decoder": False,
    "max_position_embeddings": 128,
    "hash_seed": 0,
}
SAM: hf.Settings = {
    "vision_config": {
        "hidden_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 256,
        "patch_size": 16,
        "output_channels": 64,
        "mlp_dim": 192,
        "window_size": 4,
        "global_attn_indexes": [1],
        "num_pos_feats": 32,
    },
    "prompt_encoder_config": {"hidden_size": 64, "image_size": 256, "patch_size": 16},
    "mask_decoder_config": {"hidden_size": 64, "mlp_dim": 128, "num_attention_heads": 4, "iou_head_hidden_dim": 64},
}


def _sam_inputs(_: Any) -> dict[str, torch.Tensor]:
    return {
        "pixel_values": torch.randn(1, 3, 256, 256),
        "input_points": torch.rand(1, 1, 2, 2) * 256,
        "input_labels": torch.ones(1, 1, 2, dtype=torch.long),
    }


def _clip_inputs(_: Any) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(3, hf.VOCABULARY, (2, 77))}


def _torchvision() -> dict[str, Make]:
    sizes = {"resnet152": 96, "vgg16": 64}
    names = "resnet18 resnet50 resnet152 vgg16 mobilenet_v2 mnasnet1_0 densenet121 alexnet".split()
    names += "mobilenet_v3_large resnext50_32x4d shufflenet_v2_x1_0 squeezenet1_1".split()
    return {name: partial(vision.torchvision_model, name, sizes.get(name, 128)) for name in names}


def _transformers() -> dict[str, Make]:
    return {
        "hf_Bert": partial(hf.build, "BertForMaskedLM", {**hf.BERT, "num_hidden_layers": 4}),
        "hf_GPT2": partial(hf.build, "GPT2LMHeadModel", {**hf.GPT2, "n_layer": 4}),
        "hf_Longformer": partial(hf.build, "LongformerForMaskedLM", hf.LONGFORMER),
        "hf_Roberta_base": partial(hf.build, "RobertaForMaskedLM", {**hf.BERT, "pad_token_id": 1}),
        "hf_T5": partial(hf.build, "T5ForConditionalGeneration", hf.T5),
        "hf_T5_large": partial(hf.build, "T5ForConditionalGeneration", {**hf.T5, "num_layers": 3, "d_model": 512}),
        "hf_BigBird": partial(hf.build, "BigBirdForMaskedLM", BIG_BIRD),
        "hf_Reformer": partial(hf.build, "ReformerForMaskedLM", REFORMER),
        "hf_Whisper": partial(hf.build, "WhisperForConditionalGeneration", hf.WHISPER, hf.whisper_inputs),
        "sam": partial(hf.build, "SamModel", SAM, _sam_inputs),
        "stable_diffusion_text_encoder": partial(
            hf.build, "CLIPTextModel", {**hf.BERT, "eos_token_id": 2}, _clip_inputs
        ),
    }


def _timm() -> dict[str, Make]:
    return {
        "timm_efficientnet": partial(timm.build, "mixnet_m", 128, {}),
        "timm_regnet": partial(timm.build, "regnetx_120", 96, {}),
        "timm_vision_transformer": partial(timm.build, "vit_small_patch16_224", 96, {"img_size": 96, "depth": 6}),
        "timm_vovnet": partial(timm.build, "vovnet39a", 96, {}),
        "timm_vision_transformer_large": partial(timm.build, "vit_giant_patch14_224", 98, {"img_size": 98, "depth": 2}),
    }


def _group_norm(groups: int) -> Callable[[int], nn.Module]:
    return lambda channels: nn.GroupNorm(min(groups, channels), channels)


def _own() -> dict[str, Make]:
    return {
        "BERT_pytorch": text.bert_pytorch,
        "attention_is_all_you_need_pytorch": text.attention_is_all_you_need,
        "dcgan": vision.dcgan,
        "demucs": audio.demucs,
        "diffusion_transformer": vision.diffusion_transformer,
        "dlrm": science.dlrm,
        "drq": science.drq,
        "doctr_reco_predictor": vision.doctr_reco_predictor,
        "functorch_dp_cifar10": partial(vision.small_resnet, _group_norm(32)),
        "opacus_cifar10": partial(vision.small_resnet, _group_norm(8), width=16),
        "maml_omniglot": vision.maml_omniglot,
        "phlippe_resnet": partial(vision.small_resnet, nn.BatchNorm2d),
        "lennard_jones": science.lennard_jones,
        "llama": text.llama,
        "nanogpt": text.nanogpt,
        "moco": vision.moco,
        "nvidia_deeprecommender": science.nvidia_deeprecommender,
        "pytorch_CycleGAN_and_pix2pix": vision.image_translator,
        "pytorch_unet": vision.pytorch_unet,
        "soft_actor_critic": science.soft_actor_critic,
        "speech_transformer": audio.speech_transformer,
        "tacotron2": audio.tacotron2,
        "tts_angular": audio.tts_angular,
        "yolov3": vision.yolov3,
        "pyhpc_equation_of_state": science.pyhpc_equation_of_state,
        "pyhpc_turbulent_kinetic_energy": science.pyhpc_turbulent_kinetic_energy,
    }


def entries() -> tuple[Entry, ...]:
    """The family: models of libraries first, then our own."""
    groups: dict[str, dict[str, Make]] = {
        "torchvision": _torchvision(),
        "transformers": _transformers(),
        "timm": _timm(),
        "torch_geometric": {
            f"basic_gnn_{name}": partial(science.basic_gnn, kind)
            for name, kind in (("gcn", "GCN"), ("gin", "GIN"), ("sage", "GraphSAGE"))
        },
        "own": _own(),
    }
    return tuple(
        Entry(name, "torchbench", make, origin, "new" if name in ADDED else "2.0", name not in UNTRAINED)
        for origin, group in groups.items()
        for name, make in group.items()
    )

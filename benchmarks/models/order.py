"""The suite's models by the size of their graphs, for runs that end when their time is over.

Place: beside ``models()``, whose order is by family. Size: aten calls of inference, forward and backward together, as
captured on the processor with the suite's package versions; models that bring the least to compile come first.
"""

from __future__ import annotations

from collections.abc import Iterable

from mixbackend.benchmarks.models.entry import Entry

SMALL_FIRST = tuple(
    """
    tts_angular pyhpc_equation_of_state demucs tacotron2 maml_omniglot doctr_reco_predictor lennard_jones
    nvidia_deeprecommender basic_gnn_sage dcgan functorch_dp_cifar10 opacus_cifar10 phlippe_resnet vgg16 drq
    soft_actor_critic pytorch_CycleGAN_and_pix2pix timm_vision_transformer_large pytorch_unet resnet18
    pyhpc_turbulent_kinetic_energy stable_diffusion_text_encoder BlenderbotSmallForCausalLM BlenderbotForCausalLM
    OPTForCausalLM BartForCausalLM MBartForCausalLM yolov3 swsl_resnext101_32x16d nanogpt DistilBertForMaskedLM
    DistilBertForQuestionAnswering BERT_pytorch GPT2ForSequenceClassification hf_Reformer AlbertForMaskedLM
    vit_base_patch16_224 CamemBert hf_Roberta_base ese_vovnet19b_dw RobertaForCausalLM
    deit_base_distilled_patch16_224 LayoutLMForSequenceClassification DebertaV2ForMaskedLM
    MegatronBertForQuestionAnswering GPTNeoForSequenceClassification vit_base_patch16_siglip_256 llama timm_vovnet
    mobilenetv2_100 mobilenet_v2 pit_b_224 mnasnet_100 mnasnet1_0 deit_tiny_patch16_224 timm_vision_transformer
    DebertaForQuestionAnswering Llama-3.2 Mistral M2M100ForConditionalGeneration convnext_base resnet50
    GPTJForQuestionAnswering hf_GPT2 speech_transformer Qwen3 gernet_l spnasnet_100 hf_Bert XLNetLMHeadModel
    timm_regnet BlenderbotForConditionalGeneration PegasusForConditionalGeneration
    BlenderbotSmallForConditionalGeneration regnety_002 MBartForConditionalGeneration gpt-oss gemma-3
    convmixer_768_32 tf_efficientnet_b0 convit_base hf_Whisper whisper-tiny cspdarknet53 convnextv2_nano
    attention_is_all_you_need_pytorch cait_m36_384 rexnet_100 eca_botnext26ts_256 visformer_small tinynet_a
    PLBartForConditionalGeneration resmlp_12_224 mixer_b16_224 moco xcit_large_24_p8_224 sebotnet33ts_256
    adv_inception_v3 gluon_inception_v3 MobileBertForQuestionAnswering MobileBertForMaskedLM ghostnet_100
    T5ForConditionalGeneration hf_T5 mobilevit_s hf_BigBird gluon_xception65 AllenaiLongformerBase hf_Longformer
    nfnet_l0 timm_efficientnet twins_pcpvt_base tnt_s_patch16_224 dla102 tf_mixnet_l MT5ForConditionalGeneration
    coat_lite_mini poolformer_m36 T5Small hf_T5_large dpn107 resnet152 sam swin_base_patch4_window7_224
    res2net50_14w_8s volo_d1_224 densenet121 crossvit_9_240 gmixer_24_224 res2net101_26w_4s resnest101e hrnet_w18
    """.split()
)
"""Names of all entries; a run of a few minutes gets as far as it can."""


def small_first(entries: Iterable[Entry]) -> list[Entry]:
    """The entries in that order; those that are not in it come last."""
    places = {name: place for place, name in enumerate(SMALL_FIRST)}
    return sorted(entries, key=lambda entry: places.get(entry.name, len(places)))

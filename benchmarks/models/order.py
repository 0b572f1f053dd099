"""The suite's models by the size of their graphs, for runs that end when their time is over.

Place: beside ``models()``, which orders by family. Size: aten calls of inference, forward and backward together, as
eager makes them on the processor with the suite's package versions; models that bring the least to compile come first.
"""

from __future__ import annotations

from collections.abc import Iterable

from mixbackend.benchmarks.models.entry import Entry

SMALL_FIRST = tuple(
    """
    pyhpc_equation_of_state maml_omniglot lennard_jones nvidia_deeprecommender basic_gnn_gin basic_gnn_sage alexnet
    tts_angular dlrm dcgan basic_gnn_gcn phlippe_resnet functorch_dp_cifar10 opacus_cifar10 doctr_reco_predictor
    vgg16 drq demucs soft_actor_critic timm_vision_transformer_large pytorch_CycleGAN_and_pix2pix squeezenet1_1
    GoogleFnet pyhpc_turbulent_kinetic_energy pytorch_unet resnet18 stable_diffusion_text_encoder yolov3
    OPTForCausalLM PegasusForCausalLM BlenderbotSmallForCausalLM BlenderbotForCausalLM BartForCausalLM
    MBartForCausalLM nanogpt swsl_resnext101_32x16d ModernBERT DistillGPT2 AlbertForQuestionAnswering
    GPT2ForSequenceClassification lcnet_050 DistilBertForMaskedLM vit_base_patch16_224
    DistilBertForQuestionAnswering BERT_pytorch AlbertForMaskedLM PLBartForCausalLM BertForQuestionAnswering
    BertForMaskedLM deit_base_distilled_patch16_224 RobertaForQuestionAnswering CamemBert hf_Roberta_base
    TrOCRForCausalLM ElectraForQuestionAnswering vit_small_patch14_dinov2 RobertaForCausalLM
    MegatronBertForQuestionAnswering ese_vovnet19b_dw ElectraForCausalLM DebertaV2ForQuestionAnswering
    DebertaV2ForMaskedLM diffusion_transformer XGLMForCausalLM LayoutLMForSequenceClassification LayoutLMForMaskedLM
    GPTNeoForCausalLM GPTNeoForSequenceClassification Phi-3 wav2vec2 MegatronBertForCausalLM
    vit_base_patch16_siglip_256 Llama-3.2 Mistral llama Qwen2.5 granite mobilenetv4_conv_small pit_b_224
    deit_tiny_patch16_224 timm_vision_transformer selecsls42b timm_vovnet OLMo-2 Qwen3 DebertaForQuestionAnswering
    DebertaForMaskedLM Mixtral mobilenetv2_100 convnext_base mobilenet_v2 beit_base_patch16_224 GPTJForCausalLM
    mnasnet_100 mnasnet1_0 GPTJForQuestionAnswering YituTechConvBert Qwen3-MoE hf_GPT2 repvgg_a2 clip
    speech_transformer resnet50 resnext50_32x4d efficientvit_b0 mobilenetv3_large_100 gemma-3 mobilenet_v3_large
    hf_Bert gernet_l XLNetLMHeadModel spnasnet_100 hf_Reformer fbnetc_100 BlenderbotForConditionalGeneration
    PegasusForConditionalGeneration BlenderbotSmallForConditionalGeneration BartForConditionalGeneration hf_Whisper
    whisper-tiny timm_regnet MBartForConditionalGeneration gemma-2 gpt-oss botnet26t_256 regnety_002
    shufflenet_v2_x1_0 segformer cait_m36_384 convit_base visformer_small convnextv2_nano tf_efficientnet_b0
    cspdarknet53 eca_botnext26ts_256 attention_is_all_you_need_pytorch convmixer_768_32 moco eca_halonext26ts
    rexnet_100 mixer_b16_224 PLBartForConditionalGeneration M2M100ForConditionalGeneration resmlp_12_224
    xcit_large_24_p8_224 tinynet_a sebotnet33ts_256 MobileBertForQuestionAnswering MobileBertForMaskedLM
    AllenaiLongformerBase hf_Longformer res2next50 T5ForConditionalGeneration hf_T5 mobilevit_s adv_inception_v3
    gluon_inception_v3 inception_v3 ghostnet_100 tnt_s_patch16_224 fbnetv3_b twins_pcpvt_base
    MT5ForConditionalGeneration hiera_tiny_224 mixnet_l timm_efficientnet tf_mixnet_l gluon_xception65 dla102
    nfnet_l0 tacotron2 coat_lite_mini dm_nfnet_f0 poolformer_m36 sam T5Small hf_T5_large
    swin_base_patch4_window7_224 dpn107 hf_BigBird resnet152 gmlp_s16_224 volo_d1_224 res2net50_14w_8s
    crossvit_9_240 gmixer_24_224 levit_128 densenet121 res2net101_26w_4s resnest101e jx_nest_base pnasnet5large
    hrnet_w18
    """.split()
)
"""Names of all entries; a run of a few minutes gets as far as it can."""


def small_first(entries: Iterable[Entry]) -> list[Entry]:
    """The entries in that order; those that are not in it come last."""
    places = {name: place for place, name in enumerate(SMALL_FIRST)}
    return sorted(entries, key=lambda entry: places.get(entry.name, len(places)))

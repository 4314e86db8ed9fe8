"""Which group a kernel belongs to, by its name: a table of real names, a reader's own file, broken files."""

from __future__ import annotations

import numpy as np
import pytest
from metric_timelines import CASES, real

from flashnorm_lab import kernels as kernel_sources
from flashnorm_lab import timeline
from flashnorm_lab.errors import LabError
from flashnorm_lab.timeline import TimelineBuilder
from flashnorm_lab.timeline.metrics.groups import BY_CATEGORY, SEARCHED, Groups

NAMES = """
norm_product       | fused_norm_projection
rms_norm           | rms_norm
rms_norm           | inv_rms
rms_norm           | post_scale
gemm               | projection
other              | spin
rms_norm           | void vllm::rms_norm_kernel<c10::BFloat16>(c10::BFloat16*, c10::BFloat16 const*, float, in
add_rms_norm       | std::enable_if<true>::type vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat1
add_rms_norm       | vllm::fused_add_rms_norm_static_fp8_quant_kernel<c10::Half, 8, c10::Float8_e4m3fn>
norm_mixed         | void vllm::rms_norm_static_fp8_quant_kernel<c10::Half, c10::Float8_e4m3fn>(c10::Float8_e4
norm_mixed         | void vllm::rms_norm_dynamic_per_token_quant_kernel<float, signed char, false>(signed char
rms_norm           | void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*, __nv_bfloat16*)
rms_norm           | void flashinfer::norm::GemmaRMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*)
add_rms_norm       | void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*)
add_rms_norm       | kernel_cutlass_kernel_flashinfernormkernelsfused_add_rmsnormFusedAddRMSNormKernel_object_
rms_norm           | void tensorrt_llm::kernels::generalRmsNorm<half, half, true>(half const*, half const*)
norm_mixed         | void tensorrt_llm::kernels::fusedQKNormRopeKernel<128, true>(void*, int, int, int, float)
rms_norm           | _rms_norm_forward_kernel
rms_norm           | _rms_norm_backward_kernel
add_rms_norm       | _fused_add_rms_norm_forward_kernel
rms_norm           | _rms_layernorm_forward
rms_norm           | void fastertransformer::generalT5LayerNorm<float>(float const*, float const*, float*, int
rms_norm           | void (anonymous namespace)::cuApplyRMSNorm<float, float, float>(float*, float*, float con
layer_norm         | void (anonymous namespace)::cuApplyLayerNorm<float, float, float>(float*, float*, float*)
rms_norm           | kernel_cutlass_kernel_torch_vendorquackrmsnormRMSNorm_object_at__tensor000o
rms_norm           | void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<Kernel_traits>(KernelPar
rms_norm           | void rms_norm_f32<1024, true, false>(float const*, float*, int, long, long, long, float)
rms_norm           | void aiter::fused_qk_rmsnorm_kernel<bf16>(int)
add_rms_norm       | void aiter::add_rmsnorm_quant_kernel<std::bfloat16_t, std::bfloat16_t, 256, 16, false, fa
rms_norm           | _ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_21Rmsnorm2dFusedAddEnumE0ELNS_23Rmsnorm2dFuse
add_rms_norm       | _ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_21Rmsnorm2dFusedAddEnumE1ELNS_23Rmsnorm2dFuse
norm_mixed         | ck_tile::Rmsnorm2dFwd<(Rmsnorm2dFusedAddEnum)0, (Rmsnorm2dFusedQuantEnum)2>
rms_norm           | vectorized_layer_norm_kernel<c10::BFloat16, float, true>(int)
rms_norm           | void at::native::<unnamed>::vectorized_layer_norm_kernel<float, float, (bool)1>(int, T2)
layer_norm         | void at::native::<unnamed>::vectorized_layer_norm_kernel<float, float, (bool)0>(int, T2)
layer_norm         | vectorized_layer_norm_kernel<float, float>(int, float)
rms_norm           | _ZN2at6native12_GLOBAL__N_128vectorized_layer_norm_kernelIN3c108BFloat16EfLb1EEEviT0_PKT_
layer_norm         | _ZN2at6native12_GLOBAL__N_128vectorized_layer_norm_kernelIN3c108BFloat16EfLb0EEEviT0_PKT_
rms_norm           | GammaBetaBackwardCUDAKernelTemplate<float, float, 32u, 1u, 1u, true, true, true>(long)
layer_norm         | GammaBetaBackwardCUDAKernelTemplate<float, float, 32u, 1u, 1u, true, true, false>(long)
layer_norm         | GammaBetaBackwardCUDAKernelTemplate<float, float, 32u, 1u, 32u, true, true>(long)
layer_norm         | _ZN2atGammaBetaBackwardCUDAKernelTemplateIffLj32ELj32ELj256ELb0ELb0ELb0EEEvxxPKT_
layer_norm         | _layer_norm_fwd_1pass_kernel
rms_norm           | triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0
rms_norm           | triton_per_fused_add_mean_mul_pow_rsqrt_view_11
rms_norm           | triton_per_fused__fused_rms_norm_add_0
rms_norm           | triton_red_fused__fused_rms_norm__scaled_dot_product_flash_attention_add_cat_mul_neg_3
layer_norm         | triton_per_fused_native_layer_norm_0
layer_norm         | triton_red_fused_add_mul_rsqrt_sub_var_mean_4
elementwise        | triton_poi_fused_add_mul_rsqrt_2
copy_layout        | triton_poi_fused__to_copy_1
activation         | triton_poi_fused_mul_silu_slice_4
reduction          | triton_red_fused_mean_pow_0
gemm               | triton_tem_fused_addmm_t_view_3
norm_product       | triton_tem_fused__to_copy_mean_mm_mul_pow_rsqrt_2
attention          | triton_tem_fused_flex_attention_1
norm_product       | _fused_rmsnorm_linear_kernel
other_norm         | l2norm_fwd_kernel
other_norm         | void l2_norm_f32<32>(float const*, float*, int, float)
layer_norm         | void norm_f32<1024>(float const*, float*, int, long)
rms_norm           | void rms_norm_f32<1024, true>(float const*, float*, int, long)
layer_norm         | void transformer_engine::normalization::ln_fwd_tuned_kernel<Kernel_traits>
layer_norm         | void layer_norm::ln_parallel_residual_bwd_kernel<layer_norm::Kernel_traits>
other_norm         | void cudnn::bn_fw_tr_1C11_singleread<float, 512, true, 1, 2, 0>(cudnn::bn_fw_tr_1C11_args
other              | normalize_advantages
other              | abnormal_returns
random             | distribution_elementwise_grid_stride_kernel<float, 4, at::native::templates::cuda::normal
random             | fused_dropout_kernel_vec<float, float, 1, 4>(float)
reduction          | multi_tensor_apply_kernel<TensorListMetadata<1>, LpNormFunctor<float, (at::native::NormTy
optimizer          | void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float>(int)
elementwise        | vectorized_elementwise_kernel<4, at::native::rsqrt_kernel_cuda(at::TensorIteratorBase&)::
elementwise        | vectorized_elementwise_kernel<4, pow_tensor_scalar_kernel_impl<float, float>(at::TensorIt
reduction          | reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float>>>
communication_norm | allreduce_fusion_kernel_oneshot_lamport<(trtllm::AllReduceFusionPattern)1, __nv_bfloat16>
communication      | allreduce_fusion_kernel_oneshot_lamport<(trtllm::AllReduceFusionPattern)0, __nv_bfloat16>
communication      | ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)
communication      | ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)
communication      | void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*, vllm::RankSignal
gemm               | ampere_sgemm_128x64_nn
gemm               | volta_sgemm_32x32_sliced1x4_tn
gemm               | sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4_a
gemm               | sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1
gemm               | nvjet_sm100_tst_64x32_64x16_2x1_2cta_h_bz_TNT
gemm               | void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, true, true, f
gemm               | std::enable_if<!T7, void>::type internal::gemvx::kernel<int, int, __nv_bfloat16>
gemm               | void gemmk1_kernel<float, 256, 5, false, false, false, false>
gemm               | void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_nn_align
gemm               | _ZN7cutlass13device_kernelIN10flashinfer4Fp4TIlEEvNT_6ParamsE
gemm               | kernel_cutlass_kernel_quackgemm_default_epiGemmDefaultSm90
gemm               | Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT16x16x256_MI16x16x1_SN
gemm               | void ck::kernel_gemm_xdl_cshuffle_v3_multi_d<ck::GridwiseGemm>
gemm               | void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0>
gemm               | void vllm::marlin_moe_wna16::Marlin<1125899906909960l>
gemm               | fused_moe_kernel
gemm               | void mul_mat_vec_q<(ggml_type)14, 1, false>
gemm               | bmm_Bfloat16_E2m1E2m1_Fp32_bA16_bB16
convolution        | volta_scudnn_128x64_relu_medium_nn_v1
convolution        | void explicit_convolve_sgemm<float, int, 1024, 5, 5, 3, 3, 3, 0, false>
attention          | void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128,
attention          | fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel)
attention          | cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x128x128_4x1x1
attention          | void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90>>
attention          | void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0, 2u>
attention          | void ck_tile::kentry<256, 2, ck_tile::FmhaFwdKernel<ck_tile::BlockFmhaPipelineQRKSVSAsync
attention          | kernel_unified_attention_2d
copy_layout        | void vllm::reshape_and_cache_flash_kernel<__hip_bfloat16, __hip_bfloat16>
rope               | void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, c10::BFloat16*)
other              | device_property_probe
activation         | void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16, &silu>
softmax            | void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float>
sampling           | void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>
quantize           | void vllm::scaled_fp8_quant_kernel<c10::BFloat16, c10::Float8_e4m3fn>
quantize           | void per_token_group_quant_8bit_kernel<c10::BFloat16, c10::Float8_e4m3fn, true>
embedding          | void fbgemm_gpu::permute_2D_lengths_kernel<int>(int, int, int const*, int const*, int*)
embedding          | void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long>
copy_layout        | CatArrayBatchedCopy<float, unsigned int, 2, 128, 1>
elementwise        | void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>
"""
TABLE = [tuple(part.strip() for part in line.split("|", 1)) for line in NAMES.strip().splitlines()]


@pytest.mark.parametrize(("group", "name"), TABLE, ids=[name[:60] for _, name in TABLE])
def test_real_names(group, name):
    groups = Groups.load()
    assert groups.group_of(name) == group
    rule = groups.rule_of(name)
    assert rule is None or rule.note


def test_every_kernel_of_the_lab_has_a_rule():
    groups = Groups.load()
    for path in kernel_sources.kernels_folder().glob("*.cu"):
        assert groups.rule_of(path.stem) is not None, path.stem


def test_each_rule_decides_for_some_name_or_stands_in_the_table():
    groups = Groups.load()
    used = {id(groups.rule_of(name)) for _, name in TABLE}
    unused = [rule.pattern for rule in groups.rules if id(rule) not in used]
    # Those that the table leaves out have groups of no norm and no product.
    apart = {"loss", "convolution", "layer_norm", "other_norm", "softmax", "copy_layout", "reduction",
             "norm_mixed", "communication", "embedding", "sampling"}  # fmt: skip
    assert {rule.group for rule in groups.rules if rule.pattern in unused} <= apart


def test_groups_of_a_timeline():
    build = TimelineBuilder()
    rows = [
        ("rms_norm", "host", "launch"),
        ("rms_norm", "s", "kernel"),
        ("projection", "s", "kernel"),
        ("Memcpy DtoD", "s", "copy"),
        ("Memset", "s", "fill"),
        ("graph 3", "s", "graph"),
        ("rms_norm", "s", "range"),
        ("unheard of", "s", "kernel"),
        ("ncclDevKernel_SendRecv", "s", "kernel"),
        ("fused_norm_projection", "s", "kernel"),
    ]
    for i, (name, lane, category) in enumerate(rows):
        build.span(name, lane, 10 * i, 5, category)
    t = build.build()
    groups = Groups.load()
    expected = ["", "rms_norm", "gemm", "copy", "fill", "graph", "", "other", "communication", "norm_product"]
    told = [groups.names[i] if i >= 0 else "" for i in groups.of(t)]
    assert told == expected
    assert groups.of(t).dtype == np.int32
    assert groups.spans(t, "norm").tolist() == [1]
    assert groups.spans(t, "copy").tolist() == [3, 4]
    assert groups.spans(t, "compute").tolist() == [1, 2, 7, 9]
    assert groups.spans(t, "communication").tolist() == [8]
    assert groups.spans(t, "gemm").tolist() == [2]
    with pytest.raises(LabError, match=r"^there is no group 'nrom'; there are compute, copy, norm, "):
        groups.spans(t, "nrom")
    assert groups.of(TimelineBuilder().build()).tolist() == []


def test_odd_names():
    groups = Groups.load()
    assert groups.group_of("") == "other"
    assert groups.group_of("\x1b[31mrms_norm_kernel\x00") == "rms_norm"
    assert groups.group_of("(*[a+b]?{3}\\") == "other"
    assert groups.group_of("x" * SEARCHED + "rms_norm_kernel") == "other"
    assert groups.group_of("rms_norm_kernel<" + "float, " * 50_000) == "rms_norm"


def write(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_of_ones_own_goes_first(tmp_path):
    path = write(
        tmp_path,
        """
        [groups]
        mine = "what I wrote"
        [families]
        ours = ["mine", "gemm"]
        [[rule]]
        group = "mine"
        pattern = 'Sgemm'
        case = true
        [[rule]]
        group = "elementwise"
        pattern = 'RMS_norm_KERNEL'
        """,
    )
    groups = Groups.load(path)
    assert groups.group_of("ampere_sgemm_128x64_nn") == "gemm"
    assert groups.group_of("my_Sgemm") == "mine"
    assert groups.group_of("void vllm::rms_norm_kernel<float>") == "elementwise"
    assert groups.members("ours") == ("mine", "gemm")
    assert set(BY_CATEGORY) < set(groups.names)
    assert Groups.load().group_of("void vllm::rms_norm_kernel<float>") == "rms_norm"


def test_a_file_of_ones_own_alone(tmp_path):
    groups = Groups.load(write(tmp_path, "only = true\n[[rule]]\ngroup = 'gemm'\npattern = 'foo'\n"))
    assert groups.group_of("foo") == "gemm"
    assert groups.group_of("ampere_sgemm_128x64_nn") == "other"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[[rule]]\ngroup='gemm'\npattern='('\n",
            r"rule 1 \(group gemm\): pattern '\(' is no regular expression",
        ),
        (
            "[[rule]]\ngroup='gemm'\npattern='a'\n[[rule]]\ngroup='gem'\npattern='a'\n",
            r"rule 2 names group 'gem'",
        ),
        ("[[rule]]\ngroup='gemm'\n", "rule 1 has no pattern"),
        ("[[rule]]\ngroup='gemm'\npattern=''\n", "rule 1 has no pattern"),
        ("[[rule]]\ngroup='gemm'\npattern='a'\ncolour='red'\n", "rule 1: 'colour' is not known at a rule"),
        ("[[rule]]\ngroup='gemm'\npattern=3\n", "rule 1: pattern is 3; a text was expected"),
        ("rule = 3\n", "rule is 3; an array of tables was expected"),
        ("rule = [3]\n", "rule 1 is 3; a table with group and pattern was expected"),
        ("rules = []\n", "'rules' is not known at the top of the file"),
        ("[groups]\nx = 3\n", "group 'x' is 3; its meaning in words was expected"),
        ("[groups]\ncopy = 'mine'\n", "group 'copy' is a word of the program's own"),
        ("[families]\nf = ['nothing']\n", "family 'f' names group 'nothing'"),
        ("[families]\nf = 'gemm'\n", "family 'f' is 'gemm'; a list of groups was expected"),
        ("[[rule\n", "no TOML file: "),
    ],
)
def test_a_broken_file_gives_one_line(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(LabError, match=message) as caught:
        Groups.load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(LabError, match=r"none\.toml: cannot be read \(No such file or directory\)"):
        Groups.load(tmp_path / "none.toml")
    path = tmp_path / "latin.toml"
    path.write_bytes(b"[groups]\nx = 'caf\xe9'\n")
    with pytest.raises(LabError, match="byte 17 is no UTF-8"):
        Groups.load(path)


@real
@pytest.mark.parametrize(
    "file",
    [
        "kineto_2020_top_level_list.json.gz",
        "kineto_cuda_graphs_four_streams.json.gz",
        "kineto_h100_kernels_without_launch.json.gz",
        "kineto_nanosecond_decimals.json.gz",
        "kineto_rocm_graph_fan_out.json.gz",
    ],
)
def test_names_of_real_traces(file):
    """By words that stand in their names: no product as a norm, no norm by accident, none unknown."""
    t = timeline.open(CASES / file)
    groups = Groups.load()
    names = {t.names[t.name[i]] for i in t.spans(category="kernel")}
    assert names
    for name in names:
        group, low = groups.group_of(name), name.lower()
        norm = "layer_norm" in low or "rmsnorm" in low or "bn_fw" in low or "bn_bw" in low
        assert (group in groups.members("norm")) == (norm or "gammabeta" in low), name
        if "cijk_" in low or low.startswith(("volta_sgemm", "ampere_sgemm", "sm90_xmma_gemm")):
            assert group == "gemm", name
        if "scudnn" in low or "winograd" in low or "wgrad" in low:
            assert group == "convolution", name
        if low.startswith("nccl"):
            assert group == "communication", name
        assert group != "other", name

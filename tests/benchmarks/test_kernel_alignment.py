"""The microscope's arithmetic: kernels of two compilers aligned by the library calls of both."""

from __future__ import annotations

from benchmarks import kernels
from benchmarks.kernel_alignment import Launch, align, causes, class_of, own_times, pauses

GEMM = Launch("nvjet_sm90_tst_128x160", 30.0)


def norm(microseconds):
    return Launch("fused_layer_norm_96a2b9", microseconds, 10_000_000, "[64, 768*] XBLOCK=1")


def test_classes_by_name():
    assert class_of("triton_per_fused_add_native_layer_norm_3") == "reduction"
    assert class_of("triton_poi_fused_convolution_relu_1") == "generated"
    assert class_of("sm80_xmma_fprop_implicit_gemm_f16f16") == "convolution"
    assert class_of("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm>") == "matmul"
    assert class_of("void at::native::vectorized_elementwise_kernel<4>") == "aten"


def test_equal_sections_are_added_and_the_largest_difference_comes_first():
    layer = [norm(50.0), GEMM]
    their_layer = [Launch("triton_per_fused_layer_norm_7", 5.0), Launch("cutlass_gemm", 31.0)]
    last = [Launch("fused_add_000000", 4.0)]
    sections = align(layer * 3 + last, their_layer * 3)
    first = sections[0]
    assert (first.count, first.difference) == (3, 135.0)
    assert first.ours[0].nbytes == 30_000_000 and first.cause() == "reductions"
    result = causes(sections)
    assert list(result)[0] == "reductions" and result["reductions"].ours == 150.0
    assert result["matmul"].theirs == 93.0 and result["more kernels"].kernels == [1, 0]


def test_operators_left_to_aten_are_a_cause_of_their_own():
    ours = [GEMM, Launch("void at::native::reduce_kernel<512>", 9.0), GEMM]
    (section,) = (s for s in align(ours, [GEMM, Launch("triton_red_fused_sum_1", 2.0), GEMM])
                  if s.cause() == "operators left to ATen")  # fmt: skip
    assert section.difference == 7.0


def test_the_report_names_loops_bytes_and_the_share_of_a_copy():
    def of(compiler, launches):
        return {
            "program": "p", "compiler": compiler, "first_s": 1.0, "latency_ms": 0.2, "peak_MiB": 1.0,
            "back_to_back_ms": 0.2, "copy_TB_s": 4.0, "cuda_graphs": [],
            "launches": [[x.name, x.microseconds, x.nbytes, x.detail] for x in launches],
        }  # fmt: skip

    text = kernels.report(
        of("ours", [norm(50.0), GEMM]), of("torch", [Launch("triton_per_fused_1", 5.0), GEMM])
    )
    assert "[64, 768*] XBLOCK=1 10.0 MB 5% of a copy" in text
    assert "inductor_backend/codegen/triton/block_sizes.py" in text


def test_idle_time_is_added_up_by_the_kernels_around_it():
    step = [Launch("fused_add_0a1b2c", 4.0, idle=7.0), Launch("fused_mul_000000", 4.0, idle=1.5)]
    assert pauses(step * 2) == [
        ("fused_mul -> fused_add", 2, 14.0),
        ("fused_add -> fused_mul", 2, 3.0),
    ]


def test_what_a_kernel_waits_for_another_is_not_its_own_time():
    spans = [(0.0, 10.0), (4.0, 12.0), (5.0, 11.0), (14.0, 15.0)]
    assert own_times(spans) == [(10.0, 0.0), (2.0, 0.0), (0.0, 0.0), (1.0, 2.0)]

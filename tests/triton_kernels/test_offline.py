"""Graphs on CUDA devices that are not there: lowered on fake tensors, kernels compiled to machine
code.
"""

from __future__ import annotations

import pytest

from tests.support.processes import reported_by_triton

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """What tests/triton_kernels/offline.py prints, from a process in which Triton compiles."""
    return reported_by_triton(
        "tests.triton_kernels.offline", cache=tmp_path_factory.mktemp("triton")
    )


@pytest.mark.sweep(keep=5)
@pytest.mark.parametrize("capability", ["80", "90"])
@pytest.mark.parametrize(
    "name",
    [
        "trigonometry",
        "layer norm, gelu, softmax",
        "transpose",
        "long columns",
        "argmax",
        "repeated elements",
        "scans",
        "long scans",
        "index",
        "division by zero",
        "beyond 32 bits",
        "bfloat16",
        "queries, keys, values",
        "linear, gelu",
        "TF32",
        "convolution",
    ],
)
def test_machine_code(report, name, capability):
    assert report[name]["problem"] is None
    assert all(size > 1000 for size in report[name]["cubins"][capability].values())
    assert report[name]["cubins"][capability]


def test_kernels_of_sm_90_wait_for_the_one_before_by_themselves(report):
    for name in ("trigonometry", "long columns", "queries, keys, values", "linear, gelu", "scans"):
        assert report[name]["waits first"] and not report[name]["waits on 80"], name


def test_loads_are_sixteen_bytes_wide(report):
    for name in ("trigonometry", "layer norm, gelu, softmax", "bfloat16", "sum over few heads"):
        assert report[name]["wide loads"] > 0, name


def test_one_row_times_three_weights_is_one_kernel_with_wide_loads(report):
    result = report["queries, keys, values"]
    assert result["operators"] == [] and len(result["sources"]) == 1
    assert result["wide loads"] >= 4  # of the row, and of three weights


@pytest.mark.parametrize("name", ["linear, gelu", "TF32", "convolution"])
def test_own_products_use_tensor_cores_and_load_ahead(report, name):
    assert report[name]["operators"] == [] and len(report[name]["sources"]) == 1
    assert report[name]["tensor cores"] > 0 and report[name]["asynchronous copies"] > 0


def test_an_index_out_of_range_stops_the_device(report):
    assert report["index"]["asserts"]
    assert not report["transpose"]["asserts"]


def test_offsets_have_64_bits_where_32_might_not_do(report):
    """That they are right is seen on a GPU (test_wide.py)."""
    large, row, rows = report["beyond 32 bits"]["sources"]
    assert all("pid = tl.program_id(0).to(tl.int64)" in text for text in (large, row, rows))
    assert "for number in range(0, " in row and "for start in" not in row
    assert not any("int64" in text for text in report["transpose"]["sources"])


def test_trigonometry_is_one_kernel_one_load_per_input_one_store(report):
    for name in ("trigonometry", "input on the CPU"):
        (text,) = report[name]["sources"]
        assert text.count("tl.load(") == 2 and text.count("tl.store(") == 1


def test_copies_between_devices_are_operators(report):
    assert report["input on the CPU"]["operators"] == ["aten._to_copy.default"]
    assert report["result to the CPU"]["operators"] == ["aten._to_copy.default"]
    assert report["scalar on the CPU"]["operators"] == ["aten._to_copy.default"]


def test_loops_on_two_devices_are_refused_by_name(report):
    assert "an operand on cpu in a graph of cuda:0" in report["reasons"]["operand"]
    assert (
        report["reasons"]["result"] is None
    )  # nothing on the device reads it: it runs beside (host_side)


@pytest.mark.parametrize("way", ["bulk", "walking", "TF32 by bulk copies"])
def test_bulk_copies_on_sm_90(report, way):
    """The kernel, and the one for memory that begins elsewhere: what launch.cpp hands each of
    them.
    """
    result = report[way]
    assert result["bulk copies"][0] > 0 and result["bulk copies"][1] == 0
    assert result["matrices"] == [2, 0] and result["tensor cores"] > 0 and result["scratch"] == 0
    assert result["parameters"] == [result["pointers"] + 2 * 5 + 2, result["pointers"] + 2]
    assert result["warps"] == 4


@pytest.fixture(scope="module")
def flex_report(tmp_path_factory):
    return reported_by_triton(
        "tests.triton_kernels.offline_flex", cache=tmp_path_factory.mktemp("triton")
    )


@pytest.mark.full
@pytest.mark.parametrize("learned", [False, True])
def test_flex_attention(flex_report, learned):
    """Its kernels multiply in tensor cores (but for that which combines the parts of a walk), fit into
    the shared memory of any GPU since Ampere, and spill few registers; only the gradients of captured
    tensors are added atomically."""
    kernels = flex_report[f"bfloat16, heads of 64{', learned' if learned else ''}"]
    query = "flex_attention_backward_query"
    combine = "flex_attention_combine"
    assert set(kernels) == {"flex_attention", combine, query, "flex_attention_backward_key"}
    for name, kernel in kernels.items():
        assert (kernel["tensor cores"] > 0) == (name != combine), (name, kernel)
        assert kernel["shared"] < 99 << 10, (name, kernel)
        assert kernel["spilled"] < 1024, (name, kernel)
        assert (kernel["atomic additions"] > 0) == (learned and name == query), (name, kernel)


def test_attention_of_few_queries(tmp_path):
    """It reads keys by 16 bytes ahead of their use, whether or not their number is known, and fits into
    the shared memory of any GPU since Ampere; a mask and repeated heads are not computed."""
    report = reported_by_triton("tests.triton_kernels.offline_decoding", cache=tmp_path)
    captured = report["captured"]
    assert captured["operators"] == ["decoding_attention"] and captured["loops"] == 0
    for name, kernel in report.items():
        assert kernel["copies of 16 bytes"] >= 16, name
        assert (kernel["tensor cores"] > 0) == ("float32" not in name), name
        assert kernel["spilled"] <= 16 and kernel["ordered"] == 1, name
        assert kernel["shared"] <= 99 * 1024, name

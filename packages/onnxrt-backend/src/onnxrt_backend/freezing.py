"""Makes parameters initialisers of the ONNX model (``freeze=True``), so that ONNX Runtime folds
and packs them.

The values reach ONNX Runtime outside the serialised model (which may not exceed 2 GB), on the
CPU without a copy if they are contiguous. A constant whose dtype NumPy lacks stays an input. The
core makes a new runner when a constant changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from onnxrt_backend.binding import BoundSession
from onnxrt_backend.export import Exported
from onnxrt_backend.session import session
from onnxrt_backend.torch_private.onnx_exporter import element_type
from tracer_core.plugin_api import BackendError, CompileSpec, Runner, stage

#: dtypes that tensors and NumPy arrays share.
NUMPY_DTYPES = frozenset({
    torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
})  # fmt: skip


def freezable(exported: Exported, spec: CompileSpec) -> Runner:
    """Returns a runner whose `bind_constants` builds the session; see `CompileSpec.constants`.
    The runner reads all constants, because ONNX Runtime may go on reading the tensors' own
    memory."""

    def run(inputs: list[Any]) -> Sequence[Any]:
        raise BackendError("onnxrt", "run", f"{spec.name} is called before its constants are bound")

    def bind_constants(tensors: Sequence[torch.Tensor]) -> BoundSession:
        names = {index: name for index, name, _ in exported.graph.inputs}
        values = {
            names[index]: tensor.detach().cpu().contiguous()
            for index, tensor in zip(spec.constants, tensors, strict=True)
            if index in names and tensor.dtype in NUMPY_DTYPES
        }
        with stage("onnxrt freeze", graph=spec.name):
            held = {name: _value(tensor) for name, tensor in values.items()}
            model = with_initializers(exported.model, values)
            result = session(model, spec.options, spec.device.type, held)
        return BoundSession(result, exported, spec, frozenset(values), (held, values))

    return Runner(
        run, bind_constants=bind_constants, constants_read=frozenset(range(len(spec.constants)))
    )


def _value(tensor: torch.Tensor) -> Any:
    import onnxruntime

    return onnxruntime.OrtValue.ortvalue_from_numpy(tensor.numpy())


def with_initializers(model: bytes, values: dict[str, torch.Tensor]) -> bytes:
    """Returns the model with these inputs as initialisers whose values are external."""
    import onnx

    proto = onnx.load_from_string(model)
    remaining = [item for item in proto.graph.input if item.name not in values]
    del proto.graph.input[:]
    proto.graph.input.extend(remaining)
    for name, tensor in values.items():
        result = proto.graph.initializer.add()
        result.name, result.data_type = name, element_type(tensor.dtype)
        result.dims.extend(tensor.shape)
        result.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (
            ("location", "parameters"),
            ("offset", "0"),
            ("length", str(tensor.nbytes)),
        ):
            entry = result.external_data.add()
            entry.key, entry.value = key, value
    return bytes(proto.SerializeToString())

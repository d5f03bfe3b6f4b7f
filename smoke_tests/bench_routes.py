"""What the frameworks' benchmarks share: ONNX Runtime and TensorRT as callables that keep what they loaded."""

import ctypes
import os

from envforge_smoke import onnx_tools
from envforge_smoke.outcome import Failed


def write_onnx(folder, export):
    """One file at the opset that every exporter here knows."""
    onnx_tools.need("onnxruntime")
    export(os.path.join(folder, "m.onnx"), onnx_tools.COMMON_OPSET)


def onnx(folder, device, prepare=None):
    runtime = onnx_tools.need("onnxruntime")
    runtime.set_default_logger_severity(3)
    created = onnx_tools.session(os.path.join(folder, "m.onnx"), device)
    feed = created.get_inputs()[0].name
    return lambda x: created.run(None, {feed: prepare(x) if prepare else x})[0]


def write_tensorrt(folder, export, x):
    onnx_tools.need("tensorrt")
    onnx_tools.write_tensorrt(folder, export, x)
    os.remove(os.path.join(folder, "model.onnx"))  # a step on the way, not what is shipped


def tensorrt(folder, prepare=None):
    """The engine with its device memory kept between calls; plain CUDA through ctypes."""
    import numpy as np

    trt, cuda = onnx_tools.need("tensorrt"), ctypes.CDLL("libcuda.so.1")
    with open(os.path.join(folder, "model.engine"), "rb") as stream:
        engine = trt.Runtime(trt.Logger(trt.Logger.ERROR)).deserialize_cuda_engine(stream.read())
    context = engine.create_execution_context()
    names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
    feed = next(n for n in names if engine.get_tensor_mode(n) == trt.TensorIOMode.INPUT)
    result = next(n for n in names if n != feed)
    kept = {}

    def place(name, array):
        if name not in kept:
            kept[name] = ctypes.c_uint64()
            if cuda.cuMemAlloc_v2(ctypes.byref(kept[name]), ctypes.c_size_t(array.nbytes)) != 0:
                raise Failed("cannot allocate GPU memory for TensorRT", "out-of-memory")
            context.set_tensor_address(name, kept[name].value)
        return kept[name]

    def call(x):
        x = np.ascontiguousarray(prepare(x) if prepare else x)
        context.set_input_shape(feed, x.shape)
        y = np.zeros(tuple(context.get_tensor_shape(result)), np.float32)
        source, target = place(feed, x), place(result, y)
        cuda.cuMemcpyHtoD_v2(source, x.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(x.nbytes))
        context.execute_async_v3(0)
        cuda.cuCtxSynchronize()
        cuda.cuMemcpyDtoH_v2(y.ctypes.data_as(ctypes.c_void_p), target, ctypes.c_size_t(y.nbytes))
        return y

    return call

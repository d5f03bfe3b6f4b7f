"""ONNX files: which opsets to write, check, simplify, and run in ONNX Runtime with the provider really in use."""

import os

from envforge_smoke.outcome import Failed, MissingPackage, describe

COMMON_OPSET = 17


def need(module, package=None, route=""):
    """Import a module that a route needs, or say that its package is missing."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = (getattr(error, "name", None) or "").split(".")[0]
        if missing and missing == module.split(".")[0]:
            raise MissingPackage(package or module, route)
        if isinstance(error, ModuleNotFoundError) and missing:
            raise MissingPackage(missing, "{0} imports it and does not declare it".format(module))
        raise


def _identity(opset):
    import onnx
    from onnx import helper

    node = helper.make_node("Identity", ["x"], ["y"])
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    model = helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = min(model.ir_version, runtime_ir())
    return model.SerializeToString()


def runtime_ir():
    """The newest file format version that the installed ONNX Runtime reads (a lower one is always fine)."""
    import onnxruntime

    release = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
    for floor, ir in (((1, 24), 13), ((1, 23), 11), ((1, 18), 10), ((1, 15), 9), ((1, 11), 8)):
        if release >= floor:
            return ir
    return 7


def newest_opset(ceiling=None):
    """The newest opset that onnx and ONNX Runtime both take, and the exporter when ``ceiling`` says its limit."""
    onnx, runtime = need("onnx"), need("onnxruntime")
    runtime.set_default_logger_severity(4)
    newest = onnx.defs.onnx_opset_version()
    if ceiling:
        newest = min(newest, ceiling)
    for opset in range(newest, 6, -1):
        try:
            runtime.InferenceSession(_identity(opset), providers=["CPUExecutionProvider"])
            return opset
        except Exception:
            continue
    raise Failed("ONNX Runtime {0} takes no opset that onnx {1} writes".format(runtime.__version__, onnx.__version__))


def opset_of(model):
    return max([entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")] or [0])


def write_opsets(folder, export, ceiling=None):
    """Call ``export(path, opset)`` for opset 17 (or the exporter's highest below) and the newest; what was written.

    An exporter that writes another opset than asked for is believed by its file, not by the request.
    """
    newest = newest_opset(ceiling)
    wanted = sorted({min(COMMON_OPSET, newest), newest})
    written, refused = [], []
    for opset in wanted:
        path = os.path.join(folder, "model-{0}.onnx".format(opset))
        try:
            export(path, opset)
            written.append(opset)
        except MissingPackage:
            raise
        except Exception as error:
            if opset <= COMMON_OPSET:
                raise
            refused.append((opset, describe(error)))
    # The newest may be beyond the exporter's own limit: walk down to what it supports.
    while refused and refused[-1][0] - 1 > COMMON_OPSET:
        opset = refused[-1][0] - 1
        try:
            export(os.path.join(folder, "model-{0}.onnx".format(opset)), opset)
            written.append(opset)
            break
        except Exception as error:
            refused.append((opset, describe(error)))
    said = "ONNX opsets {0}".format(", ".join(_true_opset(folder, opset) for opset in written))
    if refused:
        said += " (the exporter refuses {0}: {1})".format(refused[0][0], refused[0][1][:160])
    return said


def _true_opset(folder, asked):
    """The opset that the file says, and what was asked for where that differs."""
    import onnx

    path = os.path.join(folder, "model-{0}.onnx".format(asked))
    true = opset_of(onnx.load(path, load_external_data=False))
    return str(true) if true == asked else "{0} (asked for {1}, which this exporter does not write)".format(true, asked)


def providers(device):
    """The provider that must be in use on this device."""
    runtime = need("onnxruntime")
    if device == "gpu" and "CUDAExecutionProvider" in runtime.get_available_providers():
        return ["CUDAExecutionProvider", "CPUExecutionProvider"]
    return ["CPUExecutionProvider"]


def session(source, device, runtime=None, options=None):
    """A session whose first provider is the one asked for: ONNX Runtime itself falls back without an error."""
    runtime = runtime or need("onnxruntime")
    wanted = providers(device)
    created = (
        runtime.InferenceSession(source, options, providers=wanted)
        if options
        else runtime.InferenceSession(source, providers=wanted)
    )
    active = list(created.get_providers())
    if not active or active[0] != wanted[0]:
        raise Failed(
            "ONNX Runtime was asked for {0} and uses {1}: its CUDA or cuDNN libraries do not load".format(
                wanted[0], ", ".join(active) or "nothing"
            ),
            "provider-fallback",
        )
    return created


def _gpu_runtime_without_provider(device):
    from envforge_smoke import structure

    if device == "gpu" and "onnxruntime-gpu" in structure.installed():
        runtime = need("onnxruntime")
        if "CUDAExecutionProvider" not in runtime.get_available_providers():
            raise Failed(
                "onnxruntime-gpu is installed but offers no CUDA provider (a CPU package beside it?)",
                "provider-fallback",
            )


def _run(created, x):
    feed = created.get_inputs()[0]
    return created.run(None, {feed.name: x})[0]


def _simplified(path, model, device, x):
    """(how, output) of the model after a simplifier, or None when there is none."""
    runtime = need("onnxruntime")
    try:
        import onnxsim

        simple, ok = onnxsim.simplify(model)
        if not ok:
            raise Failed("onnxsim changed what the model computes", "export-differs")
        return "onnxsim", _run(session(simple.SerializeToString(), device), x)
    except ImportError:
        pass
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = path + ".simple"
    session(path, "cpu", runtime, options)
    return "ONNX Runtime's simplifier", _run(session(path + ".simple", device), x)


def read_opsets(folder, x, device, prepare=None):
    """Check and run every file of the folder; outputs by label and what was used.

    ``prepare`` changes the input's layout for exporters that do not write NCHW.
    """
    onnx, runtime = need("onnx"), need("onnxruntime")
    runtime.set_default_logger_severity(3)
    _gpu_runtime_without_provider(device)
    fed = prepare(x) if prepare else x
    outputs, said = {}, []
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".onnx"):
            continue
        path = os.path.join(folder, name)
        model = onnx.load(path)
        onnx.checker.check_model(model, full_check=True)
        label = "opset {0}".format(opset_of(model))
        outputs[label] = _run(session(path, device), fed)
        how, simple = _simplified(path, model, device, fed)
        outputs[label + ", " + how] = simple
        said.append(label)
        openvino = _openvino(path, fed)
        if openvino is not None:
            outputs[label + ", OpenVINO"] = openvino
    if not outputs:
        raise Failed("no ONNX file was written", "export-missing")
    return outputs, "onnx {0} checker, ONNX Runtime {1} ({2}), {3}".format(
        onnx.__version__, runtime.__version__, providers(device)[0], ", ".join(said)
    )


def _openvino(path, x):
    try:
        import openvino
    except ImportError:
        return None
    compiled = openvino.compile_model(path, "CPU")
    return next(iter(compiled([x]).values()))


def write_tensorrt(folder, onnx_writer, x):
    """A TensorRT engine from ONNX opset 17; needs a GPU."""
    trt = need("tensorrt")
    path = os.path.join(folder, "model.onnx")
    onnx_writer(path, COMMON_OPSET)
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    flag = getattr(trt.NetworkDefinitionCreationFlag, "EXPLICIT_BATCH", None)
    network = builder.create_network(1 << int(flag) if flag is not None else 0)
    parser = trt.OnnxParser(network, logger)
    with open(path, "rb") as stream:
        if not parser.parse(stream.read()):
            raise Failed("TensorRT cannot read the ONNX file: {0}".format(parser.get_error(0)), "export-failed")
    config = builder.create_builder_config()
    feed = network.get_input(0)
    if any(side < 0 for side in feed.shape):
        profile = builder.create_optimization_profile()
        profile.set_shape(feed.name, x.shape, x.shape, x.shape)
        config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise Failed("TensorRT built no engine", "export-failed")
    with open(os.path.join(folder, "model.engine"), "wb") as stream:
        stream.write(plan)
    return "TensorRT {0}".format(trt.__version__)


def read_tensorrt(folder, x, device):
    """Run the engine with plain CUDA memory through ctypes, so that no further package is needed."""
    import ctypes

    import numpy as np

    trt = need("tensorrt")
    with open(os.path.join(folder, "model.engine"), "rb") as stream:
        engine = trt.Runtime(trt.Logger(trt.Logger.ERROR)).deserialize_cuda_engine(stream.read())
    context = engine.create_execution_context()
    names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
    feed = next(n for n in names if engine.get_tensor_mode(n) == trt.TensorIOMode.INPUT)
    result = next(n for n in names if n != feed)
    context.set_input_shape(feed, x.shape)
    y = np.zeros(tuple(context.get_tensor_shape(result)), np.float32)
    cuda = ctypes.CDLL("libcuda.so.1")
    handles = []
    x = np.ascontiguousarray(x)
    for array in (x, y):
        pointer = ctypes.c_uint64()
        if cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(array.nbytes)) != 0:
            raise Failed("cannot allocate GPU memory for TensorRT", "out-of-memory")
        handles.append(pointer)
    cuda.cuMemcpyHtoD_v2(handles[0], x.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(x.nbytes))
    context.set_tensor_address(feed, handles[0].value)
    context.set_tensor_address(result, handles[1].value)
    context.execute_async_v3(0)
    cuda.cuCtxSynchronize()
    cuda.cuMemcpyDtoH_v2(y.ctypes.data_as(ctypes.c_void_p), handles[1], ctypes.c_size_t(y.nbytes))
    for pointer in handles:
        cuda.cuMemFree_v2(pointer)
    return y, "TensorRT engine"

"""Other runtimes as peers of whole models: ONNX Runtime and OpenVINO.

Both get the model as a graph of their own best operators, made here. Every case has bags of one
length, so a bag is a Gather and a sum over its ids for ONNX Runtime, which has no operator for bags;
OpenVINO has one. Tables are not copied.
"""

import numpy
import torch


class Unavailable(RuntimeError):
    """The runtime is not installed, or does not take the model."""


class OnnxRuntime:
    def __init__(self, model, case):
        try:
            import onnxruntime
            from onnx import TensorProto, helper
        except ImportError as error:
            raise Unavailable(str(error)) from None
        floats, longs = TensorProto.FLOAT, TensorProto.INT64
        value = helper.make_tensor_value_info
        nodes, inputs, constants = [], [], []

        def constant(name, array):
            kind = floats if array.dtype == numpy.float32 else longs
            constants.append(helper.make_tensor(name, kind, array.shape, array.tobytes(), raw=True))
            return name

        def node(kind, *names, out, **attributes):
            nodes.append(helper.make_node(kind, names, [out], **attributes))
            return out

        def mlp(x, prefix, layers, last):
            for i, (weight, bias) in enumerate(layers):
                w = constant(f"{prefix}{i}w", weight.numpy())
                b = constant(f"{prefix}{i}b", bias.numpy())
                x = node("Gemm", x, w, b, out=f"{prefix}{i}y", transB=1)
                kind = last if i + 1 == len(layers) else "Relu"
                x = node(kind, x, out=f"{prefix}{i}a")
            return x

        self.tables = model.tables
        batch, vectors, dim = case.batch, len(model.tables) + 1, model.tables[0].shape[1]
        inputs.append(value("dense", floats, [batch, model.bottom[0][0].shape[1]]))
        x = mlp("dense", "bottom", model.bottom, "Relu")
        axis = constant("one", numpy.array([1]))
        features = [x]
        for t, table in enumerate(model.tables):
            inputs.append(value(f"table{t}", floats, list(table.shape)))
            inputs.append(value(f"ids{t}", longs, [batch, None]))
            rows = node("Gather", f"table{t}", f"ids{t}", out=f"rows{t}")
            features.append(node("ReduceSum", rows, axis, out=f"bag{t}", keepdims=0))
        stacked = node("Concat", *features, out="side", axis=1)
        shape = constant("shape", numpy.array([batch, vectors, dim]))
        stacked = node("Reshape", stacked, shape, out="stacked")
        turned = node("Transpose", stacked, out="turned", perm=[0, 2, 1])
        products = node("MatMul", stacked, turned, out="products")
        flat = constant("flat", numpy.array([batch, vectors * vectors]))
        products = node("Reshape", products, flat, out="flatter")
        row, column = numpy.tril_indices(vectors, -1)
        lower = constant("lower", (row * vectors + column).astype(numpy.int64))
        products = node("Gather", products, lower, out="pairs", axis=1)
        met = node("Concat", x, products, out="met", axis=1)
        score = mlp(met, "top", model.top, "Sigmoid")
        graph = helper.make_graph(nodes, "dlrm", inputs, [value(score, floats, None)], constants)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = case.threads
        try:
            self.session = onnxruntime.InferenceSession(
                made.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise Unavailable(f"onnxruntime: {error}") from None
        self.score, self.batch = score, batch

    def prepare(self, ids, offsets, dense):
        """A binding with all tensors of the batch: nothing is copied when it runs."""
        binding = self.session.io_binding()
        kept = [numpy.ascontiguousarray(dense)]
        bind = lambda name, array: binding.bind_input(
            name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data
        )
        bind("dense", kept[0])
        per_table = ids.reshape(len(self.tables), self.batch, -1)
        for t, table in enumerate(self.tables):
            kept.append(numpy.ascontiguousarray(per_table[t]))
            bind(f"ids{t}", kept[-1])
            bind(f"table{t}", table.numpy())
        binding.bind_output(self.score)
        return binding, kept

    def run(self, batch):
        self.session.run_with_iobinding(batch[0])
        return [torch.from_numpy(batch[0].copy_outputs_to_cpu()[0])]


class OpenVino:
    def __init__(self, model, case):
        try:
            import openvino
            from openvino import opset13 as op
        except ImportError as error:
            raise Unavailable(str(error)) from None
        batch, vectors, dim = case.batch, len(model.tables) + 1, model.tables[0].shape[1]
        constant = lambda array: op.constant(array, shared_memory=True)

        def mlp(x, layers, last):
            for i, (weight, bias) in enumerate(layers):
                x = op.matmul(x, constant(weight.numpy()), False, True)
                x = op.add(x, constant(bias.numpy()))
                x = last(x) if i + 1 == len(layers) else op.relu(x)
            return x

        dense = op.parameter([batch, model.bottom[0][0].shape[1]], numpy.float32)
        parameters, x = [dense], mlp(dense, model.bottom, op.relu)
        features = [x]
        for table in model.tables:
            ids, offsets = op.parameter([-1], numpy.int32), op.parameter([batch], numpy.int32)
            parameters += [ids, offsets]
            bag = op.embedding_bag_offsets_sum(constant(table.numpy()), ids, offsets)
            features.append(bag)
        shape = op.constant(numpy.array([batch, vectors, dim]))
        stacked = op.reshape(op.concat(features, 1), shape, False)
        products = op.matmul(stacked, stacked, False, True)
        flat = op.reshape(products, op.constant(numpy.array([batch, vectors * vectors])), False)
        row, column = numpy.tril_indices(vectors, -1)
        lower = op.constant((row * vectors + column).astype(numpy.int64))
        pairs = op.gather(flat, lower, op.constant(numpy.int64(1)))
        score = mlp(op.concat([x, pairs], 1), model.top, op.sigmoid)
        made = openvino.Model([score], parameters, "dlrm")
        config = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": case.threads,
            "INFERENCE_PRECISION_HINT": "f32",
        }
        try:
            self.request = openvino.compile_model(made, "CPU", config).create_infer_request()
        except Exception as error:
            raise Unavailable(f"openvino: {error}") from None
        self.tables, self.batch, self.tensor = len(model.tables), batch, openvino.Tensor

    def prepare(self, ids, offsets, dense):
        made = [numpy.ascontiguousarray(dense)]
        for t in range(self.tables):
            at = offsets[t * self.batch : (t + 1) * self.batch + 1]
            made.append(ids[at[0] : at[-1]].astype(numpy.int32))
            made.append((at[:-1] - at[0]).astype(numpy.int32))
        return [self.tensor(array, shared_memory=True) for array in made], made

    def run(self, batch):
        for i, tensor in enumerate(batch[0]):
            self.request.set_input_tensor(i, tensor)
        self.request.infer()
        return [torch.from_numpy(self.request.get_output_tensor(0).data.copy())]


RUNTIMES = {"ONNX Runtime fp32": OnnxRuntime, "OpenVINO fp32": OpenVino}

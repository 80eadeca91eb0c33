"""Other runtimes as peers of whole models: ONNX Runtime and OpenVINO.

Both get the model as a graph of their own best operators, made here. Every case has bags of one
length, so a bag is a Gather and a sum over its ids for ONNX Runtime, which has no operator for bags;
OpenVINO has one. Tables are not copied.
"""

import numpy
import torch


class Unavailable(RuntimeError):
    """The runtime is not installed, or does not take the model."""


class OnnxGraph:
    """A DLRM as an ONNX graph: the parts that do not depend on how its tables come in."""

    def __init__(self):
        try:
            import onnxruntime
            from onnx import TensorProto, helper
        except ImportError as error:
            raise Unavailable(str(error)) from None
        self.runtime, self.helper = onnxruntime, helper
        self.kinds = {numpy.float32: TensorProto.FLOAT, numpy.int64: TensorProto.INT64}
        self.nodes, self.inputs, self.constants = [], [], []

    def input(self, name, kind, shape):
        self.inputs.append(self.helper.make_tensor_value_info(name, self.kinds[kind], shape))
        return name

    def constant(self, name, array):
        kind = self.kinds[array.dtype.type]
        self.constants.append(self.helper.make_tensor(name, kind, array.shape, array.tobytes(), raw=True))
        return name

    def node(self, kind, *names, out, **attributes):
        self.nodes.append(self.helper.make_node(kind, names, [out], **attributes))
        return out

    def mlp(self, x, prefix, layers, last):
        for i, (weight, bias) in enumerate(layers):
            w = self.constant(f"{prefix}{i}w", weight.numpy())
            b = self.constant(f"{prefix}{i}b", bias.numpy())
            x = self.node("Gemm", x, w, b, out=f"{prefix}{i}y", transB=1)
            kind = last if i + 1 == len(layers) else "Relu"
            x = self.node(kind, x, out=f"{prefix}{i}a")
        return x

    def scores(self, x, stacked, vectors, top):
        """Dot interaction of `stacked` [samples, vectors, dim], whose first vector is `x`, and the top MLP."""
        turned = self.node("Transpose", stacked, out="turned", perm=[0, 2, 1])
        products = self.node("MatMul", stacked, turned, out="products")
        flat = self.constant("flat", numpy.array([-1, vectors * vectors]))
        products = self.node("Reshape", products, flat, out="flatter")
        row, column = numpy.tril_indices(vectors, -1)
        lower = self.constant("lower", (row * vectors + column).astype(numpy.int64))
        pairs = self.node("Gather", products, lower, out="pairs", axis=1)
        met = self.node("Concat", x, pairs, out="met", axis=1)
        return self.mlp(met, "top", top, "Sigmoid")

    def session(self, output, threads):
        helper = self.helper
        outputs = [helper.make_tensor_value_info(output, self.kinds[numpy.float32], None)]
        graph = helper.make_graph(self.nodes, "dlrm", self.inputs, outputs, self.constants)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        options = self.runtime.SessionOptions()
        options.intra_op_num_threads = threads
        try:
            return self.runtime.InferenceSession(
                made.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise Unavailable(f"onnxruntime: {error}") from None


class OnnxRuntime:
    def __init__(self, model, case):
        graph = OnnxGraph()
        self.tables = model.tables
        batch, vectors, dim = case.batch, len(model.tables) + 1, model.tables[0].shape[1]
        dense = graph.input("dense", numpy.float32, [batch, model.bottom[0][0].shape[1]])
        x = graph.mlp(dense, "bottom", model.bottom, "Relu")
        axis = graph.constant("one", numpy.array([1]))
        features = [x]
        for t, table in enumerate(model.tables):
            graph.input(f"table{t}", numpy.float32, list(table.shape))
            graph.input(f"ids{t}", numpy.int64, [batch, None])
            rows = graph.node("Gather", f"table{t}", f"ids{t}", out=f"rows{t}")
            features.append(graph.node("ReduceSum", rows, axis, out=f"bag{t}", keepdims=0))
        side = graph.node("Concat", *features, out="side", axis=1)
        shape = graph.constant("shape", numpy.array([batch, vectors, dim]))
        stacked = graph.node("Reshape", side, shape, out="stacked")
        self.score, self.batch = graph.scores(x, stacked, vectors, model.top), batch
        self.session = graph.session(self.score, case.threads)

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

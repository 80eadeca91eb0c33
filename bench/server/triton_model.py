"""Triton's Python backend around dlrm.py: the requests of a dynamic batch are one batch of the model."""

import os
import sys

# The backend's own path has the repository and site-packages only.
sys.path += os.environ["DLRM_PATH"].split(os.pathsep)

import torch
import triton_python_backend_utils as utils
from torch.utils.dlpack import from_dlpack

import dlrm


class TritonPythonModel:
    def initialize(self, args):
        self.model = dlrm.load_from_environment()

    def execute(self, requests):
        tensor = lambda request, name: from_dlpack(utils.get_input_tensor_by_name(request, name).to_dlpack())
        dense = [tensor(request, "dense") for request in requests]
        sparse = [tensor(request, "sparse") for request in requests]
        if len(requests) == 1:
            scores = [self.model(dense[0], sparse[0])]
        else:
            whole = self.model(torch.cat(dense), torch.cat(sparse))
            scores = whole.split([len(part) for part in dense])
        answer = lambda part: utils.InferenceResponse([utils.Tensor("scores", part.numpy())])
        return [answer(part) for part in scores]

"""Checksums of tensors, wherever they lie."""

import torch
import xxhash

from gemini_lab.engine.inputs import tensor_sum


def feed(digest: xxhash.xxh3_64, tensor: torch.Tensor) -> None:
    """Add a tensor's bytes to a digest, or on a device a checksum of them, made there."""
    tensor = tensor.detach()
    if tensor.is_sparse:
        tensor = tensor.coalesce()
        feed(digest, tensor.indices())
        tensor = tensor.values()
    is_here = tensor.device.type == "cpu"
    read = tensor.contiguous() if is_here else tensor_sum(tensor).cpu().view(1)
    digest.update(read.reshape(-1).view(torch.uint8).numpy().data)

"""The peer FSDP2 with CPU offload: PyTorch's fully_shard in one process.

Settings of its documentation: a group for each block and one for the rest, CPUOffloadPolicy with
pinned memory, parameters in BF16 and gradients reduced in FP32, a fused AdamW over the FP32
parameters on the host. One process, so that nothing is sharded; the weights still leave the device
after each use. Without a device it runs on the CPU with gloo, to test the program.
"""

import gpt2
import shape as shapes
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard


def main():
    shape = shapes.parse()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo", rank=0,
                            world_size=1, store=dist.HashStore())
    model = gpt2.Gpt2(shape)
    options = {
        "mesh": init_device_mesh(device, (1,)),
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        "offload_policy": CPUOffloadPolicy(pin_memory=device == "cuda"),
    }
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(tokens, labels):
        loss = model(tokens, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    gpt2.run("fsdp2", shape, device, "bf16", step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

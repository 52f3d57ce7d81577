"""The peer DeepSpeed ZeRO-Offload, with the settings of its tutorial: stage 2, the optimizer on the
CPU (DeepSpeedCPUAdam), contiguous gradients, and communication that overlaps.

The weights stay on the device in BF16, so it needs 2 bytes of device memory for each parameter.
This program has not run yet: DeepSpeed is not in third_party/.oracles.
"""

import os

import deepspeed
import gpt2
import shape as shapes
import torch


def settings(shape):
    return {
        "train_micro_batch_size_per_gpu": shape.samples,
        "gradient_accumulation_steps": 1,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": {
            "stage": 2,
            "offload_optimizer": {"device": "cpu", "pin_memory": True},
            "contiguous_gradients": True,
            "overlap_comm": True,
        },
    }


def main():
    shape = shapes.parse()
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1",
                        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}.items():
        os.environ.setdefault(name, value)
    model = gpt2.Gpt2(shape)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                      config=settings(shape))

    def step(tokens, labels):
        loss = engine(tokens, labels)
        engine.backward(loss)
        engine.step()
        return loss

    gpt2.run("zero_offload", shape, "cuda", "bf16", step)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()

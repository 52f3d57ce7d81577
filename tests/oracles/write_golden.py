"""Regenerates the golden files from current results of PyTorch and transformers.

usage: tests/oracles/run_with_torch.sh tests/oracles/write_golden.py
"""

import tempfile

import golden
import jobs
import oracle

if __name__ == "__main__":
    for job in jobs.JOBS:
        with tempfile.TemporaryDirectory() as folder:
            inputs = jobs.write_inputs(job, folder)
            golden.write(job, oracle.summary(job, inputs, oracle.train(job, inputs)))
        print("wrote", golden.path(job))

#!/usr/bin/env python3
"""Plants bugs in the product, one at a time, and reports which of them the tests notice.

Every bug is an edit of one or two source files, after which the program still builds and runs but
one test must fail. The files are restored afterwards, also after Ctrl-C. Run the script in a
separate clone: it builds the product with every bug.

    tests/planted_bugs.py            plants all bugs
    tests/planted_bugs.py stale tree plants the bugs whose names contain one of the words
    tests/planted_bugs.py --list     lists the bugs

Exit code: 0 if all were noticed, 1 if some were not, 2 if a bug no longer fits the sources or the
tests fail without any.
"""

import argparse
import collections
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TIMEOUT_S = 1200

Edit = collections.namedtuple("Edit", "path before after")
# `test` is a Bazel target; `cases` are its test cases, all of them if empty.
Bug = collections.namedtuple("Bug", "name what edits test cases")

MATRIX = "//tests:verify_matrix_test"
THREE_PARTS = ["VerifyMatrix.test_three_parts_on_two_workers"]
TWO_SERVERS = ["VerifyMatrix.test_two_servers"]
MICRO_BATCHES = ["VerifyMatrix.test_micro_batches"]
SEALED = ["VerifyMatrix.test_sealed_with_exact_lagged_and_no_clipping"]
BOTH_AXES = ["VerifyMatrix.test_weights_along_both_axes"]
FORWARD_AXIS = ["VerifyMatrix.test_weights_along_the_forward_axis"]
DECODE_ONCE = ["VerifyMatrix.test_weights_that_are_decoded_once"]
RESIDUALS = ["VerifyMatrix.test_residuals_at_the_servers_and_at_the_workers"]
STASH = ["VerifyMatrix.test_stash_codecs_on_host_and_device"]

# Adds the operand, read in place, to the sum in registers.
ADD_STRIP = "steps.push_back({fp32 ? StepKind::kAddFp32 : StepKind::kAddBf16, elements});"

BUGS = [
    Bug("swapped-tree-of-parts", "the server sums three parts as 1 + 2 instead of 2 + 1",
        [Edit("optimizer/reduction_plan.cc", "const uint32_t left = LeftLeaves(node.count);",
              "const uint32_t left = node.count - LeftLeaves(node.count);")],
        MATRIX, THREE_PARTS),
    Bug("swapped-tree-of-micro-batches", "the worker adds micro-batches from the last to the first",
        [Edit("worker/relay/relay.cc",
              "const uint32_t leaf = static_cast<uint32_t>(item % g_);",
              "const uint32_t leaf = g_ - 1 - static_cast<uint32_t>(item % g_);")],
        MATRIX, MICRO_BATCHES),
    Bug("dropped-use", "the second use of a tied tensor is received but not added",
        [Edit("optimizer/reduction_plan.cc",
              "EPS_RETURN_IF_ERROR(AddRightBranch(use, root, /*buffer=*/0));",
              "for (const auto& [key, i] : by_place_) if (key.first == use) used_[i] = true;")],
        MATRIX, TWO_SERVERS),
    Bug("doubled-part", "one contribution of a sum is added twice",
        [Edit("optimizer/reduction_plan.cc", ADD_STRIP, ADD_STRIP + "\n" + ADD_STRIP)],
        MATRIX, THREE_PARTS),
    Bug("lost-part", "one contribution of a sum is not added",
        [Edit("optimizer/reduction_plan.cc", ADD_STRIP, "continue;")],
        MATRIX, THREE_PARTS),
    Bug("wrong-mask-stage", "all stages use the dropout mask of stage 0",
        [Edit("worker/models/stage_inputs.cc", "key.stage = static_cast<uint16_t>(stage.value());",
              "key.stage = 0;")],
        MATRIX, TWO_SERVERS),
    Bug("wrong-mask-micro-batch", "all micro-batches of a step use the same dropout mask",
        [Edit("worker/models/stage_inputs.cc", "key.micro_batch = batch.index;",
              "key.micro_batch = 0;")],
        MATRIX, MICRO_BATCHES),
    Bug("other-mask-in-backward", "recomputation uses a dropout mask of another site",
        [Edit("worker/models/gpt2.cc",
              "const Tensor dm = Dropped(batch, kMlpSite, config().resid_pdrop, dy);",
              "const Tensor dm = Dropped(batch, kProjectionSite, config().resid_pdrop, dy);")],
        MATRIX, TWO_SERVERS),
    Bug("wrong-bias-correction", "the second moment is corrected with beta1",
        [Edit("eps_server/core/steps/lead.cc",
              "set_bias_correction2(1.0 - IntegerPower(spec_.optimizer.beta2, update));",
              "set_bias_correction2(1.0 - IntegerPower(spec_.optimizer.beta1, update));")],
        MATRIX, TWO_SERVERS),
    Bug("late-learning-rate", "a step updates with the previous learning rate",
        [Edit("eps_server/core/steps/lead.cc",
              "spec_.optimizer.lr, update, spec_.training.steps));",
              "spec_.optimizer.lr, update - 1, spec_.training.steps));")],
        MATRIX, TWO_SERVERS),
    Bug("older-norm", "lagged clipping uses the norm of two steps ago",
        [Edit("eps_server/core/steps/lead.cc", "norm = NormOf(step - 1);",
              "norm = NormOf(step - 2);")],
        MATRIX, TWO_SERVERS),
    Bug("norm-without-a-chunk", "the norm omits the first chunk",
        [Edit("eps_server/core/steps/lead.cc", "for (double s : open.sum_squares) sum += s;",
              "for (size_t i = 1; i < open.sum_squares.size(); ++i) sum += open.sum_squares[i];")],
        MATRIX, SEALED),
    Bug("stale-fetch", "the server serves one encoding for two versions",
        [Edit("optimizer/chunk_compute.cc",
              "  return EncodeChunk(codec, chunk, options, arrays.weights);",
              "  static auto* const mu = new Mutex;\n"
              "  static auto* const cache = new std::map<uint32_t, Bytes>;\n"
              "  const MutexLock lock(mu);\n"
              "  Bytes& encoded = (*cache)[chunk.id.value()];\n"
              "  if (version.value() % 2 == 1 || encoded.size() == 0) {\n"
              "    EncodeOptions uncharged = options;\n"
              "    uncharged.account = nullptr;\n"
              "    encoded = EncodeChunk(codec, chunk, uncharged, arrays.weights);\n"
              "  }\n"
              "  return encoded;"),
         Edit("optimizer/chunk_compute.cc", "#include <cstring>\n",
              "#include <cstring>\n#include <map>\n"),
         Edit("optimizer/chunk_compute.cc", '#include "base/numerics/flush_denormals.h"\n',
              '#include "base/numerics/flush_denormals.h"\n#include "base/mutex.h"\n')],
        MATRIX, TWO_SERVERS),
    Bug("weights-of-another-stage", "two equally shaped blocks are fetched in swapped places",
        [Edit("worker/relay/weight_stream.cc",
              "client_->FetchStage(visit.stage, version_",
              "client_->FetchStage(StageId(visit.stage.value() == 1 || visit.stage.value() == 2\n"
              "                                        ? 3 - visit.stage.value()\n"
              "                                        : visit.stage.value()),\n"
              "                            version_")],
        MATRIX, TWO_SERVERS),
    Bug("data-of-another-part", "every part trains on the samples of part 0",
        [Edit("worker/relay/relay.cc", "batches->Get(start_.step, part.value() * g_ + j)",
              "batches->Get(start_.step, part.value() * 0 + j)")],
        MATRIX, THREE_PARTS),
    Bug("wrong-axis", "weights are always encoded along rows",
        [Edit("compression/codec_table.cc",
              "axes.has_second = axes.has_second && weights(chunk).traits().block > 1;",
              "axes.has_second = axes.has_second && weights(chunk).traits().block > 1;\n"
              "  axes.first = Axis::kRow;")],
        MATRIX, FORWARD_AXIS),
    Bug("swapped-copies", "a backward pass receives its two copies swapped",
        [Edit("compression/codec_table.cc",
              "axes.has_second = axes.has_second && weights(chunk).traits().block > 1;",
              "axes.has_second = axes.has_second && weights(chunk).traits().block > 1;\n"
              "  if (axes.has_second) std::swap(axes.first, axes.second);"),
         Edit("compression/codec_table.cc", "#include <string>\n",
              "#include <string>\n#include <utility>\n")],
        MATRIX, BOTH_AXES),
    Bug("unused-second-copy", "one backward product uses the copy of the forward pass",
        [Edit("worker/models/gpt2.cc", "at::mm(dpacked, wt[u_.attn_weight].t())",
              "at::mm(dpacked, w[u_.attn_weight].t())")],
        MATRIX, BOTH_AXES),
    Bug("forward-copy-at-the-head", "the last stage uses only the copy of the forward pass",
        [Edit("worker/models/gpt2.cc", "LossBlock(w[lm_weight_], for_input_gradient[lm_weight_],",
              "static_cast<void>(for_input_gradient);\n"
              "      LossBlock(w[lm_weight_], w[lm_weight_],")],
        MATRIX, BOTH_AXES),
    Bug("not-rounded-when-decoded", "decode_once rounds nothing",
        [Edit("worker/client/stages/stage_sink.cc", "RoundToBf16(tile, segment.cols, out);", ";")],
        MATRIX, DECODE_ONCE),
    Bug("stash-not-rounded-at-hand", "an input that skips the stash is not rounded",
        [Edit("worker/exec/torch_program.cc", "DecodeFromStash(stash_, encoded, wide);", ";")],
        MATRIX, STASH),
    Bug("short-warm-up", "the warm-up of gradients ends a step early",
        [Edit("compression/codec_table.h", "step.value() > warmup_steps_",
              "step.value() >= warmup_steps_")],
        MATRIX, BOTH_AXES),
    Bug("dropped-residual", "residuals are zeroed instead of added",
        [Edit("worker/client/pusher.cc",
              "DecodeChunk(**opened, chunk, out);",
              "std::memset(out, 0, chunk.elements * sizeof(float));")],
        MATRIX, RESIDUALS),
    Bug("exact-residual", "residuals are stored without their codec's rounding",
        [Edit("compression/codec_table.cc",
              'FindFor("quantization.residual", spec.codecs.residual)',
              'FindFor("quantization.residual", "fp32")')],
        MATRIX, RESIDUALS),
]


def apply(edits):
    """Edits the files; returns their old contents.

    Raises ValueError unless each place occurs exactly once.
    """
    old = {}
    try:
        for edit in edits:
            path = ROOT / edit.path
            text = path.read_text(encoding="utf-8")
            if text.count(edit.before) != 1:
                raise ValueError(f"{edit.path} holds {text.count(edit.before)} copies of: "
                                 f"{edit.before}")
            old.setdefault(path, text)
            path.write_text(text.replace(edit.before, edit.after), encoding="utf-8")
    except ValueError:
        restore(old)
        raise
    return old


def restore(old):
    for path, text in old.items():
        path.write_text(text, encoding="utf-8")


def bazel(*arguments):
    return subprocess.run(["bazel", *arguments], cwd=ROOT, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False, timeout=TIMEOUT_S)


def passes(test, cases):
    """Returns whether the test passes. Raises RuntimeError if it could not run."""
    # Bazel exits with 3 if a test failed.
    code = bazel("test", "--cache_test_results=no", "--test_output=errors", test,
                 "--test_sharding_strategy=disabled",
                 *[f"--test_arg={case}" for case in cases]).returncode
    if code not in (0, 3):
        raise RuntimeError(f"bazel's exit code {code}")
    return code == 0


def verdict(bug):
    """Returns 'noticed', 'NOT NOTICED', or the reason why there is no verdict."""
    old = apply(bug.edits)
    try:
        build = bazel("build", bug.test)
        if build.returncode != 0:
            return "does not build:\n" + build.stdout.decode(errors="replace")[-2000:]
        return "NOT NOTICED" if passes(bug.test, bug.cases) else "noticed"
    finally:
        restore(old)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="plant only bugs whose names contain one of them")
    parser.add_argument("--list", action="store_true", help="list the bugs")
    options = parser.parse_args()
    bugs = [bug for bug in BUGS
            if not options.words or any(word in bug.name for word in options.words)]
    if options.list:
        for bug in bugs:
            print(f"{bug.name}: {bug.what} ({', '.join(edit.path for edit in bug.edits)})")
        return 0
    for test, cases in sorted({(bug.test, tuple(bug.cases)) for bug in bugs}):
        if not passes(test, cases):
            print(f"{test} {' '.join(cases)}: fails without any planted bug", file=sys.stderr)
            return 2
    results = collections.Counter()
    for number, bug in enumerate(bugs, start=1):
        start = time.monotonic()
        try:
            result = verdict(bug)
        except (ValueError, RuntimeError) as error:
            result = f"cannot tell: {error}"
        results[result if result in ("noticed", "NOT NOTICED") else "unknown"] += 1
        print(f"{number}/{len(bugs)} {bug.name}: {result} "
              f"({bug.test}, {time.monotonic() - start:.0f} s)", flush=True)
    print(", ".join(f"{count} {what}" for what, count in sorted(results.items())))
    if results["unknown"]:
        return 2
    return 1 if results["NOT NOTICED"] else 0


if __name__ == "__main__":
    sys.exit(main())

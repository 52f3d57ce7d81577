#ifndef EPS_VERIFY_VERIFY_H_
#define EPS_VERIFY_VERIFY_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verify/plant.h"

namespace eps {

// The run to compare, and the inputs of the comparison.
struct VerifyOptions {
  std::string run;                // the output folder of a run
  std::vector<std::string> data;  // empty for the files that the run read
  std::string weights;  // file of initial weights; empty for the file that the run started from
  int threads = 0;      // LibTorch's threads; 0 means as many as each worker of the run had
  // "cuda" or "cuda:N": computes with the worker's stage programs on that device. "cpu": with the
  // independent reference, unless `stage_programs` is set.
  std::string device = "cpu";
  bool stage_programs = false;
  bool relaxed = false;  // compares within bounds (verify/relaxed_comparison.h)
  uint64_t steps = 0;    // number of steps to compare; 0 means all steps of the job
  Plant plant = Plant::kNone;
};

// The parsed arguments of the program.
struct VerifyCommand {
  VerifyOptions options;
  std::string text;  // if not empty, print it and exit (--help, --plant=list)
};
// Returns InvalidArgument, naming the argument.
absl::StatusOr<VerifyCommand> ParseVerifyArguments(const std::vector<std::string>& arguments);

// Returns InvalidArgument if workers of a run did not compute on a CPU, or if nothing tells. Their
// compute profiles, `recorded`, tell. A run that recorded none has `device` as its worker.device:
// "auto" is a CPU only where it is one on this machine, whose "auto" has the profile
// `auto_profile`.
absl::Status CheckComputedOnCpu(const std::vector<std::string>& recorded, const std::string& device,
                                const std::string& auto_profile);

// Returns InvalidArgument if a worker of a run computed in another way than this device does, whose
// profile is `here`, or if the run does not tell.
absl::Status CheckComputedLike(const std::vector<std::string>& recorded, const std::string& here);

// Recomputes the run step by step in this process, compares weights, moments and figures of each
// step bit for bit, or within bounds, and writes its findings to `out`. Stops after the first step
// that differs. Returns true if everything is equal, or within the bounds. Uses LibTorch as
// NewReferenceModel does (verify/reference_model.h).
//
// Returns InvalidArgument for a job that cannot be verified (a synthetic model, workers on another
// kind of device) or data files that cannot be read as tokens; NotFound for a missing file;
// DataLoss or FailedPrecondition for a file that is malformed or does not belong to the run.
absl::StatusOr<bool> RunVerify(const VerifyOptions& options, std::ostream* out);

}  // namespace eps

#endif  // EPS_VERIFY_VERIFY_H_

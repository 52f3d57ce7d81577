#ifndef EPS_VERIFY_VERIFY_H_
#define EPS_VERIFY_VERIFY_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "verify/plant.h"

namespace eps {

struct VerifyOptions {
  std::string run;                // the output folder of a run
  std::vector<std::string> data;  // empty: the files that the run read
  std::string weights;            // initial weights; empty: what the run began with
  int threads = 0;                // of LibTorch; 0: what each worker of the run had
  uint64_t steps = 0;             // compare so many; 0: all of the job
  Plant plant = Plant::kNone;
};

// What the arguments of the program ask for.
struct VerifyCommand {
  VerifyOptions options;
  std::string text;  // not empty: print it instead (--help, --plant=list)
};
// InvalidArgument names the argument.
absl::StatusOr<VerifyCommand> ParseVerifyArguments(const std::vector<std::string>& arguments);

// Recomputes the run step by step in this process and compares weights, moments and figures of each
// step bit for bit; writes what it finds to `out`. Stops after the first step with a difference.
// True if all is equal. Uses LibTorch as NewReferenceGpt2 says (verify/reference_model.h).
// InvalidArgument: a job that cannot be verified (a synthetic model, CUDA workers), or data files
// that cannot be read as tokens; NotFound: a file is missing; DataLoss, FailedPrecondition: a file
// is malformed, or is not the run's.
absl::StatusOr<bool> RunVerify(const VerifyOptions& options, std::ostream* out);

}  // namespace eps

#endif  // EPS_VERIFY_VERIFY_H_

#ifndef EPS_VERIFY_REFERENCE_MODELS_H_
#define EPS_VERIFY_REFERENCE_MODELS_H_

// The models that the reference computes.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/job/job_spec.h"
#include "compression/reference_codec.h"
#include "verify/reference_model.h"

namespace eps {

// Settings of NewReferenceModel.
struct ReferenceOptions {
  // LibTorch's intra-op threads. Must equal the worker's, because the bits depend on it.
  int threads = 1;
  // Added to the stage in the key of every dropout mask; nonzero only for a planted mistake.
  uint16_t mask_stage_shift = 0;
};

// Returns the job's model in plain LibTorch on the CPU, as one autograd graph. It shares no code
// with the worker's program. The activation that a stage passes to the next one is rounded as
// worker.stash_codec says. `spec` must outlive the model.
//
// The calling thread flushes denormals from this call on, and so do the threads that LibTorch
// starts from it: call it before anything else uses LibTorch.
//
// Returns InvalidArgument if there is no reference for the job's model.type; Unimplemented if the
// reference does not know the stash codec; FailedPrecondition if the job's tensors are not those of
// its model, or if LibTorch's threads were started earlier and do not flush denormals.
absl::StatusOr<std::unique_ptr<ReferenceModel>> NewReferenceModel(const JobSpec& spec,
                                                                  const ReferenceOptions& options);

// The types that NewReferenceModel knows, by their names.
std::vector<std::string> ReferenceModelTypes();
bool HasReferenceModel(ModelType type);

// Makes NewReferenceModel compute the models of one type. The file of each reference defines one of
// these as a static object; no other file names it.
class ReferenceModelRegistration {
 public:
  // Makes the model of a spec with the layout of its type. `stash` rounds the activations between
  // stages; null leaves them as they are.
  using Factory = std::unique_ptr<ReferenceModel> (*)(const JobSpec& spec,
                                                      uint16_t mask_stage_shift,
                                                      std::unique_ptr<ReferenceCodec> stash);
  ReferenceModelRegistration(ModelType type, Factory factory);
};

}  // namespace eps

#endif  // EPS_VERIFY_REFERENCE_MODELS_H_

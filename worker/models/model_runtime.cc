#include "worker/models/model_runtime.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/exec/torch_runtime.h"
#include "worker/models/model_stages.h"
#include "worker/relay/stash_codec.h"
#include "worker/relay/synthetic_runtime.h"

namespace eps {

absl::StatusOr<std::unique_ptr<StageRuntime>> NewModelRuntime(const JobSpec& spec,
                                                              const RuntimeOptions& options,
                                                              std::chrono::milliseconds pass_time,
                                                              MemoryAccount* account) {
  EPS_RETURN_IF_ERROR(StashCodec::Find(spec.codecs.stash).status());
  if (spec.model.type == ModelType::kSynthetic) {
    return NewSyntheticRuntime(spec, account, pass_time);
  }
  if (pass_time.count() > 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "worker.pass_time is ", pass_time.count(), " ms, expected 0: only models of type ",
        "eps-synthetic wait, this job's is ", NameOf(spec.model.type)));
  }
  return NewTorchRuntime(spec, NewModelStage, options, account);
}

}  // namespace eps

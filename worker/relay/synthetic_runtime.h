#ifndef EPS_WORKER_RELAY_SYNTHETIC_RUNTIME_H_
#define EPS_WORKER_RELAY_SYNTHETIC_RUNTIME_H_

#include <chrono>
#include <memory>

#include "base/job/job_spec.h"
#include "base/memory_account.h"
#include "worker/relay/stage_program.h"

namespace eps {

// Creates the synthetic model (spec.model.type synthetic), on the CPU and without LibTorch. `spec`
// and `account` (may be null) must outlive the runtime. For measurements, a forward pass of a
// micro-batch over a stage lasts at least `pass_time`; a backward pass, which recomputes the
// forward pass, lasts three times that. The runtime sleeps for the rest. REQUIRES
// StashCodec::Find(spec.codecs.stash).ok().
std::unique_ptr<StageRuntime> NewSyntheticRuntime(
    const JobSpec& spec, MemoryAccount* account,
    std::chrono::milliseconds pass_time = std::chrono::milliseconds(0));

}  // namespace eps

#endif  // EPS_WORKER_RELAY_SYNTHETIC_RUNTIME_H_

#include "eps_server/core/push/push_texts.h"

#include "absl/strings/str_cat.h"
#include "eps_server/core/push/credit_book.h"

namespace eps {

std::string NonfiniteText(const JobFacts& job, const v1::ContributionKey& key, uint64_t element,
                          const absl::Status& status) {
  std::string tensor = "a tensor";
  for (const Segment& s : job.chunks.chunk(ChunkId(key.chunk())).segments) {
    if (element >= s.offset && element < s.offset + s.elements()) {
      tensor = job.spec.tensors[s.tensor.value()].name;
    }
  }
  return absl::StrCat("step ", key.step(), ": the gradient of ", tensor, " (stage ",
                      job.StageName(StageId(key.use_stage())), ", part ", key.part_first(),
                      ") is not finite: ", std::string(status.message()),
                      "; lower optimizer.lr, raise lr_scheduler.warmup_steps, or look at the data; "
                      "training.nonfinite=skip with training.mode=sealed leaves such steps out");
}

absl::Status CheckNonfinite(const JobFacts& job, const v1::PushHeader& header) {
  const uint64_t elements = job.chunks.chunk(ChunkId(header.key().chunk())).elements;
  if (header.nonfinite_element() < elements && header.bytes() == 0 &&
      header.residual_bytes() == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("chunk ", header.key().chunk(), ": element ", header.nonfinite_element(), " of ",
                   elements, " is not finite, and ", header.bytes(), " + ", header.residual_bytes(),
                   " bytes follow; expected an element of the chunk and no payload"));
}

std::string DamagedText(const v1::ContributionKey& key) {
  return absl::StrCat("Push: chunk ", key.chunk(), ", part ", key.part_first(),
                      ": its payload arrived damaged ", DamageCounts::kFinal,
                      " times from the same worker; check the memory and the network of that "
                      "worker");
}

std::string LatePayloadText(const JobFacts& job, const v1::ContributionKey& key) {
  return absl::StrCat("Push: chunk ", key.chunk(), ", part ", key.part_first(),
                      ": its payload was not complete within ",
                      static_cast<double>(job.limits.push_timeout_ms) / 1e3,
                      " s of its credit (servers.push_timeout); offer it again");
}

}  // namespace eps

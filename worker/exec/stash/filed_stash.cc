#include "worker/exec/stash/filed_stash.h"

#include "ATen/ops/empty.h"
#include "base/status_macros.h"
#include "worker/exec/queues/device_queues.h"

namespace eps {
namespace {

using at::Tensor;

absl::Span<const uint8_t> BytesOf(const Tensor& host) {
  return {static_cast<const uint8_t*>(host.const_data_ptr()), host.nbytes()};
}

}  // namespace

absl::StatusOr<ActivationPtr> FiledStash::Stash(const Tensor& tensor, bool is_encoded) {
  auto stashed = std::make_shared<FiledActivation>(file_, tensor, is_encoded);
  if (copies_ == nullptr) {
    EPS_ASSIGN_OR_RETURN(stashed->place, file_->Write(BytesOf(tensor)));
    return ActivationPtr(std::move(stashed));
  }
  stashed->before = copies_->CopyToStash(tensor);
  copied_.push_back(stashed);
  while (copied_.size() > kCopies) EPS_RETURN_IF_ERROR(WriteOldest());
  return ActivationPtr(std::move(stashed));
}

absl::Status FiledStash::WriteOldest() {
  const std::shared_ptr<FiledActivation> oldest = copied_.front().lock();
  copied_.pop_front();
  if (oldest == nullptr) return absl::OkStatus();  // nobody needs it
  WaitFor(*oldest->before.copied);
  EPS_ASSIGN_OR_RETURN(oldest->place, file_->Write(BytesOf(oldest->before.host)));
  oldest->before = DeviceCopies::Stashed();
  return absl::OkStatus();
}

void FiledStash::StartRead(const FiledActivation& stashed) {
  if (stashed.place.has_value()) file_->StartRead(*stashed.place);
}

absl::StatusOr<Tensor> FiledStash::Unstash(const FiledActivation& stashed) {
  if (!stashed.place.has_value()) return copies_->CopyFromStash(stashed.before);
  const auto options = at::TensorOptions().dtype(stashed.type);
  Tensor host = copies_ == nullptr ? at::empty(stashed.sizes, options)
                                   : copies_->stash_memory().New(stashed.sizes, stashed.type);
  const absl::Span<uint8_t> bytes(static_cast<uint8_t*>(host.mutable_data_ptr()), host.nbytes());
  EPS_RETURN_IF_ERROR(file_->Read(*stashed.place, bytes));
  if (copies_ == nullptr) return host;
  return copies_->CopyFromStash({host, copies_->queues().Record(DeviceQueue::kStashIn)});
}

}  // namespace eps

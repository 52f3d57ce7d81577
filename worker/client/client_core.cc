#include "worker/client/client_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace eps {
namespace {

uint64_t RandomNonce() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace

std::string JobView::StageText(StageId stage) const {
  return absl::StrCat(stage.value(), " (", spec.stages[stage.value()].name, ")");
}

uint64_t JobView::GenerationOf(PartId part) const {
  const auto it = leases.find(part);
  return it == leases.end() ? 0 : it->second;
}

ClientCore::ClientCore(ClientOptions client_options)
    : options(std::move(client_options)),
      nonce(RandomNonce()),
      frozen(options.frozen_cache_bytes),
      jitter_(static_cast<std::minstd_rand::result_type>(nonce)) {}

void ClientCore::Fail(const absl::Status& status) {
  if (!failure.ok()) return;
  failure = status;
  changed.NotifyAll();
  timer.NotifyAll();
}

void ClientCore::RpcDone() {
  --active_rpcs;
  changed.NotifyAll();
}

std::string ClientCore::NextRequestId() {
  return absl::StrFormat("%s-%016x-%d", options.client_name, nonce, next_request_++);
}

std::chrono::milliseconds ClientCore::BackOff(int attempt) {
  constexpr int64_t kFirstMs = 20;
  constexpr int64_t kLongestMs = 2000;
  const int64_t longest = std::min(kLongestMs, kFirstMs << std::min(attempt, 10));
  std::uniform_int_distribution<int64_t> draw(longest / 2, longest);
  return std::chrono::milliseconds(draw(jitter_));
}

absl::Status ClientCore::Away(absl::string_view address, TimePoint since,
                              absl::string_view waited_for, const absl::Status& last) const {
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - since;
  return absl::UnavailableError(absl::StrFormat(
      "server %s does not answer for %.1f s; waited for %s; last error: %s; check that the server "
      "runs and can be reached, or raise worker.rpc_timeout (%.1f s)",
      address, seconds.count(), waited_for, last.message(), options.rpc_timeout.count() / 1e3));
}

bool MayRepeat(absl::StatusCode code) {
  return code == absl::StatusCode::kOk || code == absl::StatusCode::kUnavailable ||
         code == absl::StatusCode::kCancelled || code == absl::StatusCode::kDeadlineExceeded;
}

}  // namespace eps

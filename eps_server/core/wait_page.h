#ifndef EPS_SERVER_CORE_WAIT_PAGE_H_
#define EPS_SERVER_CORE_WAIT_PAGE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "base/ids.h"
#include "eps/v1/control.pb.h"

namespace eps {

// The waits of a status page: what waits, what it waits for, and since when. For one thread.
class WaitPage {
 public:
  // Appends to `status`, which is borrowed.
  WaitPage(uint64_t now_ms, v1::StatusReply* status) : now_ms_(now_ms), status_(status) {}

  // Drops waits after the first kMaxWaits: people read this page.
  void Add(std::string what, std::string waits_for, uint64_t since_ms) {
    if (status_->waits_size() >= kMaxWaits) return;
    v1::Wait* wait = status_->add_waits();
    wait->set_what(std::move(what));
    wait->set_waits_for(std::move(waits_for));
    wait->set_seconds(static_cast<double>(now_ms_ - since_ms) / 1e3);
  }

  uint64_t now_ms() const { return now_ms_; }
  // Names what the open step waits for; requests that wait for the step repeat it.
  const std::string& step() const { return step_; }
  void set_step(std::string waits_for) { step_ = std::move(waits_for); }
  // Names what the update of a chunk waits for.
  std::string Update(ChunkId chunk) const { return update_ ? update_(chunk) : "nothing"; }
  void set_update(std::function<std::string(ChunkId)> waits_for) { update_ = std::move(waits_for); }

 private:
  static constexpr int kMaxWaits = 64;

  const uint64_t now_ms_;
  v1::StatusReply* const status_;
  std::string step_ = "nothing";
  std::function<std::string(ChunkId)> update_;
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_WAIT_PAGE_H_

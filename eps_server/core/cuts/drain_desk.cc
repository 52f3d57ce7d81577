#include "eps_server/core/cuts/drain_desk.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "storage/cuts/cut.h"

namespace eps {

void DrainDesk::On(const event::Drain&) {
  if (!Check()) outbox_->Raise(internal_event::DrainBegan());
}

void DrainDesk::On(const internal_event::MayEnd&) {
  if (!facts_.hold.draining_since_ms.has_value()) return;
  outbox_->Emit(
      effect::Drained{absl::StrCat("every server has the cut of step ", facts_.step - 1)});
}

// A job that is not open has on disk whatever it has: it cannot lose more than it lacks.
bool DrainDesk::Check() {
  if (!facts_.hold.draining_since_ms.has_value()) return false;
  const Step last(facts_.job.spec.training.steps);
  std::string why;
  if (!facts_.job.durable()) {
    why = "its state is not durable";
  } else if (facts_.state == v1::JOB_STATE_FAILED) {
    why = "the job failed";
  } else if (facts_.WaitsForState() || facts_.replays()) {
    why = "the job is not open";
  } else if (facts_.state == v1::JOB_STATE_DONE && facts_.cuts.everywhere.has_value() &&
             facts_.cuts.everywhere->step >= last) {
    why = "the job is finished, and every server has its last cut";
  } else {
    return false;
  }
  outbox_->Emit(effect::Drained{why});
  return true;
}

void DrainDesk::Waits(WaitPage* page) const {
  if (!facts_.hold.draining_since_ms.has_value()) return;
  std::string waits_for;
  if (!facts_.hold.gate.has_step()) {
    waits_for = absl::StrCat("a gate from the lead at ", facts_.job.servers[0]);
  } else if (!facts_.IsGated(facts_.step)) {
    waits_for = absl::StrCat("step ", facts_.hold.gate.step(), ": ", page->step());
  } else {
    waits_for = absl::StrCat("the cut of step ", facts_.step - 1, " on every server");
  }
  page->Add("the end of this server", waits_for, *facts_.hold.draining_since_ms);
}

}  // namespace eps

#include "eps_server/core/fetch/stage_clock.h"

namespace eps {

void StageClock::Fetched(StreamId stream, Visit visit, uint64_t now_ms) {
  Stream& s = streams_[stream];
  if (s.visit.has_value() && *s.visit == visit) return;  // it fetches more chunks of the stage
  // Between the last fetch of a step and the first fetch of the next one a worker waits for others.
  const bool within_step = s.visit.has_value() && !(visit == Visit{StageId(0), false});
  if (within_step) {
    Stage& before = stages_[s.visit->stage.value()];
    before.worker_seconds += static_cast<double>(now_ms - s.since_ms) / 1e3;
    ++before.stays;
  }
  ++stages_[visit.stage.value()].visits;
  s.visit = visit;
  s.since_ms = now_ms;
}

void StageClock::Sent(StreamId stream, StageId stage, uint64_t now_ms) {
  Stream& s = streams_[stream];
  if (s.sending.has_value()) return;
  s.sending = stage;
  s.sending_since_ms = now_ms;
}

void StageClock::Drained(StreamId stream, uint64_t now_ms) {
  const auto it = streams_.find(stream);
  if (it == streams_.end() || !it->second.sending.has_value()) return;
  Stream& s = it->second;
  stages_[s.sending->value()].wire_seconds +=
      static_cast<double>(now_ms - s.sending_since_ms) / 1e3;
  s.sending.reset();
}

void StageClock::Fill(const std::vector<std::string>& names, v1::StatusReply* status) const {
  const auto mean = [](double seconds, uint64_t count) {
    return count == 0 ? 0.0 : seconds / static_cast<double>(count);
  };
  for (size_t i = 0; i < stages_.size(); ++i) {
    const Stage& stage = stages_[i];
    if (stage.visits == 0) continue;
    const Stage& next = stages_[i + 1 < stages_.size() ? i + 1 : i];
    v1::StageTimes* times = status->add_stage_times();
    times->set_stage(static_cast<uint32_t>(i));
    times->set_name(names[i]);
    times->set_visits(stage.visits);
    times->set_jit_seconds(mean(stage.jit_seconds, stage.visits));
    times->set_wire_seconds(mean(stage.wire_seconds, stage.visits));
    times->set_worker_seconds(mean(stage.worker_seconds, stage.stays));
    times->set_slack_seconds(times->worker_seconds() - mean(next.jit_seconds, next.visits));
  }
}

}  // namespace eps

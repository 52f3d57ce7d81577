#include "cli/commands/watch/step_history.h"

#include <algorithm>
#include <utility>

namespace eps {

void StepHistory::Add(const v1::StepRecord& record) {
  const bool evaluation = record.has_evaluation();
  const uint64_t last = evaluation ? last_evaluation_ : last_step_.record.step();
  if (record.step() <= last) return;
  Point point{++last_serial_, record};
  if (evaluation) {
    last_evaluation_ = record.step();
    points_.push_back(std::move(point));
    return;
  }
  last_step_ = point;
  if (record.step() % stride_ != 0) return;
  points_.push_back(std::move(point));
  if (++steps_ > most_) ThinOut();
}

void StepHistory::ThinOut() {
  stride_ *= 2;
  const auto drop = [this](const Point& point) {
    return !point.record.has_evaluation() && point.record.step() % stride_ != 0;
  };
  points_.erase(std::remove_if(points_.begin(), points_.end(), drop), points_.end());
  steps_ =
      static_cast<size_t>(std::count_if(points_.begin(), points_.end(), [](const Point& point) {
        return !point.record.has_evaluation();
      }));
}

void StepHistory::Clear() {
  points_.clear();
  last_step_ = Point();
  // Serial numbers go on, so that a reader who has points of the former job gets all new ones.
  last_evaluation_ = 0;
  stride_ = 1;
  steps_ = 0;
}

std::vector<StepHistory::Point> StepHistory::After(uint64_t serial) const {
  const auto first =
      std::upper_bound(points_.begin(), points_.end(), serial,
                       [](uint64_t wanted, const Point& point) { return wanted < point.serial; });
  std::vector<Point> result(first, points_.end());
  const bool missing = result.empty() || result.back().serial < last_step_.serial;
  if (last_step_.serial > serial && missing) result.push_back(last_step_);
  return result;
}

const v1::StepRecord* StepHistory::last_step_or_null() const {
  return last_step_.serial == 0 ? nullptr : &last_step_.record;
}

}  // namespace eps

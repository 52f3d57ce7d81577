#include "wire/counts_message.h"

#include <algorithm>

namespace eps {

v1::HeldOutCounts ToMessage(const HeldOutCounts& counts) {
  v1::HeldOutCounts message;
  message.set_rows(counts.rows);
  message.set_correct(counts.correct);
  for (const uint64_t n : counts.class_correct) message.add_class_correct(n);
  for (const uint64_t n : counts.class_predicted) message.add_class_predicted(n);
  for (const uint64_t n : counts.class_labels) message.add_class_labels(n);
  message.set_sum_x(counts.sums.x);
  message.set_sum_y(counts.sums.y);
  message.set_sum_xx(counts.sums.xx);
  message.set_sum_yy(counts.sums.yy);
  message.set_sum_xy(counts.sums.xy);
  return message;
}

HeldOutCounts FromMessage(const v1::HeldOutCounts& message) {
  HeldOutCounts counts;
  counts.rows = message.rows();
  counts.correct = message.correct();
  counts.class_correct.assign(message.class_correct().begin(), message.class_correct().end());
  counts.class_predicted.assign(message.class_predicted().begin(), message.class_predicted().end());
  counts.class_labels.assign(message.class_labels().begin(), message.class_labels().end());
  const size_t classes = std::max(
      {counts.class_correct.size(), counts.class_predicted.size(), counts.class_labels.size()});
  counts.class_correct.resize(classes);
  counts.class_predicted.resize(classes);
  counts.class_labels.resize(classes);
  counts.sums = {message.sum_x(), message.sum_y(), message.sum_xx(), message.sum_yy(),
                 message.sum_xy()};
  return counts;
}

}  // namespace eps

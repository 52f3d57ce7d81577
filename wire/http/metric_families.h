#ifndef EPS_WIRE_HTTP_METRIC_FAMILIES_H_
#define EPS_WIRE_HTTP_METRIC_FAMILIES_H_

#include <string>
#include <vector>

#include "prometheus/client_metric.h"
#include "prometheus/metric_family.h"

namespace eps {

// Collects metrics for Prometheus that share labels. For one thread.
class MetricFamilies {
 public:
  using Labels = std::vector<prometheus::ClientMetric::Label>;

  explicit MetricFamilies(Labels labels) : labels_(std::move(labels)) {}

  // Begins a family, to which Value adds.
  void Add(const char* name, const char* help, prometheus::MetricType type);
  // Adds a value to the newest family, with one more label if `key` is not empty.
  void Value(double value, const std::string& key = "", const std::string& label = "");
  void Value(double value, const Labels& more);
  // Add families with one value.
  void Gauge(const char* name, const char* help, double value);
  void Counter(const char* name, const char* help, double value);

  // Returns the families, in the order in which they were added.
  std::vector<prometheus::MetricFamily> Take() { return std::move(families_); }

 private:
  const Labels labels_;
  std::vector<prometheus::MetricFamily> families_;
};

// The type of an answer with MetricsText.
inline constexpr char kMetricsType[] = "text/plain; version=0.0.4; charset=utf-8";
// Writes families in Prometheus' text format 0.0.4.
std::string MetricsText(const std::vector<prometheus::MetricFamily>& families);

}  // namespace eps

#endif  // EPS_WIRE_HTTP_METRIC_FAMILIES_H_

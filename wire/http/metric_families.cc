#include "wire/http/metric_families.h"

#include <utility>

#include "prometheus/text_serializer.h"

namespace eps {

using prometheus::ClientMetric;
using prometheus::MetricType;

void MetricFamilies::Add(const char* name, const char* help, MetricType type) {
  families_.push_back({name, help, type, {}});
}

void MetricFamilies::Value(double value, const std::string& key, const std::string& label) {
  Value(value, key.empty() ? Labels() : Labels{{key, label}});
}

void MetricFamilies::Value(double value, const Labels& more) {
  ClientMetric metric;
  metric.label = labels_;
  metric.label.insert(metric.label.end(), more.begin(), more.end());
  metric.counter.value = value;
  metric.gauge.value = value;
  families_.back().metric.push_back(std::move(metric));
}

void MetricFamilies::Gauge(const char* name, const char* help, double value) {
  Add(name, help, MetricType::Gauge);
  Value(value);
}

void MetricFamilies::Counter(const char* name, const char* help, double value) {
  Add(name, help, MetricType::Counter);
  Value(value);
}

std::string MetricsText(const std::vector<prometheus::MetricFamily>& families) {
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace eps

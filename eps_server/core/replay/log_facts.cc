#include "eps_server/core/replay/log_facts.h"

namespace eps {

v1::LogFact PushFact(const v1::PushHeader& header, bool nonfinite) {
  v1::LogFact fact;
  *fact.mutable_push()->mutable_header() = header;
  fact.mutable_push()->set_nonfinite(nonfinite);
  return fact;
}

v1::LogFact DecisionFact(const v1::Decision& decision) {
  v1::LogFact fact;
  *fact.mutable_decision() = decision;
  return fact;
}

v1::LogFact StatsFact(ShardId from, const v1::Stats& stats) {
  v1::LogFact fact;
  fact.mutable_stats()->set_shard(from.value());
  *fact.mutable_stats()->mutable_stats() = stats;
  return fact;
}

v1::LogFact ReportsFact(const v1::BeginStepRequest& request, const Lead& lead) {
  v1::LoggedReports reports;
  for (const v1::PartLoss& loss : request.losses()) {
    if (lead.IsNews(loss)) *reports.add_losses() = loss;
  }
  for (const v1::PartLoss& loss : request.evaluations()) {
    if (lead.IsNewEvaluation(loss)) *reports.add_evaluations() = loss;
  }
  v1::LogFact fact;
  if (reports.losses().empty() && reports.evaluations().empty()) return fact;
  reports.set_step(request.step());
  *fact.mutable_reports() = std::move(reports);
  return fact;
}

}  // namespace eps

#ifndef EPS_CLI_DRIVER_REPORT_RUN_REPORT_H_
#define EPS_CLI_DRIVER_REPORT_RUN_REPORT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "eps/v1/control.pb.h"

namespace eps {

// The bytes that a plan gives to each kind of memory, of all servers together.
using PlannedMemory = std::vector<std::pair<std::string, double>>;

// The facts of a run that report.html shows beside the records of metrics.jsonl.
struct RunFacts {
  std::string model;                     // as a reader sees it: "gpt2, 842,496 parameters"
  std::string outcome;                   // "complete", or what ended the run
  uint64_t steps = 0;                    // training.steps
  double unigram_entropy = 0;            // in nats; 0 if unknown
  std::vector<v1::StatusReply> servers;  // the latest known status of each server
  PlannedMemory planned;                 // empty if unknown
  std::string settings;                  // YAML
};

// Returns the page report.html: the summary, the loss and the speed step by step, where the time of
// a step goes, the servers' memory beside its plan, and the settings. `metrics` is the content of
// metrics.jsonl; lines that are no records are left out. One file without scripts or references.
std::string RunReport(const RunFacts& facts, absl::string_view metrics);

}  // namespace eps

#endif  // EPS_CLI_DRIVER_REPORT_RUN_REPORT_H_

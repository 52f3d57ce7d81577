#ifndef EPS_CLI_DRIVER_DRIVER_JOB_H_
#define EPS_CLI_DRIVER_DRIVER_JOB_H_

#include <map>
#include <string>
#include <utility>

#include "base/config/config.h"
#include "base/job/drivers/driver_lease.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "cli/driver/report/run_report.h"

namespace eps {

// The job that a driver drives.
struct DriverJob {
  DriverJob(Config resolved, JobSpec job_spec, std::string weights, bool changes = false)
      : config(std::move(resolved)),
        spec(std::move(job_spec)),
        initial_weights(std::move(weights)),
        allow_changes(changes),
        chunks(ChunkMap::Build(spec)) {}

  // The output folder; empty if the run writes no files.
  const std::string& out() const { return config.checkpoint.dir; }
  // Returns the configuration to store with checkpoints and state. Sets checkpoint.resume to none:
  // a later run decides for itself whether it resumes.
  std::string KeptConfig() const {
    Config kept = config;
    kept.checkpoint.resume = "none";
    kept.checkpoint.on_saved.clear();  // it may hold a password, and is for this machine
    if (kept.storage.chosen) {         // as it does for the folder of its state
      kept.storage.kind = "auto";
      kept.storage.path.clear();
    }
    return kept.ToYaml();
  }

  const Config config;  // resolved, with absolute paths
  const JobSpec spec;
  const std::string initial_weights;  // model.safetensors or its index; empty for the spec's values
  const bool allow_changes;           // resume with other data, another model or seed
  const ChunkMap chunks;              // of spec
  DriverLease lease;                  // on the board of jobs; none if nobody submitted the job
  // The files of the model's folder that checkpoints repeat.
  std::map<std::string, std::string> model_files;
  // For report.html.
  double unigram_entropy = 0;  // of the data, in nats; 0 if unknown
  PlannedMemory planned;       // empty if unknown
};

}  // namespace eps

#endif  // EPS_CLI_DRIVER_DRIVER_JOB_H_

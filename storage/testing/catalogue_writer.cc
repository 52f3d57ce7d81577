// Writes cuts into a catalogue until it is killed: catalogue_writer FOLDER. Prints the step of each
// cut once it is acknowledged. For rocksdb_store_test.

#include <unistd.h>

#include <string>

#include "base/check.h"
#include "storage/cuts/rocksdb_store.h"
#include "storage/testing/catalogue_samples.h"

int main(int argc, char** argv) {
  EPS_CHECK_MSG(argc == 2, "usage: catalogue_writer FOLDER");
  const auto store = eps::OpenRocksDb(argv[1]);
  EPS_CHECK_MSG(store.ok(), store.status().ToString());
  eps::Catalogue catalogue(store->get());
  const eps::CatalogueJob job = eps::SampleJob("killed");
  const absl::Status added = catalogue.AddJob(job);
  EPS_CHECK_MSG(added.ok() || absl::IsAlreadyExists(added), added.ToString());
  const auto cuts = catalogue.Cuts(job.id);
  EPS_CHECK_MSG(cuts.ok(), cuts.status().ToString());
  uint64_t step = cuts->empty() ? 0 : cuts->back().border.id.step.value();
  for (;;) {
    ++step;
    absl::Status status = catalogue.Promise(job.id, eps::Term(step));
    if (status.ok()) status = catalogue.AddCut(job.id, eps::SampleCut(step, step), {});
    if (status.ok() && step > 2) {
      status = catalogue.RemoveCutsBelow(job.id, {eps::Step(step - 1), eps::Term(step - 1)});
    }
    EPS_CHECK_MSG(status.ok(), status.ToString());
    const std::string line = std::to_string(step) + "\n";
    EPS_CHECK(write(STDOUT_FILENO, line.data(), line.size()) == static_cast<ssize_t>(line.size()));
  }
}

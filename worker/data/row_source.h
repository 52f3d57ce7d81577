#ifndef EPS_WORKER_DATA_ROW_SOURCE_H_
#define EPS_WORKER_DATA_ROW_SOURCE_H_

#include <memory>

#include "worker/data/data_file.h"
#include "worker/data/sample_source.h"

namespace eps {

// The rows of an .epsd file of kind rows; sample i is row i. Labels, positions and the other
// columns of a micro-batch are those that docs/formats/data.md defines.
std::shared_ptr<const SampleSource> NewRowSource(DataFile file);

}  // namespace eps

#endif  // EPS_WORKER_DATA_ROW_SOURCE_H_

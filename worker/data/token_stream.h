#ifndef EPS_WORKER_DATA_TOKEN_STREAM_H_
#define EPS_WORKER_DATA_TOKEN_STREAM_H_

#include <cstdint>
#include <memory>
#include <string>

#include "worker/data/data_file.h"
#include "worker/data/mapped_file.h"
#include "worker/data/sample_source.h"

namespace eps {

// One flat array of ids. Sample i covers the tokens from i * seq_len on; the label of each is the
// token after it. `name` names the files in errors.

// The bytes of text as ids.
std::shared_ptr<const SampleSource> NewTextStream(std::string bytes, std::string name);
// A whole file of little-endian uint16. REQUIRES an even number of bytes, at least 2.
std::shared_ptr<const SampleSource> NewBinStream(MappedFile file, std::string name);
// The tokens of an .epsd file of kind stream.
std::shared_ptr<const SampleSource> NewFileStream(DataFile file);

}  // namespace eps

#endif  // EPS_WORKER_DATA_TOKEN_STREAM_H_

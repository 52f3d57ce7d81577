#ifndef EPS_WORKER_DATA_DATA_FORM_H_
#define EPS_WORKER_DATA_DATA_FORM_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace eps {

// The forms of data files. The worker reads plain text, flat little-endian uint16 ids and .epsd
// files (docs/formats/data.md); every other form that these functions recognize is refused, because
// its bytes would train as garbage. `bytes` is the whole file, and `key` the configuration key that
// names it. The errors name the file, the form found and the command that makes an .epsd file of
// it; they have exit code 65.

// Returns the command line that makes an .epsd file of a file: "eps data make jsonl a.jsonl ...".
// `kind` is a kind of that command.
std::string MakeDataCommand(absl::string_view kind, const std::string& path);

// Refuses text that is compressed (gzip, zstd, xz, bzip2), Parquet, Arrow, JSON or CSV, and .epsd
// files of another name. JSON and CSV whose name ends in .txt pass: that name says that the bytes
// themselves are the text.
absl::Status CheckTextForm(absl::string_view bytes, const std::string& path,
                           const std::string& key);

// Refuses a .bin file that is compressed, Parquet or NumPy, has an odd size, or seems to hold
// uint32 or uint64 ids (files of fewer than 64 tokens are too short to be recognized); and a
// vocabulary of more than 65,536 ids, which uint16 cannot hold.
absl::Status CheckBinForm(absl::string_view bytes, uint32_t vocab_size, const std::string& path,
                          const std::string& key);

}  // namespace eps

#endif  // EPS_WORKER_DATA_DATA_FORM_H_
